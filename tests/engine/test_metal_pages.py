"""The Metal kernels against stock operations: on an Apple GPU themselves, elsewhere emulated."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlx_notebook.engine.stores import choose, metal_source
from mlx_notebook.engine.stores.metal_pages import MetalPages
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from tests.engine import page_cases
from tests.engine.emulator import compiler, has_half
from tests.engine.metal_emulator import metal_kernel

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if mx.metal.is_available():
        return
    if compiler() is None:  # not `lacking`: CI installs no compiler for this alone
        pytest.skip("no C++ compiler (g++ or c++) to emulate Metal kernels with")
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)


def test_they_agree_with_stock_operations() -> None:
    assert agrees_with_stock(MetalPages(), 2, 1, 64, mx.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "heads", "own"),
    [(mx.float32, 128, 4, 2), (mx.float16, 64, 14, 2), (mx.bfloat16, 64, 8, 1), (mx.bfloat16, 128, 2, 2)],
    ids=["float32", "float16, seven heads a key", "bfloat16, eight heads a key", "bfloat16, one head a key"],
)
def test_so_they_do_for_every_type_width_and_group(dtype: mx.Dtype, width: int, heads: int, own: int) -> None:
    if dtype == mx.float16 and not mx.metal.is_available() and not has_half():
        pytest.skip("the C++ compiler has no _Float16 to emulate half precision with")
    assert agrees_with_stock(MetalPages(), heads, own, width, dtype)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal_source, "MERGE", metal_source.MERGE.replace("value / total", "value / splits"))
    assert not agrees_with_stock(MetalPages(), 1, 1, 64, mx.float32)


@pytest.mark.parametrize("late", [False, True], ids=["turned", "turned late"])
def test_a_row_reads_and_writes_its_own_columns_and_no_others(late: bool) -> None:
    page_cases.a_row_reads_and_writes_its_own_columns_and_no_others(MetalPages(), metal_source.SPAN, late=late)


def test_where_columns_go_follows_the_table() -> None:
    page_cases.where_columns_go_follows_the_table(MetalPages())


def test_rows_are_taken_in_at_once() -> None:
    page_cases.rows_are_taken_in_at_once(MetalPages())


def test_what_is_longer_than_the_pages_stays_out() -> None:
    page_cases.what_is_longer_than_the_pages_stays_out(MetalPages())


def test_a_pool_over_them_serves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "device_kind", lambda: "metal")
    monkeypatch.setenv(choose.METAL_SWITCH, "1")
    page_cases.a_pool_over_them_serves_a_model(MetalPages)

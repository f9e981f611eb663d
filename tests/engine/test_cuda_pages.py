"""The CUDA kernels against stock operations: on an NVIDIA GPU themselves, elsewhere emulated.

Emulated, this says what the kernels compute. It says nothing of speed, sees no race that the emulator's order of lanes
hides, no store that a GPU shows to others late, and no wide load that is not aligned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from mlx_notebook.engine.stores import choose, cuda_source
from mlx_notebook.engine.stores.cuda_pages import CudaPages
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from tests.engine import page_cases
from tests.engine.cuda_emulator import cuda_kernel
from tests.engine.emulator import compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if mx.cuda.is_available():
        yield
        return
    if compiler() is None:  # not `lacking`: CI installs no compiler for this alone
        pytest.skip("no C++ compiler (g++ or c++) to emulate CUDA kernels with")
    monkeypatch.setattr(mx.fast, "cuda_kernel", cuda_kernel)
    mx.disable_compile()  # emulated kernels run at once, and cannot be traced
    yield
    mx.enable_compile()


def test_they_agree_with_stock_operations() -> None:
    """Rows of one span and of several, arrays and heads of one product."""
    assert agrees_with_stock(CudaPages(), 2, 1, 64, mx.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "width", "heads", "own"),
    [(mx.float32, 128, 4, 2), (mx.float16, 64, 14, 2), (mx.bfloat16, 64, 8, 1), (mx.bfloat16, 128, 2, 2)],
    ids=["float32", "float16, seven heads a key", "bfloat16, eight heads a key", "bfloat16, one head a key"],
)
def test_so_they_do_for_every_type_width_and_group(dtype: mx.Dtype, width: int, heads: int, own: int) -> None:
    assert agrees_with_stock(CudaPages(), heads, own, width, dtype)


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_source, "MERGE", cuda_source.MERGE.replace("value / total", "value / splits"))
    assert not agrees_with_stock(CudaPages(), 1, 1, 64, mx.float32)


def test_a_wrong_turn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = cuda_source.HEADER.replace("? -1.0f : 1.0f", "? 1.0f : -1.0f")
    assert turned != cuda_source.HEADER
    monkeypatch.setattr(cuda_source, "HEADER", turned)
    assert not agrees_with_stock(CudaPages(), 1, 1, 64, mx.float32)


@pytest.mark.parametrize("late", [False, True], ids=["turned", "turned late"])
def test_a_row_reads_and_writes_its_own_columns_and_no_others(late: bool) -> None:
    page_cases.a_row_reads_and_writes_its_own_columns_and_no_others(CudaPages(), cuda_source.SPAN, late=late)


def test_where_columns_go_follows_the_table() -> None:
    page_cases.where_columns_go_follows_the_table(CudaPages())


def test_rows_are_taken_in_at_once() -> None:
    page_cases.rows_are_taken_in_at_once(CudaPages())


def test_what_is_longer_than_the_pages_stays_out() -> None:
    page_cases.what_is_longer_than_the_pages_stays_out(CudaPages())


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("cuts", [[192, 256], [8, 1032], [192], [3, 200]], ids=str)
def test_a_product_is_cut_where_asked(dtype: mx.Dtype, cuts: list[int]) -> None:
    """By the kernel, or by stock operations where a cut does not fit its loads."""
    product = page_cases.random(3, 2, 2056, seed=10).astype(dtype)
    parts = CudaPages().split(product, cuts)
    stock = mx.split(product, cuts, axis=-1)
    assert all(mx.array_equal(ours, part) for ours, part in zip(parts, stock, strict=True))


def test_a_pool_over_them_serves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "device_kind", lambda: "cuda")
    page_cases.a_pool_over_them_serves_a_model(CudaPages)

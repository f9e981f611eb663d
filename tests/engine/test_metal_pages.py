"""The Metal kernels against stock operations: on an Apple GPU themselves, elsewhere emulated."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import choose_store
from mlx_notebook.engine.stores import choose, metal_source
from mlx_notebook.engine.stores.late import Heads
from mlx_notebook.engine.stores.metal_pages import MetalPages
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from mlx_notebook.engine.stores.page_ops import LayerPool, StockPages
from mlx_notebook.engine.stores.pages import SCRATCH
from mlx_notebook.engine.stores.pool import PoolStore
from tests.engine.emulator import compiler, has_half
from tests.engine.metal_emulator import metal_kernel
from tests.engine.wide_heads import wide_llama

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("kernels")

WIDTH, OWN, HEADS, PAGES = 64, 2, 6, 8


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


def random(*shape: int, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def pool_with(junk: float, held: Sequence[int]) -> tuple[LayerPool, mx.array]:
    """Pages of rows that hold so many columns (-1: an idle place), junk behind them; and their table."""
    rows = len(held)
    table = mx.arange(1, 1 + rows * PAGES, dtype=mx.int32).reshape(rows, PAGES)
    table = mx.where(mx.array(list(held))[:, None] >= 0, table, SCRATCH)
    ends = mx.array([0, *(max(0, min(BLOCK, n - BLOCK * page)) for n in held for page in range(PAGES))])
    used = mx.arange(BLOCK)[None] < ends[:, None]
    shape = (1 + rows * PAGES, OWN, BLOCK, WIDTH)
    keys, values = (mx.where(used[:, None, :, None], random(*shape, seed=seed), junk) for seed in (1, 2))
    return LayerPool(keys, values), table


@pytest.mark.parametrize("late", [False, True], ids=["turned", "turned late"])
def test_a_row_reads_and_writes_its_own_columns_and_no_others(late: bool) -> None:
    held = (0, BLOCK - 1, BLOCK, metal_source.SPAN - 1, -1)
    rows = len(held)
    product = random(rows, 1, (HEADS + 2 * OWN) * WIDTH, seed=3)
    turn = random(rows, WIDTH, seed=4)
    bounds = (0, HEADS * WIDTH, (HEADS + OWN) * WIDTH, (HEADS + 2 * OWN) * WIDTH)
    queries, keys, values = (
        Heads(product, start, stop, WIDTH, turn if late and at < 2 else None)
        for at, (start, stop) in enumerate(pairwise(bounds))
    )
    positions = mx.array(held, dtype=mx.int32)
    seen, pools = [], []
    for ops, junk in ((MetalPages(), float("nan")), (StockPages(), 0.0)):
        pool, table = pool_with(junk, held)
        if late:
            found = ops.attend_heads(pool, queries, keys, values, table, positions, WIDTH**-0.5).flat
        else:  # views of the product: strided
            arrays = (heads.array() for heads in (queries, keys, values))
            found = ops.attend(pool, *arrays, table, positions, WIDTH**-0.5)  # type: ignore[call-arg, arg-type]
        seen.append(found.reshape(rows, HEADS, 1, WIDTH))
        pools.append(pool)
    assert mx.allclose(seen[0], seen[1], atol=1e-5)
    assert mx.array_equal(seen[0][-1], mx.zeros((HEADS, 1, WIDTH))), "an idle place"
    for ours, stock in zip((pools[0].keys, pools[0].values), (pools[1].keys, pools[1].values), strict=True):
        written = mx.logical_not(mx.isnan(ours))
        assert mx.allclose(mx.where(written, ours, 0), stock, atol=1e-5)
        columns = written[:, 0, :, 0].sum(axis=1)  # of each page; page 0 is nobody's and takes an idle place's column
        assert columns[1:].reshape(rows, PAGES).sum(axis=1).tolist() == [n + 1 for n in held]


def test_where_columns_go_follows_the_table() -> None:
    ops, positions = MetalPages(), mx.array([3], dtype=mx.int32)
    for page in (2, 5):
        pool, _ = pool_with(0.0, [PAGES * BLOCK])
        queries, new = random(1, HEADS, 1, WIDTH, seed=8), random(1, OWN, 1, WIDTH, seed=9)
        mx.eval(ops.attend(pool, queries, new, new, mx.array([[page]], dtype=mx.int32), positions, 1.0))
        assert mx.array_equal(pool.keys[page, :, 3], new[0, :, 0])


def test_rows_are_taken_in_at_once() -> None:
    lengths, capacity = (5, BLOCK, BLOCK + 9), 100
    pages = mx.array([[3, SCRATCH], [1, SCRATCH], [5, 2]], dtype=mx.int32)
    keys, values = (random(3, OWN, capacity, WIDTH, seed=seed) for seed in (5, 6))
    pools = [pool_with(0.0, [PAGES * BLOCK])[0] for _ in range(2)]
    for ops, pool in zip((MetalPages(), StockPages()), pools, strict=True):
        ops.fill(pool, pages, keys, values, mx.array(lengths, dtype=mx.int32))
    for row, columns in enumerate(lengths):
        for page in range(-(-columns // BLOCK)):
            at, end = pages[row, page].item(), min(BLOCK, columns - page * BLOCK)
            for name in ("keys", "values"):
                ours, stock = (getattr(pool, name)[at, :, :end] for pool in pools)
                assert mx.array_equal(ours, stock)
    for nobodys in (4, 6, 7, 8):
        assert mx.array_equal(pools[0].keys[nobodys], pools[1].keys[nobodys])


def test_what_is_longer_than_the_pages_stays_out() -> None:
    pool, _ = pool_with(0.0, [PAGES * BLOCK])
    long = random(1, OWN, 4 * BLOCK, WIDTH, seed=7)
    MetalPages().fill(pool, mx.array([[2, 4]], dtype=mx.int32), long, long, mx.array([2 * BLOCK], dtype=mx.int32))
    assert mx.array_equal(mx.concatenate([pool.keys[2], pool.keys[4]], axis=1), long[0, :, : 2 * BLOCK])


def test_a_pool_over_them_serves_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "device_kind", lambda: "metal")
    monkeypatch.setenv(choose.METAL_SWITCH, "1")
    model: Any = wide_llama()
    route = AttentionRoute(model)
    try:
        choice = choose_store(model, first=choose.pools(model))
    finally:
        route.close()
    assert choice.findings == []
    assert isinstance(choice.store, PoolStore)
    assert isinstance(choice.store._ops, MetalPages)

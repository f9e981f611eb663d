"""What every kernel over pages must do, against stock operations: the cases of the Metal and of the CUDA kernels."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import choose_store
from mlx_notebook.engine.stores import choose
from mlx_notebook.engine.stores.late import Heads
from mlx_notebook.engine.stores.page_ops import LayerPool, StockPages
from mlx_notebook.engine.stores.pages import SCRATCH
from mlx_notebook.engine.stores.pool import PoolStore
from tests.engine.wide_heads import wide_llama

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.stores.page_ops import PageOps

WIDTH, OWN, HEADS, PAGES = 64, 2, 6, 8


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


def a_row_reads_and_writes_its_own_columns_and_no_others(kernels: PageOps, span: int, *, late: bool) -> None:
    held = (0, BLOCK - 1, BLOCK, span - 1, -1)
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
    for ops, junk in ((kernels, float("nan")), (StockPages(), 0.0)):
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
        # Page 0 is nobody's: it may take an idle place's column.
        assert mx.allclose(mx.where(written, ours, 0)[1:], stock[1:], atol=1e-5)
        columns = written[:, 0, :, 0].sum(axis=1)  # of each page
        assert columns[1:].reshape(rows, PAGES).sum(axis=1).tolist() == [n + 1 for n in held]


def where_columns_go_follows_the_table(ops: PageOps) -> None:
    positions = mx.array([3], dtype=mx.int32)
    for page in (2, 5):
        pool, _ = pool_with(0.0, [PAGES * BLOCK])
        queries, new = random(1, HEADS, 1, WIDTH, seed=8), random(1, OWN, 1, WIDTH, seed=9)
        mx.eval(ops.attend(pool, queries, new, new, mx.array([[page]], dtype=mx.int32), positions, 1.0))
        assert mx.array_equal(pool.keys[page, :, 3], new[0, :, 0])


def rows_are_taken_in_at_once(kernels: PageOps) -> None:
    lengths, capacity = (5, BLOCK, BLOCK + 9), 100
    pages = mx.array([[3, SCRATCH], [1, SCRATCH], [5, 2]], dtype=mx.int32)
    keys, values = (random(3, OWN, capacity, WIDTH, seed=seed) for seed in (5, 6))
    pools = [pool_with(0.0, [PAGES * BLOCK])[0] for _ in range(2)]
    for ops, pool in zip((kernels, StockPages()), pools, strict=True):
        mx.eval(ops.fill(pool, pages, keys, values, mx.array(lengths, dtype=mx.int32)))
    for row, columns in enumerate(lengths):
        for page in range(-(-columns // BLOCK)):
            at, end = pages[row, page].item(), min(BLOCK, columns - page * BLOCK)
            for name in ("keys", "values"):
                ours, stock = (getattr(pool, name)[at, :, :end] for pool in pools)
                assert mx.array_equal(ours, stock)
    for nobodys in (4, 6, 7, 8):
        assert mx.array_equal(pools[0].keys[nobodys], pools[1].keys[nobodys])


def what_is_longer_than_the_pages_stays_out(ops: PageOps) -> None:
    pool, _ = pool_with(0.0, [PAGES * BLOCK])
    long = random(1, OWN, 4 * BLOCK, WIDTH, seed=7)
    lengths = mx.array([2 * BLOCK], dtype=mx.int32)
    mx.eval(ops.fill(pool, mx.array([[2, 4]], dtype=mx.int32), long, long, lengths))
    assert mx.array_equal(mx.concatenate([pool.keys[2], pool.keys[4]], axis=1), long[0, :, : 2 * BLOCK])


def a_pool_over_them_serves_a_model(kernels: type) -> None:
    model: Any = wide_llama()
    route = AttentionRoute(model)
    try:
        choice = choose_store(model, first=choose.pools(model))
    finally:
        route.close()
    assert choice.findings == []
    assert isinstance(choice.store, PoolStore)
    assert isinstance(choice.store._ops, kernels)

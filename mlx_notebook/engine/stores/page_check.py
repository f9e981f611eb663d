"""The self-check at load: a kernel against stock operations, on rows of which each is a case by itself."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.late import Heads
from mlx_notebook.engine.stores.page_ops import LayerPool, StockPages

if TYPE_CHECKING:
    from mlx_notebook.engine.stores.page_ops import PageOps

LENGTHS = (5, 70, 600, 0, 130, 1100)
"""Columns held: short, over a page, two longer than a span, one idle place."""

TABLE = 32


def agrees_with_stock(ops: PageOps, heads: int, own: int, width: int, dtype: mx.Dtype) -> bool:
    """Whether attention over pages is what stock operations make of it: of arrays, and of heads of one product."""
    bound = 2e-5 if dtype == mx.float32 else 2e-2
    for late in (False, True):
        ours, stock = (_two_steps(way, heads, own, width, dtype, late=late) for way in (ops, StockPages()))
        if not all(float(mx.max(mx.abs(a - b))) <= bound for a, b in zip(ours, stock, strict=True)):
            return False
    return True


def _two_steps(ops: PageOps, heads: int, own: int, width: int, dtype: mx.Dtype, *, late: bool) -> list[mx.array]:
    """Of two steps what each row sees; the second reads what the first wrote."""
    rows = len(LENGTHS)
    pool = _random_pool(rows * TABLE, own, width, dtype)
    table = mx.arange(rows * TABLE, dtype=mx.int32).reshape(rows, TABLE)
    positions = mx.array([n or -1 for n in LENGTHS], dtype=mx.int32)
    product = mx.random.normal((rows, 1, (heads + 2 * own) * width), key=mx.random.key(11)).astype(dtype)
    degrees = mx.random.uniform(0.0, 6.0, (rows, width // 2), key=mx.random.key(13))
    turn = mx.concatenate([mx.cos(degrees), mx.sin(degrees)], axis=-1)
    mx.eval(product, table, positions, turn)
    bounds = [0, heads * width, (heads + own) * width, (heads + 2 * own) * width]
    queries, keys, values = (
        Heads(product, start, stop, width, turn if late and at < 2 else None)
        for at, (start, stop) in enumerate(pairwise(bounds))
    )
    seen = []
    for at in (positions, mx.where(positions >= 0, positions + 1, positions)):
        if late:
            out = ops.attend_heads(pool, queries, keys, values, table, at, width**-0.5).flat
        else:
            out = ops.attend(pool, queries.array(), keys.array(), values.array(), table, at, width**-0.5)
        mx.eval(out)
        seen.append(out.astype(mx.float32))
    return seen


def _random_pool(pages: int, heads: int, width: int, dtype: mx.Dtype) -> LayerPool:
    k1, k2 = mx.random.split(mx.random.key(7))
    shape = (pages, heads, BLOCK, width)
    pool = LayerPool(mx.random.normal(shape, key=k1).astype(dtype), mx.random.normal(shape, key=k2).astype(dtype))
    mx.eval(pool.keys, pool.values)
    return pool

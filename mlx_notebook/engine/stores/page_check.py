"""The self-check at load: a kernel against stock operations, on rows of which each is a case by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.page_ops import LayerPool, StockPages

if TYPE_CHECKING:
    from mlx_notebook.engine.stores.page_ops import PageOps

LENGTHS = (5, 70, 600, 0, 130, 1100)
"""Columns held: short, over a page, two longer than a span, one idle place."""

TABLE = 32


def agrees_with_stock(ops: PageOps, heads: int, own: int, width: int, dtype: mx.Dtype) -> bool:
    """Whether attention over pages, with turns and without, and sums with their norms are what stock operations make.

    Queries, keys and values come as slices of one product, as they do in a model.
    """
    bound = 2e-5 if dtype == mx.float32 else 2e-2
    for late in (False, True):
        ours, stock = (_two_steps(way, heads, own, width, dtype, late=late) for way in (ops, StockPages()))
        if not _close(ours, stock, bound):
            return False
    ours, stock = (_sum_and_norm(way, dtype) for way in (ops, StockPages()))
    return _close(ours, stock, 2 * bound)


def _close(ours: list[mx.array], stock: list[mx.array], bound: float) -> bool:
    pairs = zip(ours, stock, strict=True)
    return all(float(mx.max(mx.abs(a.astype(mx.float32) - b.astype(mx.float32)))) <= bound for a, b in pairs)


def _sum_and_norm(ops: PageOps, dtype: mx.Dtype) -> list[mx.array]:
    """Of rows that are wider than what one group of threads reads at once, and end within it."""
    x, more = (mx.random.normal((3, 1, 2_056), key=mx.random.key(n)).astype(dtype) for n in (17, 19))
    weight = mx.random.uniform(0.5, 1.5, (2_056,), key=mx.random.key(23)).astype(dtype)
    return list(ops.add_norm(x, more, weight, 1e-5))


def _two_steps(ops: PageOps, heads: int, own: int, width: int, dtype: mx.Dtype, *, late: bool) -> list[mx.array]:
    """Of two steps what each row sees; the second reads what the first wrote."""
    rows = len(LENGTHS)
    pool = _random_pool(rows * TABLE, own, width, dtype)
    table = mx.arange(rows * TABLE, dtype=mx.int32).reshape(rows, TABLE)
    positions = mx.array([n or -1 for n in LENGTHS], dtype=mx.int32)
    product = mx.random.normal((rows, 1, (heads + 2 * own) * width), key=mx.random.key(11)).astype(dtype)
    degrees = mx.random.uniform(0.0, 6.0, (rows, width // 2), key=mx.random.key(13))
    turn = mx.concatenate([mx.cos(degrees), mx.sin(degrees)], axis=-1) if late else None
    mx.eval(product, table, positions, turn)
    parts = mx.split(product, [heads * width, (heads + own) * width], axis=-1)
    queries, keys, values = (part.reshape(rows, 1, -1, width).transpose(0, 2, 1, 3) for part in parts)
    seen = []
    for at in (positions, mx.where(positions >= 0, positions + 1, positions)):
        out = ops.attend(pool, queries, keys, values, table, at, width**-0.5, turn)
        mx.eval(out)
        seen.append(out)
    return seen


def _random_pool(pages: int, heads: int, width: int, dtype: mx.Dtype) -> LayerPool:
    k1, k2 = mx.random.split(mx.random.key(7))
    shape = (pages, heads, BLOCK, width)
    pool = LayerPool(mx.random.normal(shape, key=k1).astype(dtype), mx.random.normal(shape, key=k2).astype(dtype))
    mx.eval(pool.keys, pool.values)
    return pool

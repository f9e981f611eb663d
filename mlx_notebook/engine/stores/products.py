"""Attention of a chunk as two products, on CUDA: cuDNN plans its fused kernel anew for each length, 60 to 90 ms each.

Prompts have any length, and each chunk of one looks back at more columns than the last: nearly every forward would
pay for a plan, and rows that write would wait for it. Two products and a softmax take 1 to 3 ms a layer instead, for
sizes up to MOST; above, where scores would fill memory, the fused kernel is planned. Scores are kept in float32, so
that nothing is less exact than it was.

Only what an engine reads goes this way (`preferred`, on its own thread): mlx-lm's own calls elsewhere are not touched.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 1 << 27
"""Scores of one layer: 512 MB. At 32 heads and 32 layers the products then take about what a plan takes."""

_thread = threading.local()


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """On this thread, attend by products where they serve."""
    _thread.on = True
    try:
        yield
    finally:
        _thread.on = False


def serve(queries: Any, keys: Any, mask: Any, sinks: Any) -> bool:
    """Whether these are a chunk's queries over plain columns, few enough."""
    if not getattr(_thread, "on", False) or mask != "causal" or sinks is not None or not isinstance(keys, mx.array):
        return False
    rows, heads, length, _ = map(int, queries.shape)
    return length > 1 and rows * heads * length * int(keys.shape[2]) <= MOST


def attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Each of the last L columns over all up to it: [R, Hq, L, D] of keys and values [R, H, S, D]."""
    rows, heads, length, width = queries.shape
    _, own, columns, _ = keys.shape
    grouped = (rows, own, heads // own * length)
    scaled = (queries.astype(mx.float32) * scale).reshape(*grouped, width)
    scores = (scaled @ keys.astype(mx.float32).swapaxes(-1, -2)).reshape(rows, own, -1, length, columns)
    seen = mx.arange(columns)[None] <= mx.arange(columns - length, columns)[:, None]
    shares = mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1)
    found = shares.reshape(*grouped, columns) @ values.astype(mx.float32)
    return found.reshape(rows, heads, length, values.shape[-1]).astype(queries.dtype)

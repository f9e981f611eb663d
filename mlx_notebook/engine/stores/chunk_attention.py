"""Attention of a chunk of a prompt as two products and a softmax, where that beats MLX's fused kernel.

- On CUDA, cuDNN plans its kernel anew for each length, 60 to 90 ms each. Prompts have any length, and each chunk of
  one looks back at more columns than the last: nearly every forward would pay for a plan, and rows that write would
  wait for it. Products and a softmax take 1 to 3 ms a layer instead.
- On a CPU nearly all of the kernel's time is exponentials, one after the other: 10 ns each. NumPy's take vectors.
  The whole is 3 to 4 times as fast (16 tokens after 6,000: 2.9 against 11.6 ms a layer).

Scores are float32, so that nothing is less exact than it was. Only what an engine reads goes this way (`preferred`, on
its own thread): mlx-lm's own calls elsewhere are not touched.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Softmax = Callable[[mx.array], tuple[mx.array, mx.array | float]]

MOST = 1 << 27
"""Scores of one layer: 512 MB. Above, the fused kernel has its turn: it keeps none of them."""

LEAST = {mx.gpu: 1, mx.cpu: 1 << 12}
"""Fewer scores are not worth a stop between two layers, on a CPU."""

_thread = threading.local()


def fits_here() -> bool:
    """Whether there is anything to win on this device. On Apple's GPUs nothing was measured."""
    return mx.default_device() == mx.cpu or mx.cuda.is_available()


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """On this thread, attend by products where they serve."""
    _thread.device = mx.default_device().type
    try:
        yield
    finally:
        _thread.device = None


def serves(queries: Any, keys: Any, mask: Any, sinks: Any) -> bool:
    """Whether these are a chunk's queries over plain columns, neither too few nor too many."""
    device = getattr(_thread, "device", None)
    if device is None or mask != "causal" or sinks is not None or not isinstance(keys, mx.array):
        return False
    rows, heads, length, _ = map(int, queries.shape)
    return length > 1 and LEAST[device] <= rows * heads * length * int(keys.shape[2]) <= MOST


def attend(queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    """Each of the last L columns over all up to it: [R, Hq, L, D] of keys and values [R, H, S, D]."""
    rows, heads, length, width = queries.shape
    _, own, columns, _ = keys.shape
    grouped = (rows, own, heads // own * length)
    scaled = (queries.astype(mx.float32) * scale).reshape(*grouped, width)
    scores = (scaled @ keys.astype(mx.float32).swapaxes(-1, -2)).reshape(rows, own, -1, length, columns)
    softmax: Softmax = _softmax_on_cpu if _thread.device == mx.cpu else _softmax
    shares, total = softmax(scores)
    found = shares.reshape(*grouped, columns) @ values.astype(mx.float32)
    found = found.reshape(rows, own, -1, length, values.shape[-1]) / total
    return found.reshape(rows, heads, length, values.shape[-1]).astype(queries.dtype)


def _softmax(scores: mx.array) -> tuple[mx.array, float]:
    length, columns = scores.shape[-2:]
    seen = mx.arange(columns)[None] <= mx.arange(columns - length, columns)[:, None]
    return mx.softmax(mx.where(seen, scores, -mx.inf), axis=-1), 1.0


def _softmax_on_cpu(scores: mx.array) -> tuple[mx.array, mx.array]:
    """Exponentials, and what they add up to [..., 1]: dividing what was seen is less work than dividing shares."""
    length = scores.shape[-2]
    mx.eval(scores)
    held = np.array(scores, copy=False)  # ours alone: it was made in `attend`, and nobody reads it again
    held[..., -length:][..., np.triu(np.ones((length, length), dtype=bool), 1)] = -np.inf
    with np.errstate(all="ignore"):  # what is no number is the row's affair, later
        held -= held.max(axis=-1, keepdims=True)
        np.exp(held, out=held)
    return mx.array(held), mx.array(held.sum(axis=-1, keepdims=True))

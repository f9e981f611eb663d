"""Filters on log-probabilities: top-p, min-p, XTC, top-k, in mlx-lm's order and with its meaning.

Each takes log-probabilities [..., V] and gives them back with -inf at the tokens that may not be drawn.
mlx-lm's own functions are not called: they are tied to the global random state, which belongs to whoever
drew last. Tests hold these equal to them, bit for bit.
"""

from __future__ import annotations

import math

import mlx.core as mx


def keep_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Keep the likeliest tokens whose mass before them is below `top_p` (Holtzman et al. 2019, nucleus sampling)."""
    ascending = mx.sort(logprobs, axis=-1)
    mass = mx.exp(ascending.astype(mx.float32))
    above = mx.cumsum(mass, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + mass[..., :1]
    dropped = (above >= top_p * total).sum(axis=-1, keepdims=True)
    threshold = mx.take_along_axis(ascending, dropped, axis=-1)
    return mx.where(logprobs < threshold, -mx.inf, logprobs)


def keep_min_p(logprobs: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024)."""
    threshold = mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < threshold, -mx.inf, logprobs)


def drop_top_choices(logprobs: mx.array, threshold: float, spared: tuple[int, ...]) -> mx.array:
    """XTC: of the tokens above `threshold`, keep only the least likely; `spared` ids are never dropped.

    Source: text-generation-webui's "exclude top choices". The caller tosses the coin.
    """
    probabilities = mx.softmax(logprobs, axis=-1)
    least_choice = mx.where(probabilities > threshold, probabilities, mx.inf).min(axis=-1, keepdims=True)
    dropped = probabilities > least_choice
    if spared:
        dropped[..., mx.array(spared)] = False
    return mx.where(dropped, -mx.inf, logprobs)


def keep_top_k(logprobs: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` likeliest tokens; more than there are keeps all."""
    if top_k >= logprobs.shape[-1]:
        return logprobs
    others = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, others, mx.array(-mx.inf, logprobs.dtype), axis=-1)

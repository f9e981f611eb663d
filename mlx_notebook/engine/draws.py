"""Random numbers of a row: a stream of its own, counted, not carried.

A draw is a pure function of (seed, what it is for, its number), so it never depends on neighbours, on what
was drawn before, or on MLX's global generator. A token is drawn by adding Gumbel noise to the scaled
logits and taking the likeliest (Gumbel 1954; the "Gumbel-max trick"), which samples the softmax exactly;
unlike `mx.random.categorical`, the noise of many keys at once equals that of each key alone.
"""

from __future__ import annotations

from functools import cache, partial
from hashlib import blake2b
from struct import pack
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKEN = b"token"
XTC_COIN = b"xtc"

KeyWords = tuple[int, int]


def key_words(seed: int, index: int, purpose: bytes = TOKEN) -> KeyWords:
    """The two 32-bit words of the key of draw `index` (0, 1, ...) of a row with this seed (0 <= seed < 2**64)."""
    digest = blake2b(pack("<QQ", seed, index), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def coin(seed: int, index: int, purpose: bytes) -> float:
    """A uniform number in [0, 1) with 53 random bits, drawn on the host."""
    high, low = key_words(seed, index, purpose)
    return (((high << 32) | low) >> 11) * 2.0**-53


def keys_of(words: Sequence[KeyWords]) -> mx.array:
    """Keys [R, 2] (uint32) for `gumbel_rows`."""
    return mx.array(list(words), dtype=mx.uint32)


def gumbel_rows(keys: mx.array, width: int) -> mx.array:
    """Standard Gumbel noise [R, width] (float32), row i from keys[i] alone."""
    return _noise_of(width)(keys)


def draw_tokens(logits: mx.array, keys: mx.array, temperatures: mx.array) -> mx.array:
    """One token a row, [R] (uint32), from softmax(logits / temperature).

    Shapes: logits [R, V] (-inf excludes a token), keys [R, 2], temperatures [R], each at least `COLDEST` of
    `core.request`, so that nothing overflows.
    """
    scaled = logits.astype(mx.float32) * (1.0 / temperatures)[:, None]
    return mx.argmax(scaled + gumbel_rows(keys, logits.shape[-1]), axis=-1)


@cache
def _noise_of(width: int) -> Callable[[mx.array], mx.array]:
    return mx.vmap(partial(_noise, width))


def _noise(width: int, key: mx.array) -> mx.array:
    return mx.random.gumbel((width,), key=key)

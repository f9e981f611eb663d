"""What a model sees as its cache when one forward serves several rows, each with caches of its own.

`RowsCache` stands for one attention layer of all rows. Each row's keys and values go into the row's own
cache; what comes back is no array but a `Ragged` list, and masks are a `RaggedMask`: both mean
something only to our attention adapter. A model that wants to compute with them fails at once, which is what
the parity probe at load looks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RaggedMask:
    """One mask a row, as that row's cache made it: None, a word, or an array [n, columns]."""

    __slots__ = ("masks",)

    def __init__(self, masks: list[Any]) -> None:
        self.masks = masks


class Ragged:
    """One layer's keys (or values) of each row: arrays [1, H, columns, D] or quantised triples; None for idle slots."""

    __slots__ = ("cache", "rows")

    def __init__(self, rows: list[Any], cache: RowsCache) -> None:
        self.rows = rows
        self.cache = cache


class RowsCache:
    """One attention layer of several rows.

    Args:
        caches: each row's own cache for this layer; None for a slot that is idle.
        offset: tokens that each row holds, [R] (int32), for rotary positions.
        lengths: how many of the N positions fed now are each row's own, the rest is padding; None: all.
    """

    def __init__(self, caches: Sequence[Any], offset: mx.array, lengths: Sequence[int] | None) -> None:
        self.caches = caches
        self.offset = offset
        self.lengths = lengths

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> RaggedMask | None:  # noqa: N803 - mlx-lm's name
        """Each row's own mask for the positions that are fed now."""
        masks = [
            None
            if cache is None
            else cache.make_mask(self._length(r, N), return_array=return_array, window_size=window_size)
            for r, cache in enumerate(self.caches)
        ]
        return RaggedMask(masks) if any(mask is not None for mask in masks) else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Ragged, Ragged]:
        """Hand each row its own columns of keys and values [R, H, N, D]; what each row may look at."""
        count = len(self.caches)
        lengths = self.lengths
        held_keys: list[Any] = []
        held_values: list[Any] = []
        for r, (cache, k, v) in enumerate(zip(self.caches, keys.split(count), values.split(count), strict=True)):
            if cache is None:
                held = (None, None)
            elif lengths is None or lengths[r] == k.shape[2]:
                held = cache.update_and_fetch(k, v)
            else:
                held = cache.update_and_fetch(k[:, :, : lengths[r]], v[:, :, : lengths[r]])
            held_keys.append(held[0])
            held_values.append(held[1])
        return Ragged(held_keys, self), Ragged(held_values, self)

    def _length(self, row: int, width: int) -> int:
        return width if self.lengths is None else self.lengths[row]


def attend_as_called(  # noqa: PLR0917 - as mlx-lm declares it
    original: Callable[..., mx.array],
    queries: mx.array,
    keys: Ragged,
    values: Ragged,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attention row by row over each row's used columns, [R, H, N, D]; idle slots and padding get zeros.

    `original` is mlx-lm's own function, and the arguments are its; quantised rows take their own path there.
    """
    options: dict[str, Any] = {"scale": scale} if sinks is None else {"scale": scale, "sinks": sinks}
    cache = keys.cache
    count, heads, width, _ = queries.shape
    masks = mask.masks if isinstance(mask, RaggedMask) else [mask] * count
    out: list[mx.array] = []
    for r, query in enumerate(queries.split(count)):
        k, v = keys.rows[r], values.rows[r]
        length = cache._length(r, width)  # noqa: SLF001 - the same idea in two pieces
        if k is None:
            out.append(mx.zeros((1, heads, width, values_width(values)), queries.dtype))
            continue
        q = query if length == width else query[:, :, :length]
        seen = original(q, k, v, cache=cache.caches[r], mask=masks[r], **options)
        out.append(seen if length == width else mx.pad(seen, [(0, 0), (0, 0), (0, width - length), (0, 0)]))
    return mx.concatenate(out)


def values_width(values: Ragged) -> int:
    """Numbers a head of the values, from any row that holds some."""
    for row, cache in zip(values.rows, values.cache.caches, strict=True):
        if row is None:
            continue
        if isinstance(row, tuple | list):  # quantised: scales know how many groups there are
            return int(row[1].shape[-1]) * int(cache.group_size)
        return int(row.shape[-1])
    raise ValueError("no row of this step is live")

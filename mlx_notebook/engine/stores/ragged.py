"""What a model sees as its cache when one forward serves several rows, each with caches of its own.

`RowsCache` stands for one attention layer of all rows. Each row's keys and values go into the row's own
cache; what comes back is no array but a `Ragged` list, and masks are a `RaggedMask`: both mean
something only to our attention adapter. A model that wants to compute with them fails at once, which is what
the parity probe at load looks for.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class RaggedMask:
    """One mask a unit, as its cache made it: None, a word, or an array [n, columns]."""

    __slots__ = ("masks",)

    def __init__(self, masks: list[Any]) -> None:
        self.masks = masks


class Ragged:
    """One layer's keys (or values) of each unit: arrays [G, H, columns, D] or quantised triples; None where idle."""

    __slots__ = ("cache", "units")

    def __init__(self, units: list[Any], cache: RowsCache) -> None:
        self.units = units
        self.cache = cache


class RowsCache:
    """One attention layer of several rows.

    Args:
        units: caches, one for each row, or for several rows side by side; None for a row's place that is idle.
        sizes: rows of each unit; None: one each.
        offset: tokens that each row holds, [R] (int32), for rotary positions.
        lengths: how many of the N positions fed now are each row's own, the rest is padding; None: all.
    """

    def __init__(
        self, units: Sequence[Any], sizes: Sequence[int] | None, offset: mx.array, lengths: Sequence[int] | None
    ) -> None:
        self.units = units
        self.offset = offset
        self.lengths = lengths
        self._cuts: int | tuple[int, ...] = len(units) if sizes is None else tuple(accumulate(sizes))[:-1]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> RaggedMask | None:  # noqa: N803 - mlx-lm's name
        """Each unit's own mask for the positions that are fed now."""
        masks = [
            None
            if unit is None
            else unit.make_mask(self.length(at, N), return_array=return_array, window_size=window_size)
            for at, unit in enumerate(self.units)
        ]
        return RaggedMask(masks) if any(mask is not None for mask in masks) else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Ragged, Ragged]:
        """Hand each unit its own columns of keys and values [R, H, N, D]; what each may look at."""
        lengths = self.lengths
        held_keys: list[Any] = []
        held_values: list[Any] = []
        for at, (unit, k, v) in enumerate(zip(self.units, self.split(keys), self.split(values), strict=True)):
            if unit is None:
                held = (None, None)
            elif lengths is None or lengths[at] == k.shape[2]:
                held = unit.update_and_fetch(k, v)
            else:
                held = unit.update_and_fetch(k[:, :, : lengths[at]], v[:, :, : lengths[at]])
            held_keys.append(held[0])
            held_values.append(held[1])
        return Ragged(held_keys, self), Ragged(held_values, self)

    def split(self, array: mx.array) -> Sequence[mx.array]:
        """[R, ...] by units."""
        return array.split(self._cuts)

    def length(self, unit: int, width: int) -> int:
        """How many of `width` positions are a unit's own."""
        return width if self.lengths is None else self.lengths[unit]


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
    """Attention unit by unit over used columns, [R, H, N, D]; idle places and padding get zeros.

    `original` is mlx-lm's own function, and the arguments are its; quantised rows take their own path there.
    """
    options: dict[str, Any] = {"scale": scale} if sinks is None else {"scale": scale, "sinks": sinks}
    cache = keys.cache
    _, heads, width, _ = queries.shape
    masks = mask.masks if isinstance(mask, RaggedMask) else [mask] * len(cache.units)
    out: list[mx.array] = []
    for at, query in enumerate(cache.split(queries)):
        k, v = keys.units[at], values.units[at]
        length = cache.length(at, width)
        if k is None:
            out.append(mx.zeros((1, heads, width, _width_of(values)), queries.dtype))
            continue
        q = query if length == width else query[:, :, :length]
        seen = original(q, k, v, cache=cache.units[at], mask=masks[at], **options)
        out.append(seen if length == width else mx.pad(seen, [(0, 0), (0, 0), (0, width - length), (0, 0)]))
    return out[0] if len(out) == 1 else mx.concatenate(out)


def _width_of(values: Ragged) -> int:
    """Numbers a head of the values, from any unit that holds some."""
    for held, unit in zip(values.units, values.cache.units, strict=True):
        if held is None:
            continue
        if isinstance(held, tuple | list):  # quantised: scales know how many groups there are
            return int(held[1].shape[-1]) * int(unit.group_size)
        return int(held.shape[-1])
    raise ValueError("no row of this step is live")

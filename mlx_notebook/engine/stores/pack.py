"""Rows of about the same length side by side in one rectangle, for the steps till it is full.

Attention over one rectangle costs less than attention over its rows one after the other, as long as little of it
is padding. All rows of a pack advance together, so their ends are aligned: each step writes one column, and
what is masked is the padding in front. A pack is made of rows' own caches, or of other packs, by one copy (which
growing would have cost as well), never more than a layer at a time; a row that leaves it gets its columns
back, and a place that nobody takes is idle till rows are packed anew. Windows slide over the columns. A long pack
never gets full: its layers are widened in turn, one or so a step.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.caches import in_blocks, is_state, leaves, widened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.stores.store import Fed

MIN_WINDOW = 4 * BLOCK
"""Narrower windows stay by themselves: the columns over which they slide would be too much beside them."""


TOO_MUCH = 1.3
"""Columns of a pack over columns that its rows need, at most."""


class PackLayer:
    """One attention layer of a pack; to a model it is a cache of G rows that are fed one token at a time.

    Attributes:
        keys, values: [G, H, capacity, D]; columns `pads[r]` to `end` are row r's.
        window: tokens that may be looked at, None for all.
        offset: tokens that each row holds, [G], for rotary positions; set before each step.
    """

    def __init__(self, keys: mx.array, values: mx.array, end: int, pads: list[int], window: int | None) -> None:
        self.keys, self.values = keys, values
        self.end, self.pads, self.window = end, pads, window
        self.offset: mx.array | None = None

    @property
    def room(self) -> int:
        """Columns that are left."""
        return int(self.keys.shape[2]) - self.end

    @property
    def full(self) -> bool:
        """Whether no column is left."""
        return self.room <= 0

    def wider(self) -> int:
        """Columns that there would be after `widen`."""
        return int(self.keys.shape[2]) - self._first(self.end) + BLOCK

    def widen(self) -> None:
        """Copy to where there is room for a block more; what slid out of the window stays behind."""
        first, wide = self._first(self.end), self.wider()
        self.keys, self.values = (widened(array[..., first : self.end, :], wide) for array in (self.keys, self.values))
        self.end -= first
        self.pads = [max(0, pad - first) for pad in self.pads]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write a column [G, H, 1, D] and give all that may be looked at."""
        at = self.end
        self.keys[..., at : at + 1, :] = keys
        self.values[..., at : at + 1, :] = values
        self.end = at + 1
        first = self._first(self.end)
        return self.keys[..., first : self.end, :], self.values[..., first : self.end, :]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:  # noqa: N803, ARG002
        """For the next column: padding is masked, and what lies before a narrower window."""
        end = self.end + N
        first = self._first(end)
        shown = end - first
        narrow = max(0, shown - window_size) if window_size is not None else 0
        starts = [max(pad - first, narrow) for pad in self.pads]
        if not any(starts):
            return None
        return (mx.arange(shown) >= mx.array(starts)[:, None])[:, None, None, :]

    def columns(self, place: int) -> tuple[mx.array, mx.array]:
        """One row's columns in order, [1, H, n, D]; of a window the last ones."""
        first = max(self.pads[place], self._first(self.end))
        return self.keys[place : place + 1, :, first : self.end], self.values[place : place + 1, :, first : self.end]

    def _first(self, end: int) -> int:
        return 0 if self.window is None else max(0, end - self.window)


class Pack:
    """Some rows, side by side in every attention layer.

    Attributes:
        rows: by place; None where a row has left.
        layers: one a cache with columns, in the order of `leaves`.
    """

    def __init__(self, rows: Sequence[Fed]) -> None:
        self.rows: list[Fed | None] = list(rows)
        self.layers: list[PackLayer] = []

    @property
    def full(self) -> bool:
        """Whether the next step has no room."""
        return any(layer.full for layer in self.layers)

    @property
    def live(self) -> int:
        """How many rows are left."""
        return sum(row is not None for row in self.rows)

    def widen_ahead(self) -> None:
        """Before a step: widen a few layers, so that all have been by the time that the first would be full.

        One step that copies every column keeps its rows waiting for as long as two or three others. Short packs, of
        which a block more would be much, do get full.
        """
        a_step = ceil(len(self.layers) / BLOCK)
        soon = ceil(len(self.layers) / a_step)
        tight = [layer for layer in self.layers if layer.room <= soon]
        for layer in tight[:a_step]:
            need = sum(needed(row.fed, layer.window) for row in self.rows if row is not None)
            if len(self.rows) * layer.wider() <= TOO_MUCH * need:
                layer.widen()

    def hand_back(self, row: Fed) -> None:
        """Give a row its own columns, not evaluated yet, and let it go."""
        place = self.rows.index(row)
        for leaf, layer in zip(columned(row), self.layers, strict=True):
            keys, values = layer.columns(place)
            count = keys.shape[2]
            if isinstance(leaf, RotatingKVCache):
                wide = min(in_blocks(count), leaf.max_size)
                leaf.state = (widened(keys, wide), widened(values, wide), row.fed, leaf.keep, leaf.max_size, count)
            else:
                wide = in_blocks(count)
                leaf.keys, leaf.values, leaf.offset = widened(keys, wide), widened(values, wide), row.fed
        self.rows[place] = None

    def let_go(self, row: Fed) -> None:
        """Forget a row."""
        self.rows = [None if other is row else other for other in self.rows]

    def nbytes(self) -> int:
        """Bytes of all columns, idle and masked ones too."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


def pack_rows(groups: Sequence[Sequence[Fed]], old: Sequence[Pack]) -> list[Pack]:
    """A pack for each group; rows of old packs come from there, others from their own caches, which then hold nothing.

    Every row that is left in an old pack must be in one of the groups: those packs are of no use afterwards.
    """
    packs = [Pack(group) for group in groups]
    homes = {id(row): (pack, place) for pack in old for place, row in enumerate(pack.rows) if row is not None}
    own = {id(row): columned(row) for group in groups for row in group}
    for at in range(len(own[id(groups[0][0])]) if groups else 0):
        for pack, group in zip(packs, groups, strict=True):
            held = []
            for row in group:
                home = homes.get(id(row))
                held.append(_in_order(own[id(row)][at]) if home is None else home[0].layers[at].columns(home[1]))
            leaf = own[id(group[0])][at]
            layer = _side_by_side(held, leaf.max_size if isinstance(leaf, RotatingKVCache) else None)
            del held
            mx.eval(layer.keys, layer.values)
            pack.layers.append(layer)
            for row in group:
                own[id(row)][at].keys = own[id(row)][at].values = None
        for pack in old:  # what was copied goes at once: never more than a layer is there twice
            pack.layers[at].keys = pack.layers[at].values = mx.zeros(0)
    return packs


def columned(row: Fed) -> list[Any]:
    """The row's caches that hold columns."""
    return [leaf for leaf in leaves(row.cache) if not is_state(leaf)]


def packable(row: Fed) -> bool:
    """Whether the row's columns may stand beside others': plain keys and values, or a whole window of them."""
    found = columned(row)
    return (
        bool(found)
        and row.fed > 0
        and all(
            type(leaf) is KVCache or (type(leaf) is RotatingKVCache and leaf.keep == 0 and leaf.max_size >= MIN_WINDOW)
            for leaf in found
        )
    )


def needed(tokens: int, window: int | None = None) -> int:
    """Columns that a row of so many tokens needs for the next one."""
    return in_blocks(tokens + 1 if window is None else min(tokens + 1, window))


def alike(rows: Sequence[Fed], waste: float) -> list[list[Fed]]:
    """Rows in groups of which each would be a rectangle of at most `waste` times what its rows need."""
    groups: list[list[Fed]] = []
    sums: list[int] = []
    for row in sorted(rows, key=lambda row: -row.fed):
        need = needed(row.fed)
        if groups and (len(groups[-1]) + 1) * needed(groups[-1][0].fed) <= waste * (sums[-1] + need):
            groups[-1].append(row)
            sums[-1] += need
        else:
            groups.append([row])
            sums.append(need)
    return groups


def _in_order(leaf: Any) -> tuple[mx.array, mx.array]:
    """A row's own columns, oldest first."""
    if not isinstance(leaf, RotatingKVCache):
        keys, values = leaf.keys_and_values()
        return keys, values
    keys, values, offset, _, size, at = leaf.state
    if at < min(offset, keys.shape[2]):  # a ring: the oldest stands where the next would be written
        keys, values = (mx.concatenate([array[..., at:, :], array[..., :at, :]], axis=2) for array in (keys, values))
    else:
        keys, values = keys[..., :at, :], values[..., :at, :]
    return keys[..., -size:, :], values[..., -size:, :]


def _side_by_side(held: list[tuple[mx.array, mx.array]], window: int | None) -> PackLayer:
    """Columns of several rows, their ends aligned."""
    lengths = [keys.shape[2] for keys, _ in held]
    end = max(lengths)
    capacity = needed(end) if window is None or end < window else end + BLOCK
    pads = [end - length for length in lengths]
    arrays = []
    for which in (0, 1):
        _, heads, _, width = held[0][which].shape
        array = mx.zeros((len(held), heads, capacity, width), held[0][which].dtype)
        for place, (pad, own) in enumerate(zip(pads, held, strict=True)):
            array[place : place + 1, :, pad:end] = own[which]
        arrays.append(array)
    return PackLayer(arrays[0], arrays[1], end, pads, window)

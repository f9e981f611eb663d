"""The store `rows`: every row keeps its own caches, and one forward goes over all of them.

Joining is taking a row's caches as they are, leaving is letting go of them; nobody else's arrays are touched.
Attention is row by row over used columns (`ragged`), all else of the model runs on [R, N, ...]. Recurrent and
convolution state is the exception: it sits side by side in `StateBatch` while the same rows go on. Rows of about
the same length are packed into small rectangles from time to time (`pack`), where that is cheaper.

With `slots`, the batch always has that many places, idle ones included, and a row keeps its place: then
nothing about a step's shape depends on who else is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from mlx_notebook.engine.stores.caches import is_state, leaves, make_caches
from mlx_notebook.engine.stores.pack import TOO_MUCH, Pack, alike, needed, pack_rows, packable
from mlx_notebook.engine.stores.ragged import RowsCache
from mlx_notebook.engine.stores.state import StateBatch, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.stores.store import F, Fed


WASTE = 1.25
"""Columns of a pack over columns that its rows need, at most, when it is made."""

PATIENCE = 16
"""Steps after which rows that stand by themselves are looked at again."""


@dataclass(slots=True, eq=False)
class _Nobody:
    """A row without a request."""

    cache: list[Any]
    fed: int = 0


class RowsStore:
    """Rows of one model.

    Args:
        model: an mlx-lm model whose attention is routed to us.
        slots: places that the batch always has; None for as many as there are rows.
        waste: how much padding a pack may begin with; None to pack nothing, infinity to have all rows in one always.
    """

    def __init__(self, model: Any, slots: int | None = None, waste: float | None = WASTE) -> None:
        self.name = "rectangle" if waste == inf else "rows"
        self._model = model
        self._slots: list[Fed | None] = [None] * (slots or 0)
        self._waste = None if slots else waste
        self._packs: list[Pack] = []
        self._age = 0
        self._state: StateBatch | None = None
        self._last: list[Fed] = []
        self._zeros = _zero_state(model) if slots else []
        self._has_state = any(is_state(leaf) for leaf in leaves(make_caches(model)))

    def order(self, rows: Sequence[F]) -> list[F | None]:
        """Packed rows first, then the others as in the last step; with fixed slots, every row in its own."""
        mine = {id(row): row for row in rows}
        if self._slots:
            for row in rows:
                if row not in self._slots:
                    self._slots[self._slots.index(None)] = row
            return [mine.get(id(row)) for row in self._slots]
        place = {id(row): at for at, row in enumerate(self._last)}
        self._last = sorted(rows, key=lambda row: place.get(id(row), len(place)))
        self._pack(self._last)
        packed = [row for pack in self._packs for row in pack.rows]
        inside = set(map(id, packed))
        return [mine.get(id(row)) for row in packed] + [mine[id(row)] for row in self._last if id(row) not in inside]

    def step(self, places: Sequence[Fed | None], tokens: mx.array) -> mx.array:
        if not self._slots and len(places) == 1 and places[0] is not None:
            return self._alone(places[0], tokens)
        offset = mx.array([0 if row is None else row.fed for row in places], dtype=mx.int32)
        states = self._batched(tuple(places)).layers if self._has_state else []
        logits: mx.array = self._model(tokens, cache=_facades(places, self._packs, offset, None, states))
        return logits[:, -1, :]

    def _alone(self, row: Fed, tokens: mx.array) -> mx.array:
        """mlx-lm's plain graph on the row's own caches."""
        self.settle(row)
        logits: mx.array = self._model(tokens, cache=row.cache)
        return logits[:, -1, :]

    def prefill(self, rows: Sequence[Fed], tokens: mx.array, lengths: Sequence[int]) -> None:
        for row in rows:
            self.settle(row)
        if len(rows) == 1:
            self._model(tokens, cache=rows[0].cache)
            return
        ragged = None if len(set(lengths)) == 1 else list(lengths)
        offset = mx.array([row.fed for row in rows], dtype=mx.int32)
        states: list[ArraysCache] = []
        batch: StateBatch | None = None
        if self._has_state:
            batch = gather(tuple(rows), None, self._zeros)
            states = batch.layers
            for layer in states:
                layer.lengths = None if ragged is None else mx.array(ragged)
        self._model(tokens, cache=_facades(rows, (), offset, ragged, states))
        for row in rows:
            if batch is not None:
                batch.hand_back(row)

    def settle(self, row: Fed) -> None:
        if self._state is not None and row in self._state.slots:
            self._state.hand_back(row)
        for pack in self._packs:
            if row in pack.rows:
                pack.hand_back(row)
        self._let_go(row)

    def forget(self, row: Fed) -> None:
        self._let_go(row)
        self._last = [other for other in self._last if other is not row]
        self._slots = [None if other is row else other for other in self._slots]

    def _let_go(self, row: Fed) -> None:
        for pack in self._packs:
            pack.let_go(row)
        self._packs = [pack for pack in self._packs if pack.live]
        if self._state is not None and not self._state.let_go(row):
            self._state = None

    def warm(self, rows: int) -> int:
        store = RowsStore(self._model, None, self._waste)
        nobody = [_Nobody(make_caches(self._model)) for _ in range(rows)]
        for row in nobody:
            store.prefill([row], mx.zeros((1, 1), dtype=mx.int32), [1])
            row.fed = 1
        mx.eval(store.step(store.order(nobody), mx.zeros((rows, 1), dtype=mx.int32)))
        return rows

    def close(self) -> None:
        """As `Store.close`: all that it has is its rows'."""

    def held_bytes(self) -> int:
        """Bytes of what stands side by side."""
        packed = sum(pack.nbytes() for pack in list(self._packs))
        state = self._state
        if state is None:
            return packed
        return packed + sum(int(array.nbytes) for layer in state.layers for array in layer.cache if array is not None)

    # ------------------------------------------------------------ packs

    def _pack(self, rows: Sequence[Fed]) -> None:
        """Pack rows anew, where it is time to; rows that rest, and the last of a pack, stand by themselves."""
        going = set(map(id, rows))
        for pack in self._packs:
            for row in pack.rows:
                if row is not None and (id(row) not in going or pack.live == 1):
                    pack.hand_back(row)
        self._packs = [pack for pack in self._packs if pack.live]
        for pack in self._packs:
            pack.widen_ahead()
        self._age += 1
        if self._waste is None or not self._due(rows, self._waste):
            return
        self._age = 0
        groups = [group for group in alike([row for row in rows if packable(row)], self._waste) if len(group) > 1]
        stay = [pack for pack in self._packs if _is_as_it_would_be(pack, groups)]
        kept = {id(row) for pack in stay for row in pack.rows}
        groups = [group for group in groups if id(group[0]) not in kept]
        moving = {id(row) for group in groups for row in group}
        leaving = [pack for pack in self._packs if pack not in stay]
        for pack in leaving:
            for row in pack.rows:
                if row is not None and id(row) not in moving:
                    pack.hand_back(row)
        self._packs = stay + pack_rows(groups, leaving)

    def _due(self, rows: Sequence[Fed], waste: float) -> bool:
        inside = {id(row) for pack in self._packs for row in pack.rows}
        loose = [row for row in rows if id(row) not in inside]
        if any(pack.full or _waste_of(pack) > TOO_MUCH for pack in self._packs):
            return True
        if not self._packs or waste == inf:
            return len(loose) > (0 if self._packs else 1)
        return bool(loose) and self._age >= PATIENCE

    def _batched(self, places: tuple[Fed | None, ...]) -> StateBatch:
        state = self._state
        if state is not None and state.slots == places:
            return state
        if state is not None:
            for row in state.slots:
                if row is not None and row not in places:  # it rests, and may come back or be kept
                    state.hand_back(row)
        self._state = gather(places, state, self._zeros)
        return self._state


def _is_as_it_would_be(pack: Pack, groups: Sequence[Sequence[Fed]]) -> bool:
    rows = set(map(id, pack.rows))
    return not pack.full and pack.live == len(pack.rows) and any(rows == set(map(id, group)) for group in groups)


def _waste_of(pack: Pack) -> float:
    """Columns of the longest row in every place, over what the rows that are left need; 1 while nobody left."""
    lengths = [row.fed for row in pack.rows if row is not None]
    if len(lengths) == len(pack.rows):
        return 1.0
    return len(pack.rows) * needed(max(lengths)) / sum(map(needed, lengths))


class _Facades:
    """Makes what the model gets as its cache, one facade a layer."""

    def __init__(
        self,
        places: Sequence[Fed | None],
        packs: Sequence[Pack],
        offset: mx.array,
        lengths: Sequence[int] | None,
        states: Sequence[ArraysCache],
    ) -> None:
        self._packs = packs
        count = sum(len(pack.rows) for pack in packs)
        self._loose = places[count:]
        self._sizes = [*(len(pack.rows) for pack in packs), *(1 for _ in self._loose)] if packs else None
        self._offset, self._lengths = offset, lengths
        self._states = iter(states)
        self._columned = 0

    def of(self, shape: Any, own: Sequence[Any]) -> Any:
        """The facade of one layer: `shape` is any row's cache for it, `own` those of the rows by themselves."""
        if is_state(shape):
            return next(self._states)
        if isinstance(shape, CacheList):
            parts = [
                self.of(part, [None if cache is None else cache.caches[at] for cache in own])
                for at, part in enumerate(shape.caches)
            ]
            return CacheList(*parts)
        layers = [pack.layers[self._columned] for pack in self._packs]
        self._columned += 1
        if len(layers) == 1 and not own:
            layers[0].offset = self._offset
            return layers[0]
        return RowsCache([*layers, *own], self._sizes, self._offset, self._lengths)

    def all(self, shapes: Sequence[Any]) -> list[Any]:
        """One a layer."""
        return [
            self.of(shape, [None if row is None else row.cache[layer] for row in self._loose])
            for layer, shape in enumerate(shapes)
        ]


def _facades(
    places: Sequence[Fed | None],
    packs: Sequence[Pack],
    offset: mx.array,
    lengths: Sequence[int] | None,
    states: Sequence[ArraysCache],
) -> list[Any]:
    shapes = next(row.cache for row in places if row is not None)
    return _Facades(places, packs, offset, lengths, states).all(shapes)


def _zero_state(model: Any) -> list[list[mx.array]]:
    """Zeros [1, ...] for every array of every state layer: shapes from a forward that is never evaluated."""
    caches = make_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    return [[mx.zeros(array.shape, array.dtype) for array in leaf.cache] for leaf in leaves(caches) if is_state(leaf)]

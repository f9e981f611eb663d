"""The store `rows`: every row keeps its own caches, and one forward goes over all of them.

Joining is taking a row's caches as they are, leaving is letting go of them; nobody else's arrays are touched.
Attention is row by row over used columns (`ragged`), all else of the model runs on [R, N, ...]. Recurrent and
convolution state is the exception: it sits side by side in `StateBatch` while the same rows go on.

With `slots`, the batch always has that many places, idle ones included, and a row keeps its place: then
nothing about a step's shape depends on who else is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList

from mlx_notebook.engine.stores.caches import is_state, leaves, make_caches
from mlx_notebook.engine.stores.ragged import RowsCache
from mlx_notebook.engine.stores.state import StateBatch, gather

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlx_notebook.engine.stores.store import F, Fed


class RowsStore:
    """Rows of one model.

    Args:
        model: an mlx-lm model whose attention is routed to us.
        slots: places that the batch always has; None for as many as there are rows.
    """

    name = "rows"

    def __init__(self, model: Any, slots: int | None = None) -> None:
        self._model = model
        self._slots: list[Fed | None] = [None] * (slots or 0)
        self._state: StateBatch | None = None
        self._last: list[Fed] = []
        self._zeros = _zero_state(model) if slots else []
        self._has_state = any(is_state(leaf) for leaf in leaves(make_caches(model)))

    def order(self, rows: Sequence[F]) -> list[F | None]:
        """Those of the last step first, in their order; with fixed slots, every row in its own."""
        if self._slots:
            for row in rows:
                if row not in self._slots:
                    self._slots[self._slots.index(None)] = row
            return [next((row for row in rows if row is held), None) for held in self._slots]
        place = {id(row): at for at, row in enumerate(self._last)}
        ordered = sorted(rows, key=lambda row: place.get(id(row), len(place)))
        self._last = list(ordered)
        return list(ordered)

    def step(self, places: Sequence[Fed | None], tokens: mx.array) -> mx.array:
        live = [row for row in places if row is not None]
        if not self._slots and len(live) == 1:
            return self._alone(live[0], tokens)
        offset = mx.array([0 if row is None else row.fed for row in places], dtype=mx.int32)
        states = self._batched(tuple(places)).layers if self._has_state else []
        logits: mx.array = self._model(tokens, cache=_facades(places, offset, None, states))
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
        self._model(tokens, cache=_facades(rows, offset, ragged, states))
        for row in rows:
            if batch is not None:
                batch.hand_back(row)

    def settle(self, row: Fed) -> None:
        if self._state is not None and row in self._state.slots:
            self._state.hand_back(row)
            self._let_go(row)

    def forget(self, row: Fed) -> None:
        self._let_go(row)
        self._last = [other for other in self._last if other is not row]
        self._slots = [None if other is row else other for other in self._slots]

    def _let_go(self, row: Fed) -> None:
        if self._state is not None and not self._state.let_go(row):
            self._state = None

    def held_bytes(self) -> int:
        """Bytes of state arrays that stand side by side."""
        state = self._state
        if state is None:
            return 0
        return sum(array.nbytes for layer in state.layers for array in layer.cache if array is not None)

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


def _facades(
    places: Sequence[Fed | None], offset: mx.array, lengths: Sequence[int] | None, states: Sequence[ArraysCache]
) -> list[Any]:
    """What the model gets as its cache: one facade a layer."""
    queue = iter(states)
    width = next(len(row.cache) for row in places if row is not None)
    return [
        _facade([None if row is None else row.cache[layer] for row in places], offset, lengths, queue)
        for layer in range(width)
    ]


def _facade(own: list[Any], offset: mx.array, lengths: Sequence[int] | None, states: Iterator[ArraysCache]) -> Any:
    shape = next(cache for cache in own if cache is not None)
    if is_state(shape):
        return next(states)
    if isinstance(shape, CacheList):
        return CacheList(
            *(
                _facade([None if cache is None else cache.caches[at] for cache in own], offset, lengths, states)
                for at in range(len(shape.caches))
            )
        )
    return RowsCache(own, offset, lengths)


def _zero_state(model: Any) -> list[list[mx.array]]:
    """Zeros [1, ...] for every array of every state layer: shapes from a forward that is never evaluated."""
    caches = make_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    return [[mx.zeros(array.shape, array.dtype) for array in leaf.cache] for leaf in leaves(caches) if is_state(leaf)]

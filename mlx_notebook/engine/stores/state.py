"""Recurrent and convolution state of the rows of a batch: arrays [R, ...], kept together while the same rows go on.

When rows join or leave, the arrays are gathered anew: one copy of a state whose size does not depend on
the rows' lengths. A row that leaves gets arrays of its own, contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from mlx_notebook.engine.stores.caches import is_state, leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.stores.store import Fed


class StateBatch:
    """The state layers of some rows, side by side.

    Args:
        slots: the rows in their places; None for an idle place, which holds zeros.
        layers: one batched cache a state layer, in the order of `leaves`.
    """

    def __init__(self, slots: tuple[Fed | None, ...], layers: list[ArraysCache]) -> None:
        self.slots = slots
        self.layers = layers

    def hand_back(self, row: Fed) -> None:
        """Give a row its own arrays; not evaluated yet, so that no step waits for it."""
        place = self.slots.index(row)
        own = [leaf for leaf in leaves(row.cache) if is_state(leaf)]
        for leaf, layer in zip(own, self.layers, strict=True):
            leaf.cache = [_own(array, place) for array in layer.cache]

    def let_go(self, row: Fed) -> bool:
        """Forget the row; whether any is left. Its place is idle until the next gathering."""
        self.slots = tuple(None if other is row else other for other in self.slots)
        return any(other is not None for other in self.slots)


def _own(array: mx.array | None, place: int) -> mx.array | None:
    return None if array is None else mx.contiguous(array[place : place + 1])


def gather(slots: tuple[Fed | None, ...], old: StateBatch | None, zeros: Sequence[list[mx.array]]) -> StateBatch:
    """The state of these rows side by side: rows of `old` from there, others from their own caches, which then let go.

    `zeros` are arrays [1, ...] of each layer, for idle places and rows that have no state yet; empty if not known:
    then only all rows together may lack one.
    """
    first = next(row for row in slots if row is not None)
    count = sum(is_state(leaf) for leaf in leaves(first.cache))
    layers = []
    for at in range(count):
        size = len(_state_leaf(first, at).cache)
        layer = ArraysCache(size)
        layer.cache = [_column(slots, old, at, part, zeros) for part in range(size)]
        layers.append(layer)
    for row in slots:
        if row is not None:
            for at in range(count):
                leaf = _state_leaf(row, at)
                leaf.cache = [None] * len(leaf.cache)
    return StateBatch(slots, layers)


def _column(
    slots: tuple[Fed | None, ...], old: StateBatch | None, at: int, part: int, zeros: Sequence[list[mx.array]]
) -> mx.array | None:
    """One array of one layer for all places: pieces side by side, then taken in order."""
    kept = None if old is None else old.layers[at].cache[part]
    old_slots = () if old is None or kept is None else old.slots
    pieces: list[mx.array] = [] if kept is None else [kept]
    own: dict[int, mx.array] = {}
    for place, row in enumerate(slots):
        if row is not None and row not in old_slots and (array := _state_leaf(row, at).cache[part]) is not None:
            own[place] = array
    empty = [p for p, row in enumerate(slots) if p not in own and (row is None or row not in old_slots)]
    if not pieces and not own and not zeros:
        return None
    order: list[int] = []
    total = 0 if kept is None else kept.shape[0]
    blank = total
    if empty:
        like = zeros[at][part] if zeros else mx.zeros_like((pieces or list(own.values()))[0][:1])
        pieces.append(like)
        total += 1
    for place, row in enumerate(slots):
        if place in own:
            pieces.append(own[place])
            order.append(total)
            total += 1
        elif row is not None and row in old_slots:
            order.append(old_slots.index(row))
        else:
            order.append(blank)
    together = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
    return together if order == list(range(total)) else together[mx.array(order)]


def _state_leaf(row: Fed, at: int) -> Any:
    return [leaf for leaf in leaves(row.cache) if is_state(leaf)][at]

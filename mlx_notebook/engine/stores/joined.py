"""Projections of one input as one product: for steps whose time is the number of launches, not the work.

Queries, keys and values are three products of the same input, gate and up are two. `joined` gives a twin of a model
in which each such group is one product and its parts are slices. The twin is ours; of the caller's model nothing
changes but where the weights lie: they become slices of the group's one array, so that nothing is held twice.

A part that is asked with another input than its siblings computes its group anew: the names below only say where to
look, no result depends on how a model uses them.
"""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.stores.late_rope import Turns
    from mlx_notebook.engine.stores.late_sum import Sums

    Split = Callable[[mx.array, list[int]], Sequence[mx.array]]

ROPE = "rope"
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def joined(model: Any, split: Split, turns: Turns | None = None, sums: Sums | None = None) -> Any:
    """A twin of the model with sibling projections joined; plain `nn.Linear` only, others stay as they are.

    Args:
        model: an mlx-lm model, or a part of one.
        split: gives the parts of a product [..., n] cut at these columns.
        turns: takes over the model's ropes, where that can be; None leaves them.
        sums: takes over the sums between a model's blocks and norms, likewise.
    """
    twin = copy.copy(model)
    for key, child in model.items():
        is_rope = key == ROPE and isinstance(child, Module)
        twin[key] = turns.rope(child) if is_rope and turns is not None else _twin_of(child, split, turns, sums)
    for names in SIBLINGS:
        linears = [model.get(name) for name in names]
        if _alike(linears):
            group = _Group(linears, split)
            for at, name in enumerate(names):
                twin[name] = _Part(group, at)
    return twin if sums is None else sums.instead_of(twin)


def _twin_of(child: Any, split: Split, turns: Turns | None, sums: Sums | None) -> Any:
    if isinstance(child, Module):
        return joined(child, split, turns, sums)
    if isinstance(child, list | tuple):
        return type(child)(_twin_of(one, split, turns, sums) for one in child)
    if isinstance(child, dict):
        return {key: _twin_of(one, split, turns, sums) for key, one in child.items()}
    return child


def _alike(linears: Sequence[Any]) -> bool:
    if not all(type(linear) is Linear for linear in linears):
        return False
    kinds = {(one.weight.shape[1], one.weight.dtype, "bias" in one) for one in linears}
    return len(kinds) == 1


class _Group:
    """The joined weights of some linear layers; the last product, until all of its parts were taken."""

    def __init__(self, linears: Sequence[Any], split: Split) -> None:
        self._split = split
        self._cuts = list(accumulate(one.weight.shape[0] for one in linears))[:-1]
        self._last = len(linears) - 1
        self._weight = mx.concatenate([one.weight for one in linears])
        self._bias = mx.concatenate([one.bias for one in linears]) if "bias" in linears[0] else None
        for one, weight in zip(linears, mx.split(self._weight, self._cuts), strict=True):
            one.weight = weight
        mx.eval(self._weight, self._bias, [one.weight for one in linears])
        self._input: mx.array | None = None
        self._parts: Sequence[mx.array] = ()

    def part(self, at: int, x: mx.array) -> mx.array:
        """The product [..., n] of one of them with x [..., D]."""
        if x is not self._input:
            weight = self._weight.T
            product = x @ weight if self._bias is None else mx.addmm(self._bias, x, weight)
            self._input, self._parts = x, self._split(product, self._cuts)
        found = self._parts[at]
        if at == self._last:  # asked last as a rule; what is being traced must not outlive its trace
            self._input, self._parts = None, ()
        return found


class _Part:
    """Stands where a linear layer stood."""

    __slots__ = ("_at", "_group")

    def __init__(self, group: _Group, at: int) -> None:
        self._group = group
        self._at = at

    def __call__(self, x: mx.array) -> mx.array:
        return self._group.part(self._at, x)

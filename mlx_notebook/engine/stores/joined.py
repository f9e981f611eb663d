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

    from mlx_notebook.engine.stores.late import Late

    Split = Callable[[mx.array, list[int]], Sequence[Any]]

ROPE = "rope"
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def joined(model: Any, split: Split, late: Late | None = None) -> Any:
    """A twin of the model with sibling projections joined; plain `nn.Linear` only, others stay as they are.

    Args:
        model: an mlx-lm model, or a part of one.
        split: gives the parts of a product [..., n] cut at these columns.
        late: takes over the model's ropes, where that can be; None leaves them.
    """
    twin = copy.copy(model)
    for key, child in model.items():
        is_rope = key == ROPE and isinstance(child, Module)
        twin[key] = late.rope(child) if is_rope and late is not None else _twin_of(child, split, late)
    for names in SIBLINGS:
        linears = [model.get(name) for name in names]
        if _alike(linears):
            group = _Group(linears, split)
            for at, name in enumerate(names):
                twin[name] = _Part(group, at)
    for name, child in twin.items():
        if type(child) is Linear:
            twin[name] = _Single(child)
    return twin


def _twin_of(child: Any, split: Split, late: Late | None) -> Any:
    if isinstance(child, Module):
        return joined(child, split, late)
    if isinstance(child, list | tuple):
        return type(child)(_twin_of(one, split, late) for one in child)
    if isinstance(child, dict):
        return {key: _twin_of(one, split, late) for key, one in child.items()}
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
        self.weight = mx.concatenate([one.weight for one in linears])
        self._bias = mx.concatenate([one.bias for one in linears]) if "bias" in linears[0] else None
        for one, weight in zip(linears, mx.split(self.weight, self._cuts), strict=True):
            one.weight = weight
        mx.eval(self.weight, self._bias, [one.weight for one in linears])
        self._across = _across(self.weight)
        self._input: mx.array | None = None
        self._parts: Sequence[Any] = ()

    def part(self, at: int, x: mx.array) -> Any:
        """The product [..., n] of one of them with x [..., D]."""
        if x is not self._input:
            self._input, self._parts = x, self._split(_product(x, self._across, self._bias), self._cuts)
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

    @property
    def joined(self) -> mx.array:
        """The weights of all the group's layers, [n, D]."""
        return self._group.weight

    def __call__(self, x: mx.array) -> Any:
        return self._group.part(self._at, x)


class _Single:
    """Stands where a linear layer without siblings stood."""

    __slots__ = ("_across", "_bias")

    def __init__(self, linear: Linear) -> None:
        self._across = _across(linear.weight)
        self._bias = linear.bias if "bias" in linear else None

    def __call__(self, x: mx.array) -> mx.array:
        return _product(x, self._across, self._bias)


def _across(weight: mx.array) -> mx.array:
    """The weight transposed, a view: once, not an operation more at every step."""
    view = weight.T
    mx.eval(view)
    return view


def _product(x: mx.array, across: mx.array, bias: mx.array | None) -> mx.array:
    return x @ across if bias is None else mx.addmm(bias, x, across)

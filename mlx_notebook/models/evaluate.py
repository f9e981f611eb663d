"""Evaluates every array that a model holds, in groups, on the calling thread.

A lazy MLX array can only be evaluated by the thread that made it. Rotary frequencies are lazy,
private, and not among `parameters()`; missing one breaks the first step on another thread.
"""

from __future__ import annotations

import functools
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Large enough to keep the device busy, small enough to stop between groups and to bound what a conversion holds twice.
GROUP_BYTES = 256 * 1024 * 1024

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType)


def reachable_arrays(root: Any) -> Iterator[Any]:
    """Every MLX array reachable from `root`: in containers, attributes (private ones too), partials and closures."""
    import mlx.core as mx

    seen: set[int] = set()
    pending: list[Any] = [root]
    kept: list[Any] = []  # containers made on the way must live until the end, or their ids could be reused
    while pending:
        value = pending.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, mx.array):
            yield value
            continue
        inner = list(_inside(value))
        kept.append(inner)
        pending.extend(inner)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # a cell that was never filled
                continue
        yield from value.__defaults__ or ()
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    yield from getattr(value, "__dict__", {}).values()
    for cls in type(value).__mro__:
        for name in _slots(cls):
            if hasattr(value, name):
                yield getattr(value, name)


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(n for n in names if n not in {"__dict__", "__weakref__"} and not n.startswith("__"))


def evaluate_everything(model: Any, *, check_cancel: Callable[[], None] | None = None) -> int:
    """Evaluate all arrays reachable from `model` on this thread; the bytes that they hold.

    Args:
        model: an mlx-lm model, or anything that holds arrays.
        check_cancel: called between groups; what it raises ends the work.
    """
    arrays = list(reachable_arrays(model))
    for group in grouped(arrays, lambda a: int(a.nbytes)):
        if check_cancel is not None:
            check_cancel()
        _evaluate(group)
    return sum(int(a.nbytes) for a in arrays)


def grouped(items: list[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    """Items in order, cut into groups of about `GROUP_BYTES`."""
    group: list[Any] = []
    held = 0
    for item in items:
        group.append(item)
        held += size(item)
        if held >= GROUP_BYTES:
            yield group
            group, held = [], 0
    if group:
        yield group


def _evaluate(arrays: list[Any]) -> None:
    import mlx.core as mx

    mx.eval(arrays)

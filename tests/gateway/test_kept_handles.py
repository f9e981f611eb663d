"""Handles reachable by number: how many, which, and what keeping one more costs."""

from __future__ import annotations

from typing import Any

from mlx_notebook.gateway.registry import KEPT_HANDLES, LOOKS, Registry
from tests.gateway.interrupting import at_every_point


class Kept:
    """As much of a handle as the registry looks at; counts the looks."""

    looks = 0

    def __init__(self, number: int, *, over: bool) -> None:
        self.id = number
        self.over = over

    def done(self) -> bool:
        Kept.looks += 1
        return self.over


def keep(registry: Registry, numbers: range, *, over: bool) -> list[Any]:
    handles: list[Any] = [Kept(number, over=over) for number in numbers]
    for handle in handles:
        registry.keep(handle)
    return handles


def test_the_oldest_finished_ones_are_let_go_and_open_ones_never() -> None:
    registry = Registry()
    first = keep(registry, range(10), over=False)
    keep(registry, range(10, 2_000), over=True)
    kept = list(registry.handles())
    assert kept[:10] == first
    assert [handle.id for handle in kept[10:]] == list(range(2_000 - len(kept) + 10, 2_000))
    assert len(kept) == KEPT_HANDLES
    assert registry.let_go(10)
    assert not registry.let_go(5)
    assert registry.live_handles() == first


def test_handles_that_end_later_are_let_go_then() -> None:
    registry = Registry()
    opened = keep(registry, range(3_000), over=False)
    assert len(list(registry.handles())) == 3_000
    for handle in opened:
        handle.over = True
    keep(registry, range(3_000, 4_000), over=True)
    assert len(list(registry.handles())) == KEPT_HANDLES


def test_keeping_one_more_looks_at_few_however_many_are_open() -> None:
    registry = Registry()
    keep(registry, range(5_000), over=False)
    Kept.looks = 0
    keep(registry, range(5_000, 5_001), over=False)
    assert Kept.looks == LOOKS


def test_an_interrupt_anywhere_in_keeping_loses_no_handle_and_the_points_are_few() -> None:
    registry = Registry()
    keep(registry, range(2_000), over=False)
    for handle in registry.handles():
        handle.over = True  # type: ignore[attr-defined]
    numbers = iter(range(2_000, 4_000))
    points = 0
    for _where in at_every_point(lambda: keep(registry, range(number := next(numbers), number + 1), over=False)):
        points += 1
        assert points < 200
    assert points > LOOKS
    kept = [handle.id for handle in registry.live_handles()]
    assert kept == sorted(kept)
    keep(registry, range(4_000, 6_000), over=True)
    assert len(list(registry.handles())) == KEPT_HANDLES

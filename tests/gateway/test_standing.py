"""Whoever forks waits till every engine stands between two steps; then they go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mlx_notebook.gateway import standing
from mlx_notebook.gateway.registry import forks
from mlx_notebook.gateway.standing import Stand, StandingPlace
from tests.gateway.fakes import Stepped, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


class Synchronized(Stepped):
    """Counts how often it was waited for."""

    count = 0

    def synchronize(self) -> None:
        self.count += 1


def test_a_fork_waits_for_the_step_that_is_under_way(gateway_of: Make) -> None:
    backend = Synchronized()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=3)
    backend.until("decode")
    forked, over = threading.Event(), threading.Event()

    def fork() -> None:
        forks.before()
        forked.set()
        over.wait()
        forks.in_parent()

    forking = in_thread(fork)
    wait_for(lambda: len(gateway._engine._standing._asked) == 1)
    assert not forked.is_set()
    before = backend.count
    backend.go()
    forked.wait()
    assert backend.count == before + 1  # nothing was in flight
    assert backend._points.empty()  # it stands before nothing: it stands still
    assert not row.done()
    over.set()
    forking.result()
    backend.free()
    assert row.result().generated_tokens == 3


def test_an_idle_engine_and_a_closed_one_are_no_hindrance(gateway_of: Make) -> None:
    idle, closed = gateway_of(), gateway_of()
    closed.close()
    forks.before()
    forks.in_parent()
    assert idle.generate("a", max_tokens=1).finish_reason == "length"


def test_a_callback_may_fork(gateway_of: Make) -> None:
    def on_token(*_: object) -> None:
        forks.before()
        forks.in_parent()

    assert gateway_of().submit("a", on_token=on_token, max_tokens=3).result().generated_tokens == 3


def test_two_threads_may_fork_at_once(gateway_of: Make) -> None:
    gateway = gateway_of()
    rows = [gateway.submit("a", max_tokens=20) for _ in range(5)]

    def fork() -> None:
        for _ in range(20):
            forks.before()
            forks.in_parent()

    for forking in [in_thread(fork) for _ in range(3)]:
        forking.result()
    assert [row.result().generated_tokens for row in rows] == [20] * 5


def test_neither_waits_for_ever(gateway_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "PATIENCE_S", 0.01)
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=2)
    backend.next()
    forks.before()  # the engine does not come back from its native call
    forks.in_parent()
    backend.free()
    assert row.result().generated_tokens == 2
    place, stand = StandingPlace(), Stand()
    place.ask(stand)
    place.visit(lambda: None)  # whoever asked never says that it may go on
    assert stand.standing.is_set()


def test_an_engine_that_ends_lets_the_fork_go_on(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    gateway.submit("a", max_tokens=2)
    backend.next()
    closing = in_thread(gateway.close)
    wait_for(lambda: gateway.closed)
    forking = in_thread(forks.before)
    wait_for(lambda: len(gateway._engine._standing._asked) == 1)
    backend.free()
    forking.result()
    closing.result()
    forks._stands.clear()

"""Standing still while the process is forked.

A child gets a copy of every lock as it is at that moment, and none of the threads that would open it. MLX's
allocator has such a lock, taken for every array that comes or goes: a child that was forked in the middle of
a step can hang as soon as it frees an array, at its exit at the latest. So whoever forks first waits till
every engine stands between two steps with nothing in flight.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from mlx_notebook.bell import Latch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mlx_notebook.gateway.thread import Engine

PATIENCE_S = 10.0
"""How long a fork waits for an engine inside one long native call or user function, and an engine for a fork."""


class Stand:
    """One request to stand still: `standing` goes up when the engine does, `go_on` when it may move again."""

    def __init__(self) -> None:
        self.standing = Latch()
        self.go_on = Latch()


class StandingPlace:
    """Where one engine is asked to stand still, and does."""

    def __init__(self) -> None:
        self._asked: deque[Stand] = deque()

    def ask(self, stand: Stand) -> None:
        """Have the engine stand at its next `visit` (any thread)."""
        self._asked.append(stand)

    def visit(self, synchronize: Callable[[], None]) -> None:
        """Stand still as long as anybody asks (engine thread, between two native calls)."""
        while self._asked:
            stand = self._asked.popleft()
            if not stand.go_on.is_set():
                synchronize()
                stand.standing.set()
                stand.go_on.wait(PATIENCE_S)

    def leave(self) -> None:
        """The engine ends: nobody needs to wait for it."""
        while self._asked:
            self._asked.popleft().standing.set()


class Forks:
    """What happens around a fork, on the thread that forks.

    Args:
        engines: gives the engines of this process.
    """

    def __init__(self, engines: Callable[[], Iterable[Engine]]) -> None:
        self._engines = engines
        self._stands: dict[int, list[Stand]] = {}

    def before(self) -> None:
        """Wait till every engine stands still, or has been given time enough to."""
        stands = self._stands.setdefault(threading.get_ident(), [])
        for engine in self._engines():
            stands.append(Stand())
            engine.stand_still(stands[-1])
        end = time.monotonic() + PATIENCE_S
        for stand in stands:
            stand.standing.wait(max(0.0, end - time.monotonic()))

    def in_parent(self) -> None:
        """Let them go on."""
        for stand in self._stands.pop(threading.get_ident(), ()):
            stand.go_on.set()

    def in_child(self) -> None:
        """Nobody stands here."""
        self._stands = {}

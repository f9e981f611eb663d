"""Waking threads that wait, without sharing a lock with them.

`threading.Event` and `Condition` take their lock in Python code: an interrupt that lands between the
acquiring and the `with` block leaves that lock held for ever, and the engine thread, which must take it
to say that a row is over, would never return. Here each waiter sleeps on a lock of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Bell:
    """Something may have changed: everybody who waits looks again. Any thread may ring and wait."""

    def __init__(self) -> None:
        self._waiters: deque[threading.Lock] = deque()

    def ring(self) -> None:
        """Wake whoever waits now; never blocks."""
        while self._waiters:
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another thread rang at the same moment
                return
            waiter.release()

    def wait_until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Sleep till a ring after which `true()` holds, or till the time has passed; what `true()` says then."""
        if true():
            return True
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if not true():  # asked again: what rang before we stood in the list did not wake us
            waiter.acquire(timeout=seconds)
        with contextlib.suppress(ValueError):  # it was rung
            self._waiters.remove(waiter)
        return true()


class Latch:
    """A flag to wait for, as `threading.Event` is."""

    def __init__(self) -> None:
        self._up = False
        self._bell = Bell()

    def is_set(self) -> bool:
        """Whether the flag is up."""
        return self._up

    def set(self) -> None:
        """Put the flag up and wake everybody who waits for it."""
        self._up = True
        self._bell.ring()

    def clear(self) -> None:
        """Put the flag down."""
        self._up = False

    def wait(self, seconds: float) -> bool:
        """Sleep till the flag is up or the time has passed; whether it is up."""
        return self._bell.wait_until(self.is_set, seconds)

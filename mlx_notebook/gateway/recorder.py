"""One recorder an engine, for any number of views: the log, sorted once, when somebody looks.

It costs nothing until the first view asks, and nothing while none does. A view that comes late finds what the
log still holds.

Threads: anybody may call; the lock is held while records are sorted in or read, never by the engine thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mlx_notebook.core.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.ring import Ring

KEEP = 200_000
"""Tokens that a live recording keeps; it lets the oldest go."""


class Recorder:
    """Args: ring: gives the log, or None before there is one."""

    def __init__(self, ring: Callable[[], Ring | None]) -> None:
        self.lock = threading.RLock()
        self.recording = Recording()
        self._ring = ring
        self._next = 0

    def refresh(self) -> Recording:
        """Sort in what came since; the recording (read it under `lock` where another thread may refresh)."""
        with self.lock:
            ring = self._ring()
            if ring is not None and ring.recorded > self._next:
                taken = ring.since(self._next)
                self._next = taken.first + len(taken)
                self.recording.take(taken.columns, taken.missed)
                self.recording.trim(KEEP)
            return self.recording

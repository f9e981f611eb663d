"""What callers hand to the engine thread: pieces of work, and the rows that are open, under one lock.

Threads: any thread may call anything here. The lock is held for table look-ups only. Once closed,
nothing more is taken in, and whoever closes gets what was left, so that no row can fall between.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from mlx_notebook.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.gateway.record import RowRecord

    Work = Callable[[int], None]


class Intake:
    """An inbox with a table of open rows.

    Args:
        max_queued: how many rows may wait to be opened.
    """

    def __init__(self, max_queued: int) -> None:
        self.max_queued = max_queued
        self.submitted = 0
        self.queued = 0
        self.closed = False
        self.idle = threading.Event()
        self.idle.set()
        self._changed = threading.Condition()
        self._work: deque[Work] = deque()
        self._open: dict[int, RowRecord] = {}
        self._unstarted: dict[int, Request] = {}

    # ------------------------------------------------------------ callers

    def submit(self, request: Request, record: RowRecord, work: Work) -> bool:
        """Take a row in, with the work that announces it; False if closed. QueueFull names the numbers."""
        with self._changed:
            if self.closed:
                return False
            if self.queued >= self.max_queued:
                raise QueueFull(
                    f"{self.queued} rows wait and max_queued is {self.max_queued}:"
                    " wait for some to finish, or submit fewer at a time.",
                    queued=self.queued,
                    limit=self.max_queued,
                )
            self.queued += 1
            self.submitted += 1
            self.idle.clear()
            self._open[record.id] = record
            self._unstarted[record.id] = request
            self._work.append(work)
            self._changed.notify()
        return True

    def put(self, work: Work) -> bool:
        """Have `work(at_ns)` run on the engine thread between two steps; False if nobody will."""
        with self._changed:
            if self.closed:
                return False
            self._work.append(work)
            self._changed.notify()
        return True

    def wake(self) -> None:
        """Let a sleeping engine thread look around."""
        with self._changed:
            self._changed.notify()

    def records(self) -> list[RowRecord]:
        """The rows that are not over."""
        with self._changed:
            return list(self._open.values())

    # ------------------------------------------------------------ the engine thread

    def take(self) -> list[Work]:
        """What is there now: a frozen batch, so that a caller who submits without end cannot keep us from stepping."""
        with self._changed:
            work, self._work = list(self._work), deque()
        return work

    def sleep(self, seconds: float | None, stopping: Callable[[], bool]) -> None:
        """Wait for work, for `wake`, or for the time to pass."""
        with self._changed:
            if not self._work and not stopping():
                self._changed.wait(seconds)

    def record(self, row_id: int) -> RowRecord | None:
        """An open row's record."""
        return self._open.get(row_id)

    def start(self, row_id: int) -> Request | None:
        """The row leaves the queue: its request, handed over once; None if it left before."""
        with self._changed:
            request = self._unstarted.pop(row_id, None)
            self.queued -= request is not None
        return request

    def end(self, row_id: int) -> RowRecord | None:
        """The row is over: forget it."""
        with self._changed:
            record = self._open.pop(row_id, None)
            if not self._open:
                self.idle.set()
        return record

    def close(self) -> tuple[list[RowRecord], list[Request]]:
        """Take nothing more in; the rows and unstarted requests that were left."""
        with self._changed:
            self.closed = True
            left = list(self._open.values()), list(self._unstarted.values())
            self._work, self._open, self._unstarted, self.queued = deque(), {}, {}, 0
            self.idle.set()
        return left

    def orphan(self) -> list[RowRecord]:
        """In a forked child: a lock of one's own, nothing taken in any more; the rows that were open."""
        self._changed = threading.Condition()
        return self.close()[0]

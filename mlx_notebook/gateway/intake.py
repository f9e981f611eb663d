"""What callers hand to the engine thread: pieces of work, and the rows that are open, under one lock.

Threads: any thread may call anything here. The lock is held for table look-ups only. Once shut,
nothing more is taken in, and whoever shuts the door gets what was left, so that no row can fall between.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from mlx_notebook.bell import Latch
from mlx_notebook.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
        self.closed = False
        self.idle = Latch()
        self.idle.set()
        # Entered directly, not through the condition, whose `with` is Python code that an interrupt can cut in two.
        # All are notified though only the engine waits: a `notify` that was cut short leaves the place of the woken
        # one in the queue, and the next would wake that.
        # Reentrant: a forgotten gateway's finalizer may run inside any allocation.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._work: deque[Work] = deque()
        self._open: dict[int, RowRecord] = {}
        self._unstarted: dict[int, Request] = {}

    # ------------------------------------------------------------ callers

    @property
    def queued(self) -> int:
        """Rows that wait to be opened."""
        return len(self._unstarted)

    def submit(self, request: Request, record: RowRecord, work: Work) -> bool:
        """Take a row in, with the work that announces it; False if shut. QueueFull names the numbers.

        All or nothing, also under an interrupt: `record.taken` says which.
        """
        try:
            with self._lock:
                if self.closed:
                    return False
                self._refuse_if_full()
                self.idle.clear()
                self._open[record.id] = record
                self._unstarted[record.id] = request
                record.taken = True
                self._work.append(work)
                self.submitted += 1
                self._changed.notify_all()
        except BaseException:
            if not record.taken:
                self.start(record.id)
                self.end(record.id)
            raise
        return True

    def _refuse_if_full(self) -> None:
        if self.queued >= self.max_queued:
            raise QueueFull(
                f"{self.queued} rows wait and max_queued is {self.max_queued}:"
                " wait for some to finish, or use map(), which submits as rows get free.",
                queued=self.queued,
                limit=self.max_queued,
            )

    def expect(self, record: RowRecord) -> bool:
        """Count a row as open that will be submitted later; False if closed."""
        with self._lock:
            if not self.closed:
                self.idle.clear()
                self._open[record.id] = record
            return not self.closed

    def put(self, work: Work) -> bool:
        """Have `work(at_ns)` run on the engine thread between two steps; False if nobody will."""
        with self._lock:
            if self.closed:
                return False
            self._work.append(work)
            self._changed.notify_all()
        return True

    def shut(self) -> list[RowRecord]:
        """Take nothing more in and wake the engine thread; the rows that are not over."""
        with self._lock:
            self.closed = True
            self._changed.notify_all()
            return list(self._open.values())

    def records(self) -> list[RowRecord]:
        """The rows that are not over."""
        with self._lock:
            return list(self._open.values())

    # ------------------------------------------------------------ the engine thread

    def take(self) -> Iterable[Work]:
        """What is there now: a frozen batch, so that a caller who submits without end cannot keep us from stepping."""
        with self._lock:
            work, self._work = self._work, deque()
        return work

    def sleep(self, seconds: float | None, stopping: Callable[[], bool]) -> None:
        """Wait for work, for `shut`, or for the time to pass."""
        with self._lock:
            if not self._work and not stopping():
                self._changed.wait(seconds)

    def record(self, row_id: int) -> RowRecord | None:
        """An open row's record."""
        return self._open.get(row_id)

    def start(self, row_id: int) -> Request | None:
        """The row leaves the queue: its request, handed over once; None if it left before."""
        with self._lock:
            return self._unstarted.pop(row_id, None)

    def amend(self, request: Request) -> bool:
        """A row that is not opened yet gets this request instead; False where it is opened, or over."""
        with self._lock:
            waits = request.id in self._unstarted
            if waits:
                self._unstarted[request.id] = request
        return waits

    def end(self, row_id: int) -> None:
        """The row is over: forget it. Settle it before, so that whoever waits for idleness finds it settled."""
        with self._lock:
            self._open.pop(row_id, None)
            if not self._open:
                self.idle.set()

    def leave(self) -> tuple[list[RowRecord], list[Request]]:
        """The door stays shut; the rows and unstarted requests that were left. Settle them, then set `idle`."""
        with self._lock:
            self.closed = True
            left = list(self._open.values()), list(self._unstarted.values())
            self._work, self._open, self._unstarted = deque(), {}, {}
        return left

    def orphan(self) -> list[RowRecord]:
        """In a forked child: a lock of one's own, nothing taken in any more; the rows that were open."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self.idle = Latch()
        records, _ = self.leave()
        self.idle.set()
        return records

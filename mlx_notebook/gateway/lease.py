"""The device lease: one a process, first in, first out, shared by every gateway.

Whoever computes holds it: a gateway's active period, a model load, `run_exclusive`, a user's
`with gateway.lease()`. A ticket is a place in the line; the head of the line is the holder.
Tickets ahead of a waiter are told that somebody waits, so that they can let the line move.

Threads: every method may be called from any thread. Callbacks run under the lock, so that no news
overtakes another; they must only set flags, enqueue, or release. Release is idempotent, and a
ticket that gives up its place takes nothing from the others. An interrupt in the middle of a call
leaves the line whole: nobody keeps a place that no one knows of, nobody's turn goes unsaid.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlx_notebook.bell import Latch

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing(*_ignored: object) -> None:
    """The callback of a ticket that does not care."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A place in the line.

    Attributes:
        owner: who waits or holds, for people.
        kind: what for ("rows", "load", "exclusive", "lease").
        since: monotonic seconds of the grant once held, of the asking before.
        thread_id: the thread that may touch the device, where it is one thread's own lease.
        breakable: whether `break_lease` may take it away.
    """

    owner: str
    kind: str
    on_grant: Callable[[Ticket], None]
    on_waiters: Callable[[Ticket, bool], None]
    on_break: Callable[[], None]
    breakable: bool
    thread_id: int | None = None
    since: float = field(default_factory=time.monotonic)
    granted: Latch = field(default_factory=Latch)
    over: bool = False
    told_of_grant: bool = False
    told_of_waiters: bool = False

    @property
    def held(self) -> bool:
        """Whether this ticket holds the device now."""
        return self.granted.is_set() and not self.over


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the device: owner, what for, for how many seconds."""

    owner: str
    kind: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Tenure:
    """Who held the device, what for, from when to when (monotonic seconds)."""

    owner: str
    kind: str
    start: float
    end: float


class DeviceLease:
    """The line for the device. `past` holds the latest tenures that are over."""

    def __init__(self) -> None:
        # Reentrant: a callback may release, and a finalizer may run inside any allocation.
        self._lock = threading.RLock()
        self._line: list[Ticket] = []
        self.past: deque[Tenure] = deque(maxlen=256)

    def ask(
        self,
        owner: str,
        kind: str,
        *,
        on_grant: Callable[[Ticket], None] = _nothing,
        on_waiters: Callable[[Ticket, bool], None] = _nothing,
        on_break: Callable[[], None] = _nothing,
        breakable: bool = True,
        thread_id: int | None = None,
    ) -> Ticket:
        """Take a place at the end of the line; granted at once if nobody is there."""
        ticket = Ticket(owner, kind, on_grant, on_waiters, on_break, breakable, thread_id)
        try:
            with self._lock:
                self._line.append(ticket)
                self._tell()
        except BaseException:
            self._leave(ticket)  # nobody else knows of this place
            raise
        return ticket

    def release(self, ticket: Ticket) -> bool:
        """Leave the line, as holder or as waiter. False if the ticket was over already."""
        try:
            return self._leave(ticket)
        except BaseException:
            self._leave(ticket)  # whoever is next must learn of it all the same
            raise

    def _leave(self, ticket: Ticket) -> bool:
        with self._lock:
            was_there = ticket in self._line
            ticket.over = True
            if was_there:
                if ticket.granted.is_set():
                    self.past.append(Tenure(ticket.owner, ticket.kind, ticket.since, time.monotonic()))
                self._line.remove(ticket)
            self._tell()
        return was_there

    def break_holder(self) -> Holder | None:
        """Take the device from a breakable holder; returns who lost it, None if nobody could."""
        with self._lock:
            ticket = self._line[0] if self._line else None
        if ticket is None or not ticket.held or not ticket.breakable:
            return None
        holder = Holder(ticket.owner, ticket.kind, time.monotonic() - ticket.since)
        if not self.release(ticket):
            return None
        ticket.on_break()
        return holder

    # ------------------------------------------------------------ news, under the lock

    def _tell(self) -> None:
        """Tell each ticket what it has not been told: its turn, or that somebody waits behind it (no longer)."""
        while (ticket := next((t for t in self._line if self._has_news(t)), None)) is not None:
            if self._line[0] is ticket and not ticket.told_of_grant:
                self._tell_of_grant(ticket)
            else:
                self._tell_of_waiters(ticket)

    def _has_news(self, ticket: Ticket) -> bool:
        turn = self._line[0] is ticket and not ticket.told_of_grant
        return turn or ticket.told_of_waiters != self._has_waiters(ticket)

    def _has_waiters(self, ticket: Ticket) -> bool:
        return self._line[-1] is not ticket

    def _tell_of_grant(self, ticket: Ticket) -> None:
        ticket.told_of_grant = True  # before the call, which may come back here
        try:
            ticket.since = time.monotonic()
            ticket.granted.set()
            ticket.on_grant(ticket)
        except BaseException:
            ticket.told_of_grant = False
            raise

    def _tell_of_waiters(self, ticket: Ticket) -> None:
        some = ticket.told_of_waiters = self._has_waiters(ticket)
        try:
            ticket.on_waiters(ticket, some)
        except BaseException:
            ticket.told_of_waiters = not some
            raise

    # ------------------------------------------------------------ who, for people

    @property
    def holder(self) -> Holder | None:
        """Who holds the device now."""
        with self._lock:
            if not self._line:
                return None
            ticket = self._line[0]
            return Holder(ticket.owner, ticket.kind, time.monotonic() - ticket.since)

    @property
    def waiting(self) -> int:
        """How many wait behind the holder."""
        with self._lock:
            return max(0, len(self._line) - 1)

    def someone_behind(self, ticket: Ticket) -> bool:
        """Whether anybody stands behind this ticket."""
        with self._lock:
            return bool(self._line) and self._has_waiters(ticket)

    def held_by_thread(self, thread_id: int) -> bool:
        """Whether this very thread holds the device by a lease of its own."""
        with self._lock:
            head = self._line[0] if self._line else None
            return head is not None and head.held and head.thread_id == thread_id


_lease = DeviceLease()


def device_lease() -> DeviceLease:
    """The process's one device lease."""
    return _lease


def forget_after_fork() -> None:
    """In a forked child nobody holds anything: the holders' threads stayed in the parent."""
    global _lease
    _lease = DeviceLease()

"""The device lease: one a process, first in, first out, shared by every gateway.

Whoever computes holds it: a gateway's active period, a model load, `run_exclusive`, a user's
`with gateway.lease()`. A ticket is a place in the line; the head of the line is the holder.
Tickets ahead of a waiter are told that somebody waits, so that they can let the line move.

Threads: every method may be called from any thread. The lock protects the line only; callbacks
run outside it, and must only set flags or enqueue. Release and cancel are idempotent, and a
ticket that gives up its place takes nothing from the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

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
    granted: threading.Event = field(default_factory=threading.Event)
    over: bool = False
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


class DeviceLease:
    """The line for the device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[Ticket] = deque()

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
        with self._lock:
            self._line.append(ticket)
            calls = self._settle_line()
        for call in calls:
            call()
        return ticket

    def release(self, ticket: Ticket) -> bool:
        """Leave the line, as holder or as waiter. False if the ticket was over already."""
        with self._lock:
            if ticket.over:
                return False
            ticket.over = True
            self._line.remove(ticket)
            calls = self._settle_line()
        for call in calls:
            call()
        return True

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

    def _settle_line(self) -> list[Callable[[], None]]:
        """Grant the head, and tell each ticket whose "somebody waits behind me" changed. Under the lock."""
        calls: list[Callable[[], None]] = []
        for place, ticket in enumerate(self._line):
            if place == 0 and not ticket.granted.is_set():
                ticket.since = time.monotonic()
                ticket.granted.set()
                calls.append(partial(ticket.on_grant, ticket))
            waited_for = place < len(self._line) - 1
            if waited_for != ticket.told_of_waiters:
                ticket.told_of_waiters = waited_for
                calls.append(partial(ticket.on_waiters, ticket, waited_for))
        return calls

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

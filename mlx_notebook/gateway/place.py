"""A gateway's places in the line for the device, shared by its callers and its engine thread.

One place serves every row asked for before somebody else queued behind it. A row that comes later
gets a place of its own at the end of the line, at once: whoever queues after that row waits for it,
also where others still wait before both.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.gateway.lease import device_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.lease import Ticket


class PlacesInLine:
    """The tickets of one gateway's rows, first to come first.

    Args:
        owner: for people.
        hear: told of news, as a function from a time to the scheduler's event, and of whether the
            ticket it is about is still in the line (asked when the news is read).
    """

    def __init__(self, owner: str, hear: Callable[[Callable[[int], ev.Event], Callable[[], bool]], None]) -> None:
        self._owner = owner
        self._hear = hear
        self._lock = threading.RLock()
        self._tickets: list[Ticket] = []
        self._numbers = itertools.count(1)

    def take(self) -> None:
        """Queue for a row that was just submitted, unless it can go on the last place."""
        with self._lock:
            if not self._tickets or device_lease().someone_behind(self._tickets[-1]):
                self._ask()

    def take_if_none(self) -> None:
        """Queue for the device, unless a place is there already."""
        with self._lock:
            if not self._tickets:
                self._ask()

    def _ask(self) -> None:
        number = next(self._numbers)
        self._tickets.append(
            device_lease().ask(
                self._owner,
                "rows",
                on_grant=lambda ticket: self._tell(ticket, lambda at: ev.LeaseGranted(at, number)),
                on_waiters=lambda ticket, some: self._tell(
                    ticket, lambda at: ev.LeaseWanted(at, number) if some else ev.LeaseUnwanted(at, number)
                ),
                breakable=False,
            )
        )

    def give_back(self) -> None:
        """Hand the device on; where it is not ours, give up every place. Idempotent."""
        with self._lock:
            held = bool(self._tickets) and self._tickets[0].held
            given, self._tickets = (self._tickets[:1], self._tickets[1:]) if held else (self._tickets, [])
        _release(given)

    def give_up(self) -> None:
        """Leave the line for good."""
        with self._lock:
            given, self._tickets = self._tickets, []
        _release(given)

    @property
    def unwanted(self) -> bool:
        """Whether the device is ours and nobody waits for it."""
        with self._lock:
            first = self._tickets[0] if self._tickets else None
            return first is not None and first.held and not device_lease().someone_behind(first)

    @property
    def waits(self) -> bool:
        """Whether somebody else holds the device while we wait."""
        tickets = self._tickets
        return bool(tickets) and not tickets[0].held

    @property
    def granted_ns(self) -> int:
        """When the device became ours, monotonic nanoseconds; 0 if it isn't."""
        tickets = self._tickets
        return int(tickets[0].since * 1e9) if tickets and tickets[0].held else 0

    def _tell(self, ticket: Ticket, event: Callable[[int], ev.Event]) -> None:
        # A ticket that was given back meanwhile must not speak for the next one.
        self._hear(event, lambda: self._is_mine(ticket))

    def _is_mine(self, ticket: Ticket) -> bool:
        with self._lock:
            return ticket in self._tickets

    def orphan(self) -> None:
        """In a forked child: a lock of one's own, and no place."""
        self._lock, self._tickets = threading.RLock(), []


def _release(tickets: list[Ticket]) -> None:
    for ticket in reversed(tickets):  # the last first: none of ours is granted on the way
        device_lease().release(ticket)

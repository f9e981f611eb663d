"""A gateway's place in the line for the device, shared by its callers and its engine thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.gateway.lease import device_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.lease import Ticket


class PlaceInLine:
    """At most one ticket at a time, taken by `submit` at once so that the line is in order of asking.

    Args:
        owner: for people.
        hear: told of news, as a function from a time to the scheduler's event, and of whether the
            ticket it is about is still the present one (asked when the news is read).
    """

    def __init__(self, owner: str, hear: Callable[[Callable[[int], ev.Event], Callable[[], bool]], None]) -> None:
        self._owner = owner
        self._hear = hear
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None

    def take(self) -> None:
        """Queue for the device, unless a place is held already."""
        with self._lock:
            if self._ticket is None:
                self._ticket = device_lease().ask(
                    self._owner,
                    "rows",
                    on_grant=lambda ticket: self._tell(ticket, ev.LeaseGranted),
                    on_waiters=lambda ticket, some: self._tell(ticket, ev.LeaseWanted if some else ev.LeaseUnwanted),
                    breakable=False,
                )

    def give_back(self) -> None:
        """Leave the line, as holder or as waiter; idempotent."""
        with self._lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            device_lease().release(ticket)

    @property
    def waits(self) -> bool:
        """Whether somebody else holds the device while we wait."""
        ticket = self._ticket
        return ticket is not None and not ticket.held

    @property
    def granted_ns(self) -> int:
        """When the device became ours, monotonic nanoseconds; 0 if it isn't."""
        ticket = self._ticket
        return int(ticket.since * 1e9) if ticket is not None and ticket.held else 0

    def _tell(self, ticket: Ticket, event: Callable[[int], ev.Event]) -> None:
        # A ticket that was given back meanwhile must not speak for the next one.
        self._hear(event, lambda: self._is_mine(ticket))

    def _is_mine(self, ticket: Ticket) -> bool:
        with self._lock:
            return self._ticket is ticket

    def orphan(self) -> None:
        """In a forked child: a lock of one's own, and no place."""
        self._lock, self._ticket = threading.Lock(), None

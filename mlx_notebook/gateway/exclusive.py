"""The two ways to have the device to oneself: a `with` block on one's own thread, a function on the engine thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mlx_notebook.bell import Latch
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.lease import device_lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.lease import Ticket

Given = TypeVar("Given")


class DeviceBlock(Generic[Given]):
    """`with` it: the calling thread holds the device inside.

    A class, not a generator: interrupted as it is entered, a generator keeps the device till the traceback goes.

    Args:
        given: what `as` binds.
        owner: for people.
        timeout: seconds to wait for the device; None waits as long as it takes.
    """

    def __init__(self, given: Given, owner: str, timeout: float | None) -> None:
        self._given = given
        self._owner = owner
        self._timeout = timeout
        self._ticket: Ticket | None = None

    def __enter__(self) -> Given:
        waiting.refuse_to_block("asking for the device lease")
        ticket = device_lease().ask(self._owner, "lease", thread_id=threading.get_ident())
        try:
            self._wait_for(ticket)
        except BaseException:
            device_lease().release(ticket)
            raise
        self._ticket = ticket
        return self._given

    def _wait_for(self, ticket: Ticket) -> None:
        if not waiting.sleep_until(ticket.granted.wait, self._timeout):
            holder = device_lease().holder
            by = holder.owner if holder is not None else "nobody"
            raise TimeoutError(f"the device was not free within {self._timeout} s; held by {by}")

    def __exit__(self, *_: object) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is None:
            return
        try:
            device_lease().release(ticket)
        except BaseException:
            device_lease().release(ticket)  # an interrupt on the way there
            raise


class Exclusive:
    """A job: run once, failed once, or given up before it began; the first of these counts."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.done = Latch()
        self._function: Callable[[], Any] | None = function
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: BaseException | None = None

    def _take(self) -> Callable[[], Any] | None:
        with self._lock:
            function, self._function = self._function, None
        return function

    def run(self) -> None:
        """Run it (engine thread); whatever it raises is kept for the caller."""
        function = self._take()
        if function is None:
            return
        try:
            self._value = function()
        except BaseException as error:  # noqa: BLE001 - user code: its exception belongs to the caller
            self._error = error
        self.done.set()

    def fail(self, error: BaseException) -> None:
        """It will never run: the caller gets `error`."""
        if self._take() is not None:
            self._error = error
            self.done.set()

    def give_up(self) -> bool:
        """The caller no longer waits; whether the job had not begun."""
        return self._take() is not None

    def outcome(self) -> Any:
        """The value, or the exception raised."""
        if self._error is not None:
            raise self._error
        return self._value

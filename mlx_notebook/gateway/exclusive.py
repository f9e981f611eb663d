"""One function to be run on the engine thread with the device to itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.bell import Latch

if TYPE_CHECKING:
    from collections.abc import Callable


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

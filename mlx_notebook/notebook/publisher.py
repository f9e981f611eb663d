"""The publisher: the one thread that sends what views have to say.

Lifecycle: `publisher()` gives the process's publisher; its daemon thread starts with the first
view that it follows, sleeps while there is none, and ends at `shutdown()` (unloading the
extension, or the interpreter's exit). A view is ticked until its `tick()` returns False.

The thread contract: `tick` and `stop` of a view are only ever called on this thread, one at a
time; so a widget whose traits are set nowhere else has one writer. `follow` and `spend` may be
called from any thread.

Rates: a view is ticked 20 times a second as long as the whole process stays under 200 messages
a second. JupyterLab's server drops everything, other cells' output too, above 1,000.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 1 / 20
MESSAGES_PER_S = 200.0
BURST = 20.0

_log = logging.getLogger("mlx_notebook")


class View(Protocol):
    """What the publisher follows."""

    def tick(self) -> bool:
        """Send what is new; False = nothing more will come."""
        ...

    def stop(self) -> None:
        """Say the last word: the publisher is ending and will not come back."""
        ...


class Publisher:
    """Ticks views on one thread within a budget of messages. See the module's docstring for who may call what."""

    def __init__(self) -> None:
        # Entered directly, not through the condition, whose `with` is Python code that an interrupt can cut in two:
        # cells follow and spend on the main thread. All are notified though one waits: a `notify` that was cut short
        # leaves the woken one's place in the queue, and the next would wake that.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due: dict[View, float] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._budget = BURST
        self._counted_at = time.monotonic()

    def follow(self, view: View) -> None:
        """Tick `view` soon and from then on; one that is followed already is ticked soon. Nothing after `shutdown`."""
        with self._lock:
            if self._stopping:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mlx-notebook-publisher", daemon=True)
                self._thread.start()
            # First: woken, the thread still waits for the lock; interrupted after it, no view would be left to sleep.
            self._changed.notify_all()
            self._due[view] = 0.0

    def spend(self, messages: int = 1) -> None:
        """Count messages that a view sent, against the process's budget."""
        with self._lock:
            self._budget -= messages

    @property
    def following(self) -> int:
        """How many views are followed now."""
        with self._lock:
            return len(self._due)

    def shutdown(self, timeout: float = 2.0) -> None:
        """Let every view say its last word and end the thread; waits up to `timeout` seconds for it."""
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            view, due = turn
            if not self._contained(view, view.tick):
                with self._lock:
                    # Whoever followed it again during that very tick has something to be sent.
                    if self._due.get(view) == due:
                        del self._due[view]
        with self._lock:
            last = list(self._due)
            self._due.clear()
        for view in last:
            self._contained(view, view.stop)

    def _next(self) -> tuple[View, float] | None:
        """Wait for the view that is due first, and for budget; with it comes when it is due again. None = the end."""
        with self._lock:
            while not self._stopping:
                wait = self._wait_s()
                if wait == 0:
                    view = min(self._due, key=self._due.__getitem__)
                    # Many views share the budget: each is asked less often, and they come in turn.
                    interval = max(TICK_S, len(self._due) / MESSAGES_PER_S)
                    self._due[view] = due = time.monotonic() + interval
                    return view, due
                self._changed.wait(wait)
            return None

    def _wait_s(self) -> float | None:
        """Seconds until something may be sent; 0 = now, None = until somebody calls."""
        if not self._due:
            return None
        now = time.monotonic()
        self._budget = min(BURST, self._budget + (now - self._counted_at) * MESSAGES_PER_S)
        self._counted_at = now
        return max(0.0, min(self._due.values()) - now, (1 - self._budget) / MESSAGES_PER_S)

    @staticmethod
    def _contained(view: View, call: Callable[[], object]) -> bool:
        """The call's answer; a view that raises is reported once and left, the run goes on."""
        try:
            return bool(call())
        except BaseException:  # noqa: BLE001 - an observer must never end the run or the other views
            _log.exception("%r stopped showing its rows; they run on, and their text is in the handle", view)
            return False


_publisher: Publisher | None = None
_made = threading.Lock()


def publisher() -> Publisher:
    """The process's publisher; a new one after `shutdown()`."""
    global _publisher
    with _made:
        if _publisher is None:
            _publisher = Publisher()
        return _publisher


def shutdown(timeout: float = 2.0) -> None:
    """End the publisher's thread, if there is one. What is live freezes as it stands."""
    global _publisher
    with _made:
        ending, _publisher = _publisher, None
    if ending is not None:
        ending.shutdown(timeout)


def _forget_in_child() -> None:
    """A forked child has none of the parent's threads, and its page belongs to the parent."""
    global _publisher, _made
    _publisher, _made = None, threading.Lock()


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

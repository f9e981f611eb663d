"""Backends that do what a test says, and small helpers to wait for what another thread does."""

from __future__ import annotations

import queue
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.events import Decode, Kept, Prefill, PrefillDone, StepDone, StepFailed
from mlx_notebook.engine.backend import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.gateway.gateway import Gateway

BOOM = "the device is on fire"


@dataclass(frozen=True)
class Point:
    """Where an engine stands still: about to do `what` for these rows."""

    what: str
    rows: tuple[int, ...]


class Stepped(ScriptedBackend):
    """Computes only as the test lets it: it stands still before every chunk and every step.

    `next()` waits till the engine stands somewhere and says where; `go()` lets it do that one thing.
    `free()` lets it run from then on.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.opened: list[int] = []
        self.dropped: list[int] = []
        self._points: queue.SimpleQueue[Point] = queue.SimpleQueue()
        self._go: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_free = threading.Event()

    # ------------------------------------------------------------ the test

    def next(self) -> Point:
        """Where the engine stands; waits for it."""
        return self._points.get()

    def go(self) -> None:
        """Let it do what it stands before."""
        self._go.put(None)

    def until(self, what: str) -> Point:
        """Let it run till it stands before a `what`."""
        while (point := self.next()).what != what:
            self.go()
        return point

    def free(self) -> None:
        """Let it run; nothing stops it any more."""
        self._is_free.set()
        self._go.put(None)

    # ------------------------------------------------------------ the engine

    def _stand(self, what: str, *rows: int) -> None:
        if not self._is_free.is_set():
            self._points.put(Point(what, rows))
            self._go.get()

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        self.opened.append(request.id)
        super().open(request, entry_id, cached_tokens)

    def prefill(self, instruction: Prefill) -> PrefillDone:
        self._stand("prefill", *(part.row_id for part in instruction.parts))
        return super().prefill(instruction)

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        self._stand("decode", *instruction.row_ids)
        return super().decode(instruction)

    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Kept | None:
        if row_id in self._rows:
            self.dropped.append(row_id)
        return super().drop(row_id, keep_as, keep_tokens)


class FailingSteps(ScriptedBackend):
    """The forwards with these numbers (counted from 0, over all rows) fail as a whole."""

    def __init__(self, *numbers: int, **how: Any) -> None:
        super().__init__(**how)
        self.failing = set(numbers)
        self.rewound: list[int] = []
        self._forwards = 0

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        number, self._forwards = self._forwards, self._forwards + 1
        if number in self.failing:
            return StepFailed(time.monotonic_ns(), instruction.row_ids, (f"RuntimeError: {BOOM}", "Traceback ..."))
        return super().decode(instruction)

    def rewind(self, row_id: int) -> None:
        self.rewound.append(row_id)
        super().rewind(row_id)


class Defective(Stepped):
    """Once `broken` is set, the next step raises, which a backend must never do."""

    broken = False

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        self._stand("decode", *instruction.row_ids)
        if self.broken:
            raise RuntimeError(BOOM)
        return ScriptedBackend.decode(self, instruction)


class Resource:
    """Something native that must be released exactly once."""

    def __init__(self, *, fails: bool = False) -> None:
        self.released = 0
        self._fails = fails

    def release(self) -> None:
        self.released += 1
        if self._fails:
            raise RuntimeError("this release fails")


def wait_for(true: Callable[[], bool]) -> None:
    """Return once `true()` holds: for what another thread brings about and says to nobody."""
    while not true():
        time.sleep(0.001)


def in_thread(work: Callable[[], Any]) -> Background:
    """Run `work` on another thread."""
    return Background(work)


class Background:
    """A call on another thread: `result()` gives its value or raises its error here."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._work = work
        self.thread = threading.Thread(target=self._run, name="test-background")
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            self._error = error

    def result(self) -> Any:
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._value


def interrupt_main() -> None:
    """A Ctrl-C, delivered to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def interrupt_when(true: Callable[[], bool]) -> Background:
    """Ctrl-C once `true()` holds, from another thread."""

    def work() -> None:
        wait_for(true)
        interrupt_main()

    return in_thread(work)


def somebody_waits_for(gateway: Gateway) -> bool:
    """Whether a thread sleeps till one of this gateway's rows is over, or says more."""
    return any(
        bell._waiters for record in gateway._engine.intake.records() for bell in (record.over._bell, record.news)
    )

"""The engine's loop: take events, ask the scheduler, have the backend execute, tell the records.

Everything here runs on the engine thread, except the plain figures that others read. Time is
stamped here, as an event is drained. One instruction's outcome is the next event.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

from mlx_notebook.core import events as ev
from mlx_notebook.core.scheduler import Scheduler
from mlx_notebook.engine.backend import release_all
from mlx_notebook.failure import as_text
from mlx_notebook.gateway.stats import RateMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.backend import Backend
    from mlx_notebook.gateway.intake import Intake
    from mlx_notebook.gateway.place import PlacesInLine
    from mlx_notebook.gateway.record import RowRecord

log = logging.getLogger("mlx_notebook")

FLUSH_NS = 25_000_000
"""Readers are woken at most this often while rows write, and always when a row ends."""


class EngineLoop:
    """Scheduler and backend, joined.

    Args:
        backend: a loaded backend, made on this thread.
        intake: where callers put work and rows.
        places: our places in the line for the device.
        chunk: prompt tokens a prefill chunk.
    """

    def __init__(self, backend: Backend, intake: Intake, places: PlacesInLine, chunk: int) -> None:
        self.scheduler = Scheduler(max_rows=backend.capabilities.max_rows, chunk=chunk)
        self.meter = RateMeter()
        self.held_bytes = 0
        self.last_seen_ns = time.monotonic_ns()
        self._backend = backend
        self._intake = intake
        self._places = places
        self._dirty: set[RowRecord] = set()
        self._flushed_ns = 0

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until told to stop, then end every row that is left, those too that the scheduler hasn't seen."""
        while not stopping():
            self._do_what_came()
            self._turn(stopping)
        self.feed(ev.CloseAsked(time.monotonic_ns()))
        self._do_what_came()

    def _do_what_came(self) -> None:
        # A function of its own: a local of the loop's would keep the last request, and all its user's code holds.
        for work in self._intake.take():
            work(time.monotonic_ns())

    def synchronize(self) -> None:
        """Wait till nothing is in flight on the device."""
        self._backend.synchronize()

    def retire(self) -> None:
        """Let go of the backend, and the model with it: handles that are kept still know this loop's figures."""
        del self._backend
        self._dirty.clear()
        self.held_bytes = 0

    def feed(self, event: ev.Event) -> None:
        """Hand one event to the scheduler and execute what it says."""
        for step in self.scheduler.handle(event):
            self._execute(step)

    def admit(self, at_ns: int, asked_ns: int, record: RowRecord, request: Request) -> None:
        """A submitted row reaches the scheduler; from now on its record follows the scheduler's row."""
        steps = self.scheduler.handle(ev.Submitted(at_ns, asked_ns, request, record.placement))
        row = self.scheduler.rows.get(request.id)
        if row is not None:
            record.follow(row)
        for step in steps:
            self._execute(step)

    def _turn(self, stopping: Callable[[], bool]) -> None:
        self.last_seen_ns = time.monotonic_ns()
        steps = self.scheduler.handle(ev.Turn(self.last_seen_ns))
        for step in steps:
            self._execute(step)
        if steps:
            return
        self._flush()
        deadline = self.scheduler.next_deadline_ns
        seconds = None if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)
        self._intake.sleep(seconds, stopping)

    # ------------------------------------------------------------ instructions

    def _execute(self, step: ev.Instruction) -> None:
        self._how[type(step)](self, step)

    def _ask_lease(self, _step: ev.AskLease) -> None:
        self._places.take_if_none()

    def _give_lease(self, _step: ev.GiveLease) -> None:
        self.synchronize()
        self._places.give_back()

    def _open(self, step: ev.Open) -> None:
        request = self._intake.start(step.row_id)
        record = self._intake.record(step.row_id)
        if request is None or record is None:
            raise RuntimeError(f"row {step.row_id} is opened but nobody submitted it")
        record.lease_granted_ns = self._places.granted_ns
        try:
            self._backend.open(request)
        except BaseException as error:  # noqa: BLE001 - one row's failure to open is that row's alone
            now = time.monotonic_ns()
            self.feed(ev.PrefillDone(now, step.row_id, 0, 0, now, as_text(error)))

    def _prefill(self, step: ev.Prefill) -> None:
        if step.row_id in self.scheduler.rows:
            self.feed(self._backend.prefill(step))

    def _decode(self, step: ev.Decode) -> None:
        row_ids = tuple(row_id for row_id in step.row_ids if row_id in self.scheduler.rows)
        if not row_ids:
            return
        outcome = self._backend.decode(ev.Decode(row_ids))
        if isinstance(outcome, ev.StepDone):
            self._deliver(outcome)
        self.feed(outcome)
        if outcome.at_ns - self._flushed_ns >= FLUSH_NS:
            self._flush()

    def _deliver(self, step: ev.StepDone) -> None:
        for outcome in step.outcomes:
            record = self._intake.record(outcome.row_id)
            if record is not None:
                record.push(outcome)
                self._dirty.add(record)
        self.meter.add(step.at_ns, len(step.outcomes))

    def _flush(self) -> None:
        self._flushed_ns = time.monotonic_ns()
        self.held_bytes = self._backend.held_bytes()
        dirty, self._dirty = self._dirty, set()
        for record in dirty:
            record.news.ring()

    def _drop(self, step: ev.Drop) -> None:
        try:
            self._backend.drop(step.row_id)
        except BaseException:
            log.exception("freeing request %d failed; the others go on", step.row_id)

    def _rewind(self, step: ev.Rewind) -> None:
        self._backend.rewind(step.row_id)

    def _settle(self, step: ev.Settle) -> None:
        request = self._intake.start(step.row_id)
        if request is not None:
            release_all(request)
        record = self._intake.record(step.row_id)
        if record is not None:
            self._dirty.discard(record)
            record.settle(step.reason, step.detail, step.error)
        self._intake.end(step.row_id)

    _how: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        ev.AskLease: _ask_lease,
        ev.GiveLease: _give_lease,
        ev.Open: _open,
        ev.Prefill: _prefill,
        ev.Decode: _decode,
        ev.Drop: _drop,
        ev.Rewind: _rewind,
        ev.Settle: _settle,
    }

"""The engine's loop: take events, ask the scheduler, have the backend execute, tell the records.

Everything here runs on the engine thread, except the plain figures that others read. Time is
stamped here, as an event is drained. One instruction's outcome is the next event.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

from mlx_notebook.bell import Bell
from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.ring import Ring
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings
from mlx_notebook.engine.backend import release_all
from mlx_notebook.failure import as_text
from mlx_notebook.gateway.stats import RateMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.backend import Backend
    from mlx_notebook.gateway.intake import Intake
    from mlx_notebook.gateway.place import PlacesInLine
    from mlx_notebook.gateway.policies import UserPolicy
    from mlx_notebook.gateway.record import RowRecord

log = logging.getLogger("mlx_notebook")

FLUSH_NS = 25_000_000
"""Readers are woken at most this often while rows write, and always when a row ends."""

WARM_MOST = 32
"""Rows of the widest step that is warmed up: the memory and time of wider ones are for those who need them."""


class EngineLoop:
    """Scheduler and backend, joined.

    Args:
        backend: a loaded backend, made on this thread.
        intake: where callers put work and rows.
        places: our places in the line for the device.
        settings: what the scheduler is made with.
        policy: a user's order of admission, if there is one.
    """

    def __init__(
        self,
        backend: Backend,
        intake: Intake,
        places: PlacesInLine,
        settings: SchedulerSettings,
        policy: UserPolicy | None = None,
    ) -> None:
        self.ring = Ring()
        self.scheduler = Scheduler(settings, self.ring)
        self.decisions = DecisionLog()
        self.policy = policy
        self.meter = RateMeter()
        self.held_bytes = 0
        self.last_seen_ns = time.monotonic_ns()
        self._backend = backend
        self._intake = intake
        self._places = places
        self._dirty: set[RowRecord] = set()
        self._flushed_ns = 0
        self.born_ns = self.last_seen_ns
        self._computed = False
        self.steps_left = 0
        self._warm = 1
        self.rested = Bell()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Serve until told to stop, then end every row that is left, those too that the scheduler hasn't seen."""
        while not stopping():
            self._do_what_came()
            if self._turn(stopping) and self.scheduler.reins.delay_ns:
                self._rest(stopping)
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
        for step in self._decide(event):
            self._execute(step)

    def _decide(self, event: ev.Event) -> list[ev.Instruction]:
        self.decisions.add(event)
        return self.scheduler.handle(event)

    def admit(self, at_ns: int, asked_ns: int, record: RowRecord, request: Request) -> None:
        """A submitted row reaches the scheduler; from now on its record follows the scheduler's row."""
        steps = self._decide(ev.Submitted(at_ns, asked_ns, request, record.placement))
        row = self.scheduler.rows.get(request.id)
        if row is not None:
            record.follow(row)
        for step in steps:
            self._execute(step)

    def _turn(self, stopping: Callable[[], bool]) -> bool:
        """Decide and execute once; whether there was anything to do. Where there was not, it has slept."""
        self.last_seen_ns = time.monotonic_ns()
        steps = self._decide(ev.Turn(self.last_seen_ns, self._chosen_order()))
        for step in steps:
            self._execute(step)
        if self.scheduler.reins.paused or self.steps_left:
            self.steps_left = self.scheduler.reins.steps
            self.rested.ring()
        if steps:
            return True
        self._flush()
        deadline = self.scheduler.next_deadline_ns
        seconds = None if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)
        self._intake.sleep(seconds, stopping)
        return False

    def _rest(self, stopping: Callable[[], bool]) -> None:
        """Slow motion: wait after a turn that computed, and hear meanwhile what callers want."""
        if not self._computed:
            return
        self._computed = False
        self._flush()
        began = time.monotonic_ns()
        while (left := began + self.scheduler.reins.delay_ns - time.monotonic_ns()) > 0 and not stopping():
            self._intake.sleep(left / 1e9, stopping)
            self._do_what_came()

    def extend(self, at_ns: int, row_id: int, tokens: int) -> ev.Extended:
        """Ask the scheduler for more tokens for a row, and do what it says; its answer."""
        answer, *others = self._decide(ev.ExtendAsked(at_ns, row_id, tokens))
        for step in (answer, *others):
            self._execute(step)
        if not isinstance(answer, ev.Extended):
            raise TypeError("an extension is answered first")
        return answer

    def _chosen_order(self) -> tuple[int, ...] | None:
        scheduler = self.scheduler
        if self.policy is None or self.policy.error is not None or not scheduler.has_room:
            return None
        order = self.policy.order(scheduler.waiting_rows(), scheduler.running_rows(), self.last_seen_ns)
        if order is None:
            self.feed(ev.PolicyFailed(self.last_seen_ns))
        return order

    # ------------------------------------------------------------ instructions

    def _execute(self, step: ev.Instruction) -> None:
        self._how[type(step)](self, step)

    def _ask_lease(self, _step: ev.AskLease) -> None:
        self._places.take_if_none()

    def _give_lease(self, _step: ev.GiveLease) -> None:
        self._warm_up()
        self.synchronize()
        self._places.give_back()

    def _warm_up(self) -> None:
        """While the device is still ours, nobody wants it and no row is open: have wider steps built."""
        intake = self._intake
        while self._warm < min(self.scheduler.settings.max_rows, WARM_MOST):
            if intake.closed or not intake.idle.is_set() or not self._places.unwanted:
                return
            self._warm += 1
            self._backend.warm(self._warm)

    def _open(self, step: ev.Open) -> None:
        request = self._intake.start(step.row_id)
        record = self._intake.record(step.row_id)
        if request is None or record is None:
            raise RuntimeError(f"row {step.row_id} is opened but nobody submitted it")
        record.lease_granted_ns = self._places.granted_ns
        try:
            self._backend.open(request, step.entry_id, step.cached_tokens)
        except BaseException as error:  # noqa: BLE001 - one row's failure to open is that row's alone
            now = time.monotonic_ns()
            part = ev.PrefillPart(step.row_id, 0, 0, last=False)
            self.feed(ev.PrefillDone(now, now, (part,), {step.row_id: as_text(error)}))

    def _prefill(self, step: ev.Prefill) -> None:
        parts = tuple(part for part in step.parts if part.row_id in self.scheduler.rows)
        if parts:
            self._computed = True
            self.feed(self._backend.prefill(ev.Prefill(parts)))

    def _decode(self, step: ev.Decode) -> None:
        row_ids = tuple(row_id for row_id in step.row_ids if row_id in self.scheduler.rows)
        if not row_ids:
            return
        self._computed = True
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
        self._kept(step.row_id, step.keep_as, lambda: self._backend.drop(step.row_id, step.keep_as, step.keep_tokens))

    def _keep(self, step: ev.Keep) -> None:
        if step.row_id in self.scheduler.rows:
            self._kept(step.row_id, step.entry_id, lambda: self._backend.keep(step))

    def _kept(self, row_id: int, entry_id: int | None, work: Callable[[], ev.Kept | None]) -> None:
        """Have a row's state kept, or freed. What cannot be is nobody's failure: the entry just does not come to be."""
        kept: ev.Kept | None = None
        try:
            kept = work()
        except BaseException:
            log.exception("keeping or freeing the state of request %d failed; the others go on", row_id)
        if kept is None and entry_id is not None:
            kept = ev.Kept(time.monotonic_ns(), entry_id, 0, 0)
        if kept is not None:
            self.feed(kept)

    def _evict(self, step: ev.Evict) -> None:
        self._backend.evict(step.entry_id)

    def _rewind(self, step: ev.Rewind) -> None:
        self._backend.rewind(step.row_id)

    def _extended(self, step: ev.Extended) -> None:
        row = self.scheduler.rows.get(step.row_id)
        if step.refused is None and row is not None and not self._intake.amend(row.request):
            self._backend.extend(step.row_id, step.max_tokens)

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
        ev.Keep: _keep,
        ev.Drop: _drop,
        ev.Evict: _evict,
        ev.Rewind: _rewind,
        ev.Settle: _settle,
        ev.Extended: _extended,
    }

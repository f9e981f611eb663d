"""The scheduler: events in, instructions out. It alone changes a row's state.

A pure state machine: no thread, no clock, no MLX. The engine thread stamps each event, hands it in,
and executes what comes back in order; each outcome is the next event. A turn admits rows, plans one
prefill forward and one decode step. Rows share the batch up to `max_rows`, rows in prefill
included; a serial row runs alone.

Exclusion: a place in the device's line serves the rows that were submitted before anybody queued behind
it (a fence in our own line); they run to their end, then the device is handed on and asked for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from mlx_notebook.core import events as ev
from mlx_notebook.core.chunks import ChunkPlanner
from mlx_notebook.core.control import Reins, Slots
from mlx_notebook.core.controlled import Controlled
from mlx_notebook.core.deadlines import Deadlines
from mlx_notebook.core.line import WaitingLine
from mlx_notebook.core.memory import Memory, without_twins
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.ring import Control, Kind, Ring, WaitCause
from mlx_notebook.core.rows import Chunk, FinishDetail, FinishReason, Row, RowStatus
from mlx_notebook.core.scheduler_settings import UNLIMITED, Counters, LeaseState, SchedulerSettings
from mlx_notebook.core.sharing import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.placement import Placement

__all__ = ["UNLIMITED", "Counters", "LeaseState", "Scheduler", "SchedulerSettings"]

MAX_REWINDS = 1
"""How often a row whose forward failed is prefilled again before it gets the error."""

OPENING_NS = 2_000_000_000
"""How long rows that were just read may wait for others of their burst, so that all write in full steps."""


class Scheduler(Controlled):
    """Decides which rows are computed next."""

    def __init__(self, settings: SchedulerSettings | None = None, ring: Ring | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self.rows: dict[int, Row] = {}
        self.counters = Counters()
        self.lease = LeaseState.NONE
        self.closed = False
        self.line = WaitingLine(self.settings.policy)
        self.memory = Memory(self.settings)
        free = not self.settings.deterministic
        self.planner = ChunkPlanner(self.settings.chunk, together=free, boundaries=free)
        self.ring = ring or Ring(capacity=1 << 10)
        self.sharing = Sharing(self.settings, self.memory, self.ring)
        self._placements: dict[int, Placement] = {}
        self._prefilling: list[Row] = []
        self._decoding: list[Row] = []
        self._deadlines = Deadlines()
        self._next_seq = 0
        self._place = 0
        self._fences: dict[int, int] = {}
        self.reins = Reins()
        self._slots = Slots()
        self._noted = (0, WaitCause.NONE, 0)
        self._noted_memory = (0, 0)
        self._blocked: tuple[tuple[object, ...], Row | None] | None = None

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Take one event, change the state, return what to do, in order."""
        return self._by_event[type(event)](self, event)

    # ------------------------------------------------------------ what others may read

    @property
    def queued(self) -> int:
        """Rows that wait."""
        return len(self.line)

    @property
    def prefilling(self) -> int:
        """Rows whose prompt is being read."""
        return len(self._prefilling)

    @property
    def decoding(self) -> int:
        """Rows that write."""
        return len(self._decoding)

    @property
    def next_deadline_ns(self) -> int | None:
        """When the earliest deadline of a live row passes."""
        return self._deadlines.next_ns

    @property
    def has_room(self) -> bool:
        """Whether a turn could admit anybody: only then is a user's policy worth asking."""
        return bool(self.line) and self._running < self.settings.max_rows and not self.reins.held

    def waiting_rows(self) -> list[Row]:
        """Rows that wait, in the default order."""
        return list(self.line)

    def running_rows(self) -> list[Row]:
        """Rows in the batch."""
        return [*self._decoding, *self._prefilling]

    def rows_ahead(self, row_id: int) -> int | None:
        """How many rows come before a queued one (running rows too), None if it does not wait. Any thread may ask."""
        ids = self.line.ids()
        return ids.index(row_id) + len(self._prefilling) + len(self._decoding) if row_id in ids else None

    # ------------------------------------------------------------ arrivals and departures

    def _submitted(self, event: ev.Submitted) -> list[ev.Instruction]:
        row = Row(event.request, self._next_seq, queued_ns=event.asked_ns)
        self._next_seq += 1
        self.counters.submitted += 1
        self.rows[row.id] = row
        self._placements[row.id] = event.placement
        self._deadlines.add(row.id, row.deadline_ns)
        limit = row.request.shape.sampling.max_tokens
        waited = event.at_ns - event.asked_ns
        self.ring.record(event.at_ns, Kind.SUBMIT, row.id, self.counters.steps, row.prompt_tokens, limit, waited)
        if event.request.priority:
            self.record_control(event.at_ns, Control.PRIORITY, event.request.priority, row.id)
        if self.closed:
            return self._end(row, event.at_ns, FinishReason.CANCELLED, FinishDetail.CLOSED)
        self._queue(row, event.at_ns)
        return self._ask_lease(event.at_ns)

    def _queue(self, row: Row, at_ns: int) -> None:
        self.line.add(row)
        if self.lease is LeaseState.ASKED:
            row.lease_wanted_ns = row.lease_wanted_ns or at_ns

    def _cancel_asked(self, event: ev.CancelAsked) -> list[ev.Instruction]:
        row = self.rows.get(event.row_id)
        if row is None:
            return []
        return self._end(row, event.at_ns, FinishReason.CANCELLED, event.detail) + self._rest_if_idle(event.at_ns)

    def _close_asked(self, event: ev.CloseAsked) -> list[ev.Instruction]:
        self.closed = True
        steps = self._end_all(list(self.rows.values()), event.at_ns, FinishDetail.CLOSED)
        steps += [ev.Evict(entry_id) for entry_id in self.memory.prefixes.clear()]
        return steps + self._rest_if_idle(event.at_ns)

    def _end_all(self, rows: list[Row], at_ns: int, detail: FinishDetail) -> list[ev.Instruction]:
        return [step for row in rows for step in self._end(row, at_ns, FinishReason.CANCELLED, detail)]

    def _end(
        self,
        row: Row,
        at_ns: int,
        reason: FinishReason,
        detail: FinishDetail | None,
        error: tuple[str, str] | None = None,
    ) -> list[ev.Instruction]:
        opened = row.opened
        if row.status is RowStatus.DECODE:
            self._decoding.remove(row)
        elif row.status is RowStatus.PREFILL:
            self._prefilling.remove(row)
        else:
            self.line.remove(row)
        row.status, row.finish_reason, row.finish_detail, row.ended_ns = reason.status, reason, detail, at_ns
        self._slots.give(row.slot)
        self.sharing.left(row)
        counter = str(reason.status)
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        self._deadlines.remove(row.id)
        del self.rows[row.id], self._placements[row.id]
        keep_as, keep_tokens = self.memory.leave(row, worth_keeping=reason.status is RowStatus.FINISHED)
        self.ring.record(at_ns, Kind.END, row.id, self.counters.steps, _place_of(reason), _place_of(detail))
        settle = ev.Settle(row.id, reason, detail, error, opened)
        return [ev.Drop(row.id, keep_as, keep_tokens), settle] if opened else [settle]

    # ------------------------------------------------------------ the device

    def _ask_lease(self, at_ns: int) -> list[ev.Instruction]:
        if self.lease is not LeaseState.NONE or not self.rows:
            return []
        for row in self.line:
            row.lease_wanted_ns = row.lease_wanted_ns or at_ns
        self.lease = LeaseState.ASKED
        return [ev.AskLease()]

    def _lease_granted(self, event: ev.LeaseGranted) -> list[ev.Instruction]:
        self.lease, self._place = LeaseState.HELD, event.place
        self.ring.record(event.at_ns, Kind.LEASE, step=self.counters.steps, a=1, b=event.place)
        return self._rest_if_idle(event.at_ns)

    def _lease_lost(self, event: ev.LeaseLost) -> list[ev.Instruction]:
        self._no_lease()
        return self._ask_lease(event.at_ns)

    def _lease_wanted(self, event: ev.LeaseWanted) -> list[ev.Instruction]:
        self._fences.setdefault(event.place, self._next_seq)
        self.ring.record(event.at_ns, Kind.LEASE, step=self.counters.steps, a=2, b=event.place)
        return []

    def _lease_unwanted(self, event: ev.LeaseUnwanted) -> list[ev.Instruction]:
        self._fences.pop(event.place, None)
        self.ring.record(event.at_ns, Kind.LEASE, step=self.counters.steps, a=3, b=event.place)
        return []

    def _no_lease(self) -> None:
        """A place that was held serves once; those that still wait keep their fences."""
        if self.lease is LeaseState.HELD:
            self._fences.pop(self._place, None)
        else:
            self._fences.clear()
        self.lease = LeaseState.NONE

    def _rest_if_idle(self, at_ns: int) -> list[ev.Instruction]:
        """Hand the device on (or give up the place in its line) when there is nothing to run."""
        if self.lease is LeaseState.NONE or self.rows:
            return []
        return self._give_lease(at_ns)

    def _give_lease(self, at_ns: int) -> list[ev.Instruction]:
        self._no_lease()
        self.ring.record(at_ns, Kind.LEASE, step=self.counters.steps)
        return [ev.GiveLease()]

    # ------------------------------------------------------------ deciding

    def _turn(self, event: ev.Turn) -> list[ev.Instruction]:
        steps = self._expire(event.at_ns)
        if self.reins.held:
            self._note_wait(event.at_ns, None)
            # Nothing is computed: whoever waits for the device may have it meanwhile.
            return steps + (self._give_lease(event.at_ns) if self.lease is not LeaseState.NONE else [])
        if self.lease is not LeaseState.HELD:
            self._note_wait(event.at_ns, None)
            return steps + self._ask_lease(event.at_ns) + self._rest_if_idle(event.at_ns)
        head = None
        if self.has_room:
            admitted, head = self._admit(event)
            steps += admitted
        self._note_wait(event.at_ns, head)
        self._note_memory(event.at_ns)
        if self._running:
            self.reins.computed()
        steps += self._compute(event.at_ns)
        if not self._prefilling and not self._decoding:
            steps += self._give_lease(event.at_ns)
            steps += self._ask_lease(event.at_ns)
        return steps

    def _compute(self, at_ns: int) -> list[ev.Instruction]:
        """A chunk of prompts, then a step of the rows that write; those that only begin wait for short prompts."""
        opening = self._opens(at_ns)
        parts = self.planner.plan(self._prefilling, rows_wait=bool(self._decoding) and not opening)
        if opening and not all(part.last for part in parts):  # a long prompt is nothing to wait for
            opening, parts = False, self.planner.plan(self._prefilling, rows_wait=True)
        steps: list[ev.Instruction] = [ev.Prefill(parts)] if parts else []
        if self._decoding and not (opening and parts):
            steps.append(ev.Decode(tuple(row.id for row in self._decoding)))
        return steps

    def _opens(self, at_ns: int) -> bool:
        """Whether none of the rows that write has a token yet, and the first of them has not waited long for others."""
        if not self._decoding or any(row.token_ids for row in self._decoding):
            return False
        return at_ns - self._decoding[0].chunks[-1].ended_ns < OPENING_NS

    def _expire(self, at_ns: int) -> list[ev.Instruction]:
        late = [self.rows[row_id] for row_id in self._deadlines.passed(at_ns)]
        return self._end_all(late, at_ns, FinishDetail.DEADLINE)

    def _admit(self, event: ev.Turn) -> tuple[list[ev.Instruction], Row | None]:
        """Admit whoever may be; with it comes the first of those who would have been next."""
        if self.settings.policy is BuiltIn.STATIC and self._decoding:
            return [], None
        if self._blocked is not None and event.order is None and self._blocked[0] == self._admission_state:
            return [], self._blocked[1]
        steps: list[ev.Instruction] = []
        fence = self._fences.get(self._place)
        named = None if event.order is None else self.line.named(event.order)
        while (head := self.line.head(named, fence)) is not None and self._running < self.settings.max_rows:
            refusal = None if head.opened else self.memory.refusal(head)
            if refusal is not None:
                steps += self._end(head, event.at_ns, FinishReason.ERROR, None, (refusal, ""))
                continue
            row = self.line.admit(
                self.line.candidates(named, fence), lambda row: self._fits(row, event.at_ns), self._runs_alone
            )
            if row is None:
                break
            steps += self._enter(row, event.at_ns)
        self._blocked = (self._admission_state, head) if named is None else None
        return steps, head

    @property
    def _admission_state(self) -> tuple[object, ...]:
        """All that admission depends on but for a user's policy: while it is the same, so is the answer."""
        memory, fence = self.memory, self._fences.get(self._place)
        return self.line.changes, fence, memory.budget, memory.projected, self._running, self.sharing.changes

    def _note_wait(self, at_ns: int, head: Row | None) -> None:
        """Record why the head of the line waits, where that is something new."""
        if not self.line:
            noted = (0, WaitCause.NONE, 0)
        else:
            head = head or next(iter(self.line))
            noted = (head.id, *self._why_waits(head))
        if noted != self._noted:
            self._noted = noted
            self.ring.record(at_ns, Kind.WAIT, noted[0], self.counters.steps, noted[1], noted[2])

    def _note_memory(self, at_ns: int) -> None:
        noted = (self.memory.projected, self.memory.prefixes.nbytes)
        if noted != self._noted_memory:
            self._noted_memory = noted
            self.ring.record(at_ns, Kind.MEMORY, step=self.counters.steps, a=noted[0], b=noted[1])

    def _why_waits(self, row: Row) -> tuple[WaitCause, int]:
        if self.reins.held:
            return WaitCause.PAUSED, 0
        if self.lease is not LeaseState.HELD:
            return WaitCause.DEVICE, 0
        return self._why_nobody_joins() or self._why_it_does_not(row)

    def _why_nobody_joins(self) -> tuple[WaitCause, int] | None:
        running = self._running
        if running == 1 and self._runs_alone(only := (self._prefilling or self._decoding)[0]):
            return WaitCause.ALONE, only.id
        if running >= self.settings.max_rows:
            return WaitCause.BATCH_FULL, running
        if self.settings.policy is BuiltIn.STATIC and self._decoding:
            return WaitCause.STATIC, running
        return None

    def _why_it_does_not(self, row: Row) -> tuple[WaitCause, int]:
        fence = self._fences.get(self._place)
        if fence is not None and row.seq >= fence:
            return WaitCause.FENCE, 0
        if self._runs_alone(row):
            return WaitCause.EMPTY, self._running
        if self.memory.fits(row) and (reader := self.sharing.reader_for(row)):
            return WaitCause.SHARED, reader
        return WaitCause.BUDGET, max(0, self.memory.over_by(row, self.memory.need_of(row) + self.memory.projected))

    @property
    def _running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def _enter(self, row: Row, at_ns: int) -> list[ev.Instruction]:
        again = row.opened
        row.status = RowStatus.PREFILL
        row.admitted_ns = row.admitted_ns or at_ns
        row.slot = self._slots.take()
        steps: list[ev.Instruction] = []
        if not again:
            entry_id, cached = self.memory.find_prefix(row)
            row.prefilled = row.cached_tokens = cached
            row.request = without_twins(row, self._prefilling)
            steps.append(ev.Open(row.id, entry_id, cached))
        self._prefilling.append(row)
        steps += [ev.Evict(entry_id) for entry_id in self.memory.enter(row)]
        self.sharing.reads(row)
        self.ring.record(at_ns, Kind.ADMIT, row.id, self.counters.steps, row.cached_tokens, row.slot)
        return steps

    def _fits(self, row: Row, at_ns: int) -> bool:
        running = self._running
        if running >= self.settings.max_rows:
            return False
        if self._placements[row.id].mechanism is Mechanism.SERIAL:
            return running == 0
        alone = running == 1 and self._runs_alone((self._prefilling or self._decoding)[0])
        return running == 0 or (not alone and self.memory.fits(row) and not self.sharing.holds(row, at_ns))

    def _runs_alone(self, row: Row) -> bool:
        return self._placements[row.id].mechanism is Mechanism.SERIAL

    # ------------------------------------------------------------ outcomes

    def _prefill_done(self, event: ev.PrefillDone) -> list[ev.Instruction]:
        steps: list[ev.Instruction] = []
        spent = event.at_ns - event.began_ns
        if not event.errors:
            self.planner.learn_forward(event.parts, spent)
        for part in event.parts:
            row = self.rows.get(part.row_id)
            if row is None or row.status is not RowStatus.PREFILL:
                continue
            error = event.errors.get(part.row_id)
            if error is not None:
                steps += self._end(row, event.at_ns, FinishReason.ERROR, None, error)
                continue
            self.ring.record(event.at_ns, Kind.CHUNK, row.id, self.counters.steps, part.start, part.stop, spent)
            steps += self._advance(row, part, event)
        return steps

    def _advance(self, row: Row, part: ev.PrefillPart, event: ev.PrefillDone) -> list[ev.Instruction]:
        row.prefilled = part.stop
        row.chunks.append(Chunk(part.start, part.stop, event.began_ns, event.at_ns))
        self._prefilling.remove(row)
        if part.last:
            self._decoding.append(row)
            self.sharing.left(row)
            row.status = RowStatus.DECODE
        else:
            # To the end of the turn order: long prompts take turns, and short ones slip in between.
            self._prefilling.append(row)
            self.sharing.advanced(row)
        kept = self.memory.snapshot(row, part)
        return [kept] if kept is not None else []

    def _kept(self, event: ev.Kept) -> list[ev.Instruction]:
        return [ev.Evict(entry_id) for entry_id in self.memory.kept(event)]

    def _budget_set(self, event: ev.BudgetSet) -> list[ev.Instruction]:
        return [ev.Evict(entry_id) for entry_id in self.memory.set_budget(event.nbytes)]

    def _step_done(self, event: ev.StepDone) -> list[ev.Instruction]:
        self.counters.steps += 1
        step, at_ns = self.counters.steps, event.at_ns
        record, rows = self.ring.record, self.rows
        self.planner.learn_step(at_ns - event.began_ns)
        record(at_ns, Kind.STEP, 0, step, len(self._decoding), len(self.line), at_ns - event.began_ns)
        steps: list[ev.Instruction] = []
        for outcome in event.outcomes:
            row = rows.get(outcome.row_id)
            if row is None:
                continue
            if outcome.token_id is not None:
                row.token_ids.append(outcome.token_id)
                row.first_token_ns = row.first_token_ns or at_ns
                record(at_ns, Kind.TOKEN, row.id, step, outcome.token_id, len(row.token_ids), outcome.user_ns)
            if outcome.error is not None:
                steps += self._end(row, at_ns, FinishReason.ERROR, None, outcome.error)
            elif outcome.finish is not None:
                steps += self._end(row, at_ns, *outcome.finish)
        return steps

    def _step_failed(self, event: ev.StepFailed) -> list[ev.Instruction]:
        """Each row goes back to the line once, to be prefilled from what it committed."""
        steps: list[ev.Instruction] = []
        for row_id in event.row_ids:
            row = self.rows.get(row_id)
            if row is None or row.status is not RowStatus.DECODE:
                continue
            if row.rewinds >= MAX_REWINDS:
                steps += self._end(row, event.at_ns, FinishReason.ERROR, None, event.error)
                continue
            self._decoding.remove(row)
            self.memory.leave(row, worth_keeping=False)
            row.rewinds += 1
            row.status, row.prefilled = RowStatus.QUEUED, 0
            self._slots.give(row.slot)
            row.slot = -1
            self._queue(row, event.at_ns)
            self.ring.record(event.at_ns, Kind.REWIND, row.id, self.counters.steps)
            steps.append(ev.Rewind(row_id))
        return steps

    _by_event: ClassVar[dict[type, Callable[[Any, Any], list[ev.Instruction]]]] = {
        ev.Submitted: _submitted,
        ev.CancelAsked: _cancel_asked,
        ev.CloseAsked: _close_asked,
        ev.LeaseGranted: _lease_granted,
        ev.LeaseLost: _lease_lost,
        ev.LeaseWanted: _lease_wanted,
        ev.LeaseUnwanted: _lease_unwanted,
        ev.BudgetSet: _budget_set,
        ev.Turn: _turn,
        ev.PolicyFailed: Controlled.policy_failed,
        ev.PrefillDone: _prefill_done,
        ev.Kept: _kept,
        ev.StepDone: _step_done,
        ev.StepFailed: _step_failed,
        ev.PauseAsked: Controlled.pause_asked,
        ev.ResumeAsked: Controlled.resume_asked,
        ev.StepAsked: Controlled.step_asked,
        ev.PaceAsked: Controlled.pace_asked,
        ev.PriorityAsked: Controlled.priority_asked,
        ev.ExtendAsked: Controlled.extend_asked,
    }


def _place_of(member: FinishReason | FinishDetail | None) -> int:
    """An enumeration's member as its place, -1 for none: the ring holds integers."""
    return -1 if member is None else list(type(member)).index(member)

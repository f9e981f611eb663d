"""The scheduler: events in, instructions out. It alone changes a row's state.

A pure state machine: no thread, no clock, no MLX. The engine thread stamps each event, hands it in,
and executes what comes back in order; each outcome is the next event. Rows wait in one line, the
highest priority first and first come first served within it. A serial row runs alone; continuous
rows share the batch up to `max_rows`, rows in prefill included.

Exclusion: a place in the device's line serves the rows that were submitted before anybody queued behind
it (a fence in our own line); they run to their end, then the device is handed on and asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.rows import Chunk, FinishDetail, FinishReason, Row, RowStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.placement import Placement

MAX_REWINDS = 1
"""How often a row whose forward failed is prefilled again before it gets the error."""


class LeaseState(StrEnum):
    """What the scheduler knows of the device."""

    NONE = "none"
    ASKED = "asked"
    HELD = "held"


@dataclass(slots=True)
class Counters:
    """How many rows came and how they went; steps taken."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0


@dataclass(slots=True)
class Scheduler:
    """Decides which rows are computed next.

    Args:
        max_rows: rows in the batch at once (prefill and decode together).
        chunk: prompt tokens computed between two looks at the inbox.
    """

    max_rows: int = 1
    chunk: int = 128
    rows: dict[int, Row] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    lease: LeaseState = LeaseState.NONE
    closed: bool = False
    _placements: dict[int, Placement] = field(default_factory=dict)
    _queue: list[int] = field(default_factory=list)
    _prefilling: list[int] = field(default_factory=list)
    _decoding: list[int] = field(default_factory=list)
    _rewinds: dict[int, int] = field(default_factory=dict)
    _next_seq: int = 0
    _place: int = 0
    _fences: dict[int, int] = field(default_factory=dict)

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Take one event, change the state, return what to do, in order."""
        return self._by_event[type(event)](self, event)

    # ------------------------------------------------------------ what others may read

    @property
    def queued(self) -> int:
        """Rows that wait."""
        return len(self._queue)

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
        times = [t for row in self.rows.values() if (t := row.deadline_ns) is not None]
        return min(times, default=None)

    def rows_ahead(self, row_id: int) -> int | None:
        """How many rows come before a queued one (running rows too), None if it does not wait.

        Any thread may ask: it reads a copy of the line.
        """
        line = list(self._queue)
        return line.index(row_id) + len(self._prefilling) + len(self._decoding) if row_id in line else None

    # ------------------------------------------------------------ arrivals and departures

    def _submitted(self, event: ev.Submitted) -> list[ev.Instruction]:
        row = Row(event.request, self._next_seq, queued_ns=event.asked_ns)
        self._next_seq += 1
        self.counters.submitted += 1
        self.rows[row.id] = row
        self._placements[row.id] = event.placement
        if self.closed:
            return self._end(row, event.at_ns, FinishReason.CANCELLED, FinishDetail.CLOSED)
        self._queue.append(row.id)
        self._queue.sort(key=self._rank)
        return self._ask_lease(event.at_ns)

    def _rank(self, row_id: int) -> tuple[int, int]:
        row = self.rows[row_id]
        return -row.request.priority, row.seq

    def _cancel_asked(self, event: ev.CancelAsked) -> list[ev.Instruction]:
        row = self.rows.get(event.row_id)
        if row is None:
            return []
        return self._end(row, event.at_ns, FinishReason.CANCELLED, event.detail) + self._rest_if_idle()

    def _close_asked(self, event: ev.CloseAsked) -> list[ev.Instruction]:
        self.closed = True
        ends = [
            self._end(r, event.at_ns, FinishReason.CANCELLED, FinishDetail.CLOSED) for r in list(self.rows.values())
        ]
        return [step for steps in ends for step in steps] + self._rest_if_idle()

    def _end(
        self,
        row: Row,
        at_ns: int,
        reason: FinishReason,
        detail: FinishDetail | None,
        error: tuple[str, str] | None = None,
    ) -> list[ev.Instruction]:
        opened = row.status in (RowStatus.PREFILL, RowStatus.DECODE) or row.id in self._rewinds
        row.status, row.finish_reason, row.finish_detail, row.ended_ns = reason.status, reason, detail, at_ns
        counter = str(reason.status)
        setattr(self.counters, counter, getattr(self.counters, counter) + 1)
        for line in (self._queue, self._prefilling, self._decoding):
            if row.id in line:
                line.remove(row.id)
        for table in (self.rows, self._placements, self._rewinds):
            table.pop(row.id, None)
        settle = ev.Settle(row.id, reason, detail, error, opened)
        return [ev.Drop(row.id), settle] if opened else [settle]

    # ------------------------------------------------------------ the device

    def _ask_lease(self, at_ns: int) -> list[ev.Instruction]:
        if self.lease is LeaseState.HELD:
            return []
        for row_id in self._queue:
            self.rows[row_id].lease_wanted_ns = self.rows[row_id].lease_wanted_ns or at_ns
        if self.lease is LeaseState.ASKED or not self.rows:
            return []
        self.lease = LeaseState.ASKED
        return [ev.AskLease()]

    def _lease_granted(self, event: ev.LeaseGranted) -> list[ev.Instruction]:
        self.lease, self._place = LeaseState.HELD, event.place
        return self._rest_if_idle()

    def _lease_lost(self, event: ev.LeaseLost) -> list[ev.Instruction]:
        self._no_lease()
        return self._ask_lease(event.at_ns)

    def _lease_wanted(self, event: ev.LeaseWanted) -> list[ev.Instruction]:
        self._fences.setdefault(event.place, self._next_seq)
        return []

    def _lease_unwanted(self, event: ev.LeaseUnwanted) -> list[ev.Instruction]:
        self._fences.pop(event.place, None)
        return []

    def _no_lease(self) -> None:
        """A place that was held serves once; those that still wait keep their fences."""
        if self.lease is LeaseState.HELD:
            self._fences.pop(self._place, None)
        else:
            self._fences.clear()
        self.lease = LeaseState.NONE

    def _rest_if_idle(self) -> list[ev.Instruction]:
        """Hand the device on (or give up the place in its line) when there is nothing to run."""
        if self.lease is LeaseState.NONE or self.rows:
            return []
        self._no_lease()
        return [ev.GiveLease()]

    # ------------------------------------------------------------ deciding

    def _turn(self, event: ev.Turn) -> list[ev.Instruction]:
        steps = self._expire(event.at_ns)
        if self.lease is not LeaseState.HELD:
            return steps + self._ask_lease(event.at_ns) + self._rest_if_idle()
        steps += self._admit(event.at_ns)
        steps += self._next_chunk()
        if self._decoding:
            steps.append(ev.Decode(tuple(self._decoding)))
        if not self._prefilling and not self._decoding:
            self._no_lease()
            steps.append(ev.GiveLease())
            steps += self._ask_lease(event.at_ns)
        return steps

    def _expire(self, at_ns: int) -> list[ev.Instruction]:
        late = [r for r in self.rows.values() if r.deadline_ns is not None and r.deadline_ns <= at_ns]
        ends = [self._end(row, at_ns, FinishReason.CANCELLED, FinishDetail.DEADLINE) for row in late]
        return [step for steps in ends for step in steps]

    def _admit(self, at_ns: int) -> list[ev.Instruction]:
        steps: list[ev.Instruction] = []
        while (row := self._head()) is not None and self._fits(row):
            self._queue.remove(row.id)
            self._prefilling.append(row.id)
            row.status = RowStatus.PREFILL
            row.admitted_ns = row.admitted_ns or at_ns
            if row.id not in self._rewinds:
                steps.append(ev.Open(row.id))
        return steps

    def _head(self) -> Row | None:
        """The first row of the line that is not behind the fence."""
        fence = self._fences.get(self._place)
        rows = (self.rows[row_id] for row_id in self._queue)
        return next((row for row in rows if fence is None or row.seq < fence), None)

    def _fits(self, row: Row) -> bool:
        running = self._prefilling + self._decoding
        if self._placements[row.id].mechanism is Mechanism.SERIAL:
            return not running
        alone = any(self._placements[row_id].mechanism is Mechanism.SERIAL for row_id in running)
        return not alone and len(running) < self.max_rows

    def _next_chunk(self) -> list[ev.Instruction]:
        """One chunk of one prompt between two steps; the last chunk also gives the next distribution."""
        if not self._prefilling:
            return []
        row = self.rows[self._prefilling[0]]
        known = row.prompt_tokens + row.generated_tokens
        stop = min(row.prefilled + self.chunk, known)
        # The last token is always fed alone, as mlx-lm does: a chunk that would leave only it takes it along.
        if stop >= known - 1:
            stop = known
        return [ev.Prefill(row.id, row.prefilled, stop, last=stop == known)]

    # ------------------------------------------------------------ outcomes

    def _prefill_done(self, event: ev.PrefillDone) -> list[ev.Instruction]:
        row = self.rows.get(event.row_id)
        if row is None:
            return []
        if event.error is not None:
            return self._end(row, event.at_ns, FinishReason.ERROR, None, event.error)
        row.prefilled = event.stop
        row.chunks.append(Chunk(event.start, event.stop, event.began_ns, event.at_ns))
        if row.prefilled == row.prompt_tokens + row.generated_tokens:
            self._prefilling.remove(row.id)
            self._decoding.append(row.id)
            row.status = RowStatus.DECODE
        return []

    def _step_done(self, event: ev.StepDone) -> list[ev.Instruction]:
        self.counters.steps += 1
        steps: list[ev.Instruction] = []
        for outcome in event.outcomes:
            row = self.rows.get(outcome.row_id)
            if row is None:
                continue
            if outcome.token_id is not None:
                row.generated_tokens += 1
                row.first_token_ns = row.first_token_ns or event.at_ns
            if outcome.error is not None:
                steps += self._end(row, event.at_ns, FinishReason.ERROR, None, outcome.error)
            elif outcome.finish is not None:
                steps += self._end(row, event.at_ns, *outcome.finish)
        return steps

    def _step_failed(self, event: ev.StepFailed) -> list[ev.Instruction]:
        """Each row goes back to the head of the line once, to be prefilled from what it committed."""
        steps: list[ev.Instruction] = []
        for row_id in event.row_ids:
            row = self.rows.get(row_id)
            if row is None:
                continue
            if self._rewinds.get(row_id, 0) >= MAX_REWINDS:
                steps += self._end(row, event.at_ns, FinishReason.ERROR, None, event.error)
                continue
            self._rewinds[row_id] = self._rewinds.get(row_id, 0) + 1
            self._decoding.remove(row_id)
            self._queue.append(row_id)
            row.status, row.prefilled = RowStatus.QUEUED, 0
            steps.append(ev.Rewind(row_id))
        self._queue.sort(key=self._rank)
        return steps

    _by_event: ClassVar[dict[type, Callable[[Any, Any], list[ev.Instruction]]]] = {
        ev.Submitted: _submitted,
        ev.CancelAsked: _cancel_asked,
        ev.CloseAsked: _close_asked,
        ev.LeaseGranted: _lease_granted,
        ev.LeaseLost: _lease_lost,
        ev.LeaseWanted: _lease_wanted,
        ev.LeaseUnwanted: _lease_unwanted,
        ev.Turn: _turn,
        ev.PrefillDone: _prefill_done,
        ev.StepDone: _step_done,
        ev.StepFailed: _step_failed,
    }

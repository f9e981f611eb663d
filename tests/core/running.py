"""A scheduler with an engine that a test plays: a clock that moves by given steps, and random or scripted traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.placement import Capabilities, Mechanism, resolve
from mlx_notebook.core.recording import Recording, recording_of
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.ring import Ring
from mlx_notebook.core.rows import FinishDetail, FinishReason, Row
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

MS = 1_000_000
BOOM = ("RuntimeError: boom", "Traceback ...")


@dataclass
class Run:
    """One run. Every call moves the clock by what it is told (`ms`), 1 ms if it is told nothing."""

    settings: SchedulerSettings = field(default_factory=lambda: SchedulerSettings(max_rows=2, chunk=8))
    mechanism: Mechanism = Mechanism.CONTINUOUS
    now: int = 1000 * MS
    holds: bool = True

    def __post_init__(self) -> None:
        self.ring = Ring(1 << 12)
        self.scheduler = Scheduler(self.settings, self.ring)
        self.log = DecisionLog()
        self.said: list[list[ev.Instruction]] = []
        self.rows: dict[int, Row] = {}
        self.prefills: list[ev.Prefill] = []
        self.decodes: list[ev.Decode] = []
        self.answers: list[ev.Extended] = []
        self.asked = False
        self.place = 1

    # ------------------------------------------------------------ events

    def feed(self, event: ev.Event) -> list[ev.Instruction]:
        self.log.add(event)
        said = self.scheduler.handle(event)
        self.said.append(said)
        for step in said:
            self._note(step)
        return said

    def _note(self, step: ev.Instruction) -> None:
        if isinstance(step, ev.Prefill):
            self.prefills.append(step)
        elif isinstance(step, ev.Decode):
            self.decodes.append(step)
        elif isinstance(step, ev.AskLease):
            self.asked = True
        elif isinstance(step, ev.GiveLease):
            self.asked = False
            self.place += 1
        elif isinstance(step, ev.Extended):
            self.answers.append(step)

    def tick(self, ms: float = 1) -> int:
        self.now += int(ms * MS)
        return self.now

    def submit(
        self,
        row_id: int,
        prompt: int = 5,
        max_tokens: int = 4,
        *,
        priority: int = 0,
        asked_ms: float = 0,
        mechanism: Mechanism | None = None,
        tokens: Iterable[int] | None = None,
    ) -> None:
        ids = tuple(range(row_id * 1000, row_id * 1000 + prompt)) if tokens is None else tuple(tokens)
        request = Request(row_id, RequestShape(ids, SamplingOptions(max_tokens=max_tokens)), priority=priority)
        how = mechanism or self.mechanism
        capabilities = Capabilities(vocab_size=1 << 20, continuous=how is Mechanism.CONTINUOUS, max_rows=8)
        at = self.tick()
        placed = resolve(request.shape, capabilities, 0)
        self.feed(ev.Submitted(at, at - int(asked_ms * MS), request, placed))
        self.rows[row_id] = self.scheduler.rows[row_id]

    def grant(self) -> None:
        if self.asked:
            self.asked = False
            self.feed(ev.LeaseGranted(self.tick(), self.place))

    def turn(self, ms: float = 1) -> None:
        self.feed(ev.Turn(self.tick(ms)))

    def chunks(self, ms: float = 10, *, fails: bool = False) -> None:
        """Compute what prefill was told to."""
        while self.prefills:
            parts = tuple(p for p in self.prefills.pop(0).parts if p.row_id in self.scheduler.rows)
            began = self.now
            errors = {parts[0].row_id: BOOM} if fails and parts else {}
            if parts:
                self.feed(ev.PrefillDone(self.tick(ms), began, parts, errors))

    def steps(self, ms: float = 10, *, fails: bool = False, user_ms: float = 0) -> None:
        """Compute what decode was told to: a row ends at its limit."""
        while self.decodes:
            ids = tuple(n for n in self.decodes.pop(0).row_ids if n in self.scheduler.rows)
            began = self.now
            at = self.tick(ms)
            if fails:
                self.feed(ev.StepFailed(at, ids, BOOM))
            else:
                outcomes = tuple(self._outcome(n, int(user_ms * MS)) for n in ids)
                self.feed(ev.StepDone(at, began, tuple(one for one in outcomes if one is not None)))

    def _outcome(self, row_id: int, user_ns: int) -> ev.RowOutcome | None:
        row = self.scheduler.rows[row_id]
        told = ev.RowOutcome(row_id, 7, "x", user_ns=user_ns)
        if row.generated_tokens + 1 >= row.request.shape.sampling.max_tokens:
            return told._replace(finish=(FinishReason.LENGTH, FinishDetail.MAX_TOKENS))
        return told

    def round(self, *, chunk_ms: float = 10, step_ms: float = 10, user_ms: float = 0) -> None:
        """One turn of the engine, with its work; the device is granted where it is asked for."""
        if self.holds:
            self.grant()
        self.turn()
        self.chunks(chunk_ms)
        self.steps(step_ms, user_ms=user_ms)

    def until(self, *row_ids: int, rounds: int = 500) -> None:
        """Go on until these rows are over."""
        for _ in range(rounds):
            if not any(n in self.scheduler.rows for n in row_ids):
                return
            self.round()
        raise AssertionError(f"rows {row_ids} do not come to an end")

    # ------------------------------------------------------------ what was recorded

    def recording(self) -> Recording:
        taken = self.ring.since(0)
        return recording_of([taken.columns], taken.missed)

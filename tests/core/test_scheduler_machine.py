"""Random arrivals, cancels, failures, deadlines and lease news: the scheduler loses nothing and does nothing twice.

The machine plays the engine thread: it executes what the scheduler says and hands back outcomes of
its own choosing, among them wrong moments (a chunk that comes back after its row was cancelled).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.core.scheduler import MAX_REWINDS, Scheduler
from tests.core.driving import MS, last_token, placed, request, token

pytestmark = pytest.mark.slow

BOOM = ("RuntimeError: boom", "Traceback ...")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(max_rows=st.integers(1, 4), chunk=st.integers(1, 5))
    def start(self, max_rows: int, chunk: int) -> None:
        self.max_rows, self.chunk = max_rows, chunk
        self.scheduler = Scheduler(max_rows=max_rows, chunk=chunk)
        self.now_ns = 0
        self.log: list[ev.Event] = []
        self.said: list[list[ev.Instruction]] = []
        self.mechanisms: dict[int, Mechanism] = {}
        self.opened: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()
        self.settled: Counter[int] = Counter()
        self.rewound: Counter[int] = Counter()
        self.chunks: list[ev.Prefill] = []
        self.steps: list[ev.Decode] = []
        self.asked = self.held = False
        self.place = 0

    # ------------------------------------------------------------ playing the engine thread

    def feed(self, event: ev.Event) -> None:
        self.log.append(event)
        said = self.scheduler.handle(event)
        self.said.append(said)
        for step in said:
            self.execute(step)

    def execute(self, step: ev.Instruction) -> None:
        match step:
            case ev.AskLease():
                assert not self.asked
                assert not self.held
                self.asked = True
            case ev.GiveLease():
                assert self.asked or self.held
                assert not self.running()
                self.asked = self.held = False
            case ev.Open(row_id):
                assert self.held
                self.opened[row_id] += 1
                assert self.opened[row_id] == 1
            case ev.Drop(row_id):
                self.dropped[row_id] += 1
                assert self.opened[row_id] == self.dropped[row_id] == 1
            case ev.Settle(row_id, opened=opened):
                self.settled[row_id] += 1
                assert self.settled[row_id] == 1
                assert opened == bool(self.opened[row_id])
                assert self.dropped[row_id] == self.opened[row_id]
            case ev.Rewind(row_id):
                self.rewound[row_id] += 1
                assert self.rewound[row_id] <= MAX_REWINDS
            case ev.Prefill(row_id, start, stop, last):
                row = self.scheduler.rows[row_id]
                known = row.prompt_tokens + row.generated_tokens
                assert self.held
                assert self.opened[row_id]
                assert start == row.prefilled < stop <= min(start + self.chunk + 1, known)
                assert last == (stop == known)
                self.chunks.append(step)
            case ev.Decode(row_ids):
                assert self.held
                assert len(set(row_ids)) == len(row_ids) > 0
                assert all(self.opened[row_id] and not self.settled[row_id] for row_id in row_ids)
                self.steps.append(step)

    def running(self) -> list[int]:
        return [row.id for row in self.scheduler.rows.values() if row.status in ("prefill", "decode")]

    def at(self) -> int:
        self.now_ns += MS
        return self.now_ns

    # ------------------------------------------------------------ what may happen

    @rule(
        prompt=st.integers(1, 12),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.integers(1, 30),
        serial=st.booleans(),
    )
    def submit(self, prompt: int, priority: int, deadline: int | None, *, serial: bool) -> None:
        row_id = len(self.mechanisms)
        self.mechanisms[row_id] = Mechanism.SERIAL if serial else Mechanism.CONTINUOUS
        asked = request(row_id, prompt, priority=priority, deadline=None if deadline is None else deadline / 1000)
        at = self.at()
        self.feed(ev.Submitted(at, at, asked, placed(asked, self.mechanisms[row_id])))

    @precondition(lambda self: self.mechanisms)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row_id = data.draw(st.integers(0, len(self.mechanisms)))
        self.feed(ev.CancelAsked(self.at(), row_id, FinishDetail.USER))

    @precondition(lambda self: self.asked)
    @rule()
    def grant(self) -> None:
        self.asked, self.held = False, True
        self.place += 1
        self.feed(ev.LeaseGranted(self.at(), self.place))

    @precondition(lambda self: self.held)
    @rule()
    def lose(self) -> None:
        self.held = False
        self.feed(ev.LeaseLost(self.at()))

    @rule(some=st.booleans(), ahead=st.integers(0, 2))
    def waiters(self, ahead: int, *, some: bool) -> None:
        place = self.place + ahead
        self.feed(ev.LeaseWanted(self.at(), place) if some else ev.LeaseUnwanted(self.at(), place))

    @rule(later=st.sampled_from([0, 0, 0, 20 * MS]))
    def turn(self, later: int) -> None:
        self.now_ns += later
        self.feed(ev.Turn(self.at()))

    @precondition(lambda self: self.chunks)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def chunk_done(self, *, fails: bool) -> None:
        # As the loop does: a chunk of a row that is over is not computed.
        step = self.chunks.pop(0)
        row = self.scheduler.rows.get(step.row_id)
        if row is None or (row.status == "prefill" and row.prefilled == step.start):
            at = self.at()
            self.feed(ev.PrefillDone(at, step.row_id, step.start, step.stop, at, BOOM if fails else None))

    @precondition(lambda self: self.steps)
    @rule(ends=st.integers(0, 15), errors=st.integers(0, 15))
    def step_done(self, ends: int, errors: int) -> None:
        step = self.steps.pop(0)
        outcomes = [
            ev.RowOutcome(row_id, 7, "x", error=BOOM)
            if errors == 1 << bit
            else last_token(row_id)
            if ends >> bit & 1
            else token(row_id)
            for bit, row_id in enumerate(self.still_writing(step))
        ]
        at = self.at()
        self.feed(ev.StepDone(at, at, tuple(outcomes)))

    @precondition(lambda self: self.steps)
    @rule()
    def step_fails(self) -> None:
        rows = self.still_writing(self.steps.pop(0))
        self.feed(ev.StepFailed(self.at(), rows, BOOM))

    def still_writing(self, step: ev.Decode) -> tuple[int, ...]:
        rows = self.scheduler.rows
        return tuple(n for n in step.row_ids if n in rows and rows[n].status == "decode")

    @precondition(lambda self: len(self.log) > 20)
    @rule()
    def close(self) -> None:
        self.feed(ev.CloseAsked(self.at()))

    # ------------------------------------------------------------ what must hold

    @invariant()
    def no_row_is_lost_or_ends_twice(self) -> None:
        live = set(self.scheduler.rows)
        assert live | set(self.settled) == set(self.mechanisms)
        assert not live & set(self.settled)
        counters = self.scheduler.counters
        assert counters.submitted == len(self.mechanisms)
        assert counters.finished + counters.cancelled + counters.failed == len(self.settled)

    @invariant()
    def each_live_row_stands_in_one_line(self) -> None:
        scheduler = self.scheduler
        assert scheduler.queued + scheduler.prefilling + scheduler.decoding == len(scheduler.rows)

    @invariant()
    def limits_are_kept(self) -> None:
        running = self.running()
        assert len(running) <= self.max_rows
        if any(self.mechanisms[row_id] is Mechanism.SERIAL for row_id in running):
            assert len(running) == 1

    @invariant()
    def what_is_open_is_dropped_at_the_rows_end(self) -> None:
        live_and_open = {n for n in self.opened if n in self.scheduler.rows}
        assert set(self.opened) - set(self.dropped) == live_and_open

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.a_replay_says_the_same()
        self.everything_ends()

    def a_replay_says_the_same(self) -> None:
        again = Scheduler(max_rows=self.max_rows, chunk=self.chunk)
        assert [again.handle(event) for event in self.log] == self.said

    def everything_ends(self) -> None:
        """Left alone, with the device granted whenever it is asked for, every row comes to its end."""
        for place in range(self.place + 3):
            self.feed(ev.LeaseUnwanted(self.at(), place))
        rounds = 0
        while self.scheduler.rows:
            rounds += 1
            assert rounds < 100 * (1 + len(self.mechanisms)), "rows that nobody moves"
            if self.asked:
                self.grant()
            self.feed(ev.Turn(self.at()))
            while self.chunks:
                self.chunk_done(fails=False)
            while self.steps:
                self.step_done(ends=2 ** len(self.mechanisms) - 1, errors=0)
        self.no_row_is_lost_or_ends_twice()
        self.feed(ev.Turn(self.at()))
        assert not self.held


TestScheduler: Any = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)

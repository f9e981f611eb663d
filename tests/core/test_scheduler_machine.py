"""Random arrivals, cancels, failures, deadlines and lease news: the scheduler loses nothing and does nothing twice.

The machine plays the engine thread: it executes what the scheduler says and hands back outcomes of
its own choosing, among them wrong moments (a chunk that comes back after its row was cancelled).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.line import MAX_PASSED_OVER
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.core.rows import FinishDetail, Row
from mlx_notebook.core.scheduler import MAX_REWINDS, Scheduler, SchedulerSettings
from tests.core.driving import MS, last_token, placed, request, token

pytestmark = pytest.mark.slow

BOOM = ("RuntimeError: boom", "Traceback ...")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        max_rows=st.integers(1, 4),
        chunk=st.none() | st.integers(1, 20),
        policy=st.sampled_from(list(BuiltIn)),
        budget=st.sampled_from([BLOCK, 2 * BLOCK, 5 * BLOCK, 1 << 40]),
        prompt_cache=st.sampled_from([0, 40, 150, 1 << 40, 1 << 40]),
        trimmable=st.booleans(),
        deterministic=st.booleans(),
        worth_waiting=st.sampled_from([MIN_REUSE, MIN_REUSE, 128]),
    )
    def start(self, max_rows: int, prompt_cache: int, chunk: int | None, deterministic: bool, **limits: Any) -> None:
        self.max_rows, self.ceiling = max_rows, prompt_cache
        self.settings = SchedulerSettings(
            max_rows=max_rows,
            chunk=16 if deterministic and chunk is None else chunk,  # as a gateway sees to
            cost=CacheCost(1),
            prompt_cache=prompt_cache,
            deterministic=deterministic,
            **limits,
        )
        self.scheduler = Scheduler(self.settings)
        self.log_of_decisions = DecisionLog()
        self.entries: dict[int, tuple[int, ...]] = {}
        self.rows: dict[int, Row] = {}
        self.pending: list[ev.Kept] = []
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
        self.log_of_decisions.add(event)
        ran = self.running()
        said = self.scheduler.handle(event)
        self.said.append(said)
        if set(self.running()) - set(ran):
            self.the_budget_is_kept()
        for step in said:
            self.execute(step)

    def execute(self, step: ev.Instruction) -> None:  # noqa: C901, PLR0912 - one case an instruction
        match step:
            case ev.AskLease():
                assert not self.asked
                assert not self.held
                self.asked = True
            case ev.GiveLease():
                assert self.asked or self.held
                assert not self.running()
                self.asked = self.held = False
            case ev.Open(row_id, entry_id, cached):
                assert self.held
                assert (entry_id is None) == (cached == 0)
                if entry_id is not None:
                    self.spares(self.entries[entry_id], row_id, cached)
                self.opened[row_id] += 1
                assert self.opened[row_id] == 1
            case ev.Drop(row_id, keep_as, keep_tokens):
                if keep_as is not None and keep_tokens is not None:
                    self.keep(keep_as, row_id, keep_tokens)
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
            case ev.Keep(row_id, entry_id, tokens):
                assert self.scheduler.rows[row_id].prefilled in (tokens, tokens + 1)
                assert tokens < self.scheduler.rows[row_id].prompt_tokens
                self.keep(entry_id, row_id, tokens)
            case ev.Evict(entry_id):
                del self.entries[entry_id]
            case ev.Prefill(parts):
                assert self.held
                assert len({part.row_id for part in parts}) == len(parts) > 0
                for part in parts:
                    row = self.scheduler.rows[part.row_id]
                    most = row.known_tokens
                    if self.settings.chunk is not None:
                        most = min(part.start + self.settings.chunk + 1, most)
                    assert self.opened[part.row_id]
                    assert part.start == row.prefilled < part.stop <= most
                    assert part.last == (part.stop == row.known_tokens)
                    if self.settings.deterministic:
                        self.bits_depend_on_positions_only(part)
                self.chunks.append(step)
            case ev.Decode(row_ids):
                assert self.held
                assert len(set(row_ids)) == len(row_ids) > 0
                assert all(self.opened[row_id] and not self.settled[row_id] for row_id in row_ids)
                self.steps.append(step)

    def keep(self, entry_id: int, row_id: int, tokens: int) -> None:
        row = self.rows[row_id]
        known = (*row.request.shape.prompt_ids, *row.token_ids)
        assert entry_id not in self.entries
        assert MIN_REUSE <= tokens <= len(known)
        assert row.request.cache_prompt
        assert self.ceiling > 0
        if self.settings.deterministic:
            assert tokens % (self.settings.chunk or 1) == 0
            assert tokens < row.prompt_tokens
        self.entries[entry_id] = known[:tokens]
        self.pending.append(ev.Kept(0, entry_id, tokens, tokens))

    def spares(self, kept: tuple[int, ...], row_id: int, cached: int) -> None:
        """A row starts from an entry: the beginnings are the same, and one token at least is left to compute."""
        prompt = self.scheduler.rows[row_id].request.shape.prompt_ids
        assert MIN_REUSE <= cached < len(prompt)
        assert kept[:cached] == prompt[:cached]
        assert self.settings.trimmable or cached == len(kept)
        if self.settings.deterministic:
            assert cached % (self.settings.chunk or 1) == 0

    def bits_depend_on_positions_only(self, part: ev.PrefillPart) -> None:
        chunk = self.settings.chunk or 1
        assert part.start % chunk == 0
        assert part.last or part.stop % chunk == 0

    def the_budget_is_kept(self) -> None:
        """Somebody has just been let in: all who run fit, but for one that began before and goes on alone."""
        memory, running = self.scheduler.memory, self.running()
        again = len(running) == 1 and self.scheduler.rows[running[0]].rewinds > 0
        assert memory.projected <= memory.budget or again

    def running(self) -> list[int]:
        return [row.id for row in self.scheduler.rows.values() if row.status in ("prefill", "decode")]

    def at(self) -> int:
        self.now_ns += MS
        return self.now_ns

    # ------------------------------------------------------------ what may happen

    @rule(
        shared=st.sampled_from([0, 15, 16, 20, 40, 40, 60]),
        own=st.integers(0, 12),
        boundaries=st.lists(st.integers(1, 70), max_size=2, unique=True).map(sorted),
        priority=st.integers(-1, 1),
        deadline=st.none() | st.integers(1, 300),
        serial=st.sampled_from([False, False, True]),
        cache_prompt=st.sampled_from([True, True, True, False]),
    )
    def submit(  # noqa: PLR0917 - what a request may have
        self,
        shared: int,
        own: int,
        boundaries: list[int],
        priority: int,
        deadline: int | None,
        serial: bool,
        cache_prompt: bool,
    ) -> None:
        row_id = len(self.mechanisms)
        self.mechanisms[row_id] = Mechanism.SERIAL if serial else Mechanism.CONTINUOUS
        ids = (*range(shared), *(1000 * (1 + row_id) + at for at in range(own if shared else own + 1)))
        plain = request(row_id, priority=priority, deadline=None if deadline is None else deadline / 1000)
        asked = replace(
            plain,
            shape=replace(plain.shape, prompt_ids=ids),
            boundaries=tuple(at for at in boundaries if at < len(ids)),
            cache_prompt=cache_prompt,
        )
        at = self.at()
        event = ev.Submitted(at, at, asked, placed(asked, self.mechanisms[row_id]))
        self.feed(event)
        if row_id in self.scheduler.rows:
            self.rows[row_id] = self.scheduler.rows[row_id]

    @rule(count=st.integers(2, 4), shared=st.sampled_from([20, 40, 60]), own=st.integers(1, 12))
    def burst(self, count: int, shared: int, own: int) -> None:
        """Rows that begin alike, and the turn that opens the first of them."""
        for _ in range(count):
            self.submit(shared, own, [], 0, None, serial=False, cache_prompt=True)
        if self.asked:
            self.grant()
        self.feed(ev.Turn(self.at()))

    @precondition(lambda self: self.scheduler.prefilling)
    @rule()
    def cancel_who_reads(self) -> None:
        row_id = next(row_id for row_id in self.running() if self.scheduler.rows[row_id].status == "prefill")
        self.feed(ev.CancelAsked(self.at(), row_id, FinishDetail.USER))

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

    @rule(
        later=st.sampled_from([0, 0, 0, 20 * MS]),
        order=st.none() | st.lists(st.integers(0, 20), unique=True).map(tuple),
    )
    def turn(self, later: int, order: tuple[int, ...] | None) -> None:
        self.now_ns += later
        self.feed(ev.Turn(self.at(), order))

    @precondition(lambda self: self.mechanisms)
    @rule(data=st.data(), priority=st.integers(-2, 2), tokens=st.integers(1, BLOCK))
    def change(self, data: st.DataObject, priority: int, tokens: int) -> None:
        row_id = data.draw(st.integers(0, len(self.mechanisms)))
        self.feed(ev.PriorityAsked(self.at(), row_id, priority))
        self.feed(ev.ExtendAsked(self.at(), row_id, tokens))

    def _round(self, ends: int) -> None:
        """A turn in which all that is computed goes well."""
        if self.asked:
            self.grant()
        self.feed(ev.Turn(self.at()))
        while self.chunks:
            self.chunk_done(fails=False)
        while self.steps:
            self.step_done(ends=ends, errors=0)

    @rule(rounds=st.integers(1, 6), ends=st.integers(0, 15))
    def goes_well_for_a_while(self, rounds: int, ends: int) -> None:
        """So that rows get far: read, written, kept, and found again."""
        for _ in range(rounds):
            self._round(ends)
            self.nothing_waits_to_be_told()

    @precondition(lambda self: self.chunks)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def chunk_done(self, *, fails: bool) -> None:
        # As the loop does: a chunk of a row that is over is not computed.
        step = self.chunks.pop(0)
        rows = self.scheduler.rows
        parts = tuple(
            part
            for part in step.parts
            if part.row_id not in rows
            or (rows[part.row_id].status == "prefill" and rows[part.row_id].prefilled == part.start)
        )
        if parts:
            at = self.at()
            self.feed(ev.PrefillDone(at, at, parts, {parts[-1].row_id: BOOM} if fails else {}))
            self.nothing_waits_to_be_told()

    @rule()
    def nothing_waits_to_be_told(self) -> None:
        while self.pending:
            told = self.pending.pop(0)
            self.feed(replace(told, at_ns=self.at()))

    @rule(blocks=st.integers(0, 6))
    def budget(self, blocks: int) -> None:
        self.feed(ev.BudgetSet(self.at(), blocks * BLOCK))

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
    def memory_is_kept(self) -> None:
        memory = self.scheduler.memory
        waiting = {told.entry_id for told in self.pending}
        held = sum(len(tokens) for entry_id, tokens in self.entries.items() if entry_id not in waiting)
        assert held == memory.prefixes.nbytes <= max(0, self.ceiling)
        running = self.running()
        assert memory.projected == sum(memory.need_of(self.scheduler.rows[row_id]) for row_id in running)

    @invariant()
    def who_waits_for_a_beginning_waits_for_one_who_reads_it(self) -> None:
        scheduler = self.scheduler
        for row in scheduler.waiting_rows():
            awaited = scheduler.sharing.awaited(row)
            if awaited is None:
                continue
            reader, tokens, stop = awaited
            assert scheduler.rows[reader.id] is reader
            assert reader.status == "prefill"
            assert reader.prefilled < stop <= tokens
            assert reader.request.shape.prompt_ids[:tokens] == row.request.shape.prompt_ids[:tokens]
            assert reader.request.cache_prompt
            assert row.request.cache_prompt

    @invariant()
    def nobody_starves(self) -> None:
        assert all(row.passed_over <= MAX_PASSED_OVER for row in self.scheduler.waiting_rows())

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
        again = Scheduler(self.settings)
        assert [again.handle(event) for event in self.log_of_decisions.events()] == self.said

    def everything_ends(self) -> None:
        """Left alone, with the device granted whenever it is asked for, every row comes to its end."""
        for place in range(self.place + 3):
            self.feed(ev.LeaseUnwanted(self.at(), place))
        rounds = 0
        while self.scheduler.rows:
            rounds += 1
            assert rounds < 100 * (1 + len(self.mechanisms)), "rows that nobody moves"
            self._round(ends=2 ** len(self.mechanisms) - 1)
        self.no_row_is_lost_or_ends_twice()
        self.feed(ev.Turn(self.at()))
        assert not self.held


TestScheduler: Any = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)

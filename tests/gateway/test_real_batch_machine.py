"""Random arrivals, cancels, deadlines, failures, lease requests and budgets over the real engine, through a gateway.

The engine is paused between most of what happens and computes as many turns as the machine says, so that a sequence
is the same sequence each time; some rules let it run free, and then check only what holds in any order.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mlx_notebook.core import events as ev
from mlx_notebook.core.ring import COLUMNS, Kind, Ring
from mlx_notebook.core.scheduler import Scheduler
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.errors import GatewayDead, MlxNotebookError, OverBudget
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import in_thread, wait_for
from tests.gateway.real_rows import CONDUCTS, Ask, Asked, faltering
from tests.gateway.test_everything_at_once import owning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.results import Result
    from tests.gateway.fakes import Resource

pytestmark = pytest.mark.slow

BATCH, CHUNK, KEPT_BYTES = 4, 8, 150_000
EXAMPLES = 4
COMPILED_BYTES = 1024
"""Functions that mlx-lm compiles keep a number for each shape that they saw; the smallest row takes ten times this."""

OPTIONS: list[dict[str, Any]] = [
    {},
    {"logprobs": 3},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.2, "seed": 6, "top_p": 0.9, "logprobs": 2},
    {"repetition_penalty": 1.3, "logprobs": 0},
    {"temperature": 0.7, "seed": 7, "top_k": 20, "min_p": 0.02, "frequency_penalty": 0.4},
    {"logit_bias": {7: 4.0, 9: -3.0}, "stop": ["e"]},
    {"regex": "[a-z]{2,}", "temperature": 1.0, "seed": 8},
    {"choices": ("yes", "no", "nobody"), "logprobs": 0},
]

asks = st.builds(
    Ask,
    text=st.integers(0, 1),
    length=st.sampled_from([1, 7, 8, 9, 17, 30, 33, 45]),
    options=st.builds(
        lambda chosen, most: tuple(sorted({**chosen, "max_tokens": most}.items(), key=str)),
        st.sampled_from(OPTIONS),
        st.sampled_from([1, 2, 5, 12]),
    ).map(lambda pairs: tuple((k, _frozen(v)) for k, v in pairs)),
    conduct=st.sampled_from(["plain", "plain", "plain", *CONDUCTS]),
    at=st.integers(1, 4),
)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Served:
    """One gateway over a small model, used by every example: each must leave it as it found it."""

    def __init__(self, kind: str, *, deterministic: bool, **more: Any) -> None:
        model, tokenizer, self.faults = faltering(kind)
        self.gateway = Gateway.from_loaded(
            model,
            tokenizer,
            batch=BATCH,
            prefill_chunk=CHUNK,
            prompt_cache=KEPT_BYTES,
            deterministic=deterministic,
            **more,
        )
        self.deterministic = deterministic
        self.loop = self.gateway._loop
        self.scheduler = self.loop.scheduler
        self.backend: Any = self.loop._backend
        self.budget = self.scheduler.memory.budget
        self._alone: dict[Any, Result] = {}
        for text in range(2):  # so that what is made once is made before the first count
            Ask(text, 9, (("max_tokens", 2),)).alone(self.gateway)
        self.active = self.active_bytes()

    def alone(self, ask: Ask) -> Result:
        key = ask.text, ask.length, repr(ask.options)
        if key not in self._alone:
            self._alone[key] = ask.alone(self.gateway)
        return self._alone[key]

    def reset(self) -> None:
        """After an example that failed, so that the next one's failures are its own."""
        self.gateway.handles.cancel()
        self.gateway.resume()
        self.gateway.wait_idle()
        self.faults.pending = 0
        self.set_budget(0)
        self.set_budget(self.budget)

    def set_budget(self, nbytes: int) -> None:
        """As the ledger does when gateways come and go; returns once the scheduler knows."""
        known = threading.Event()

        def work(at: int) -> None:
            self.loop.feed(ev.BudgetSet(at, nbytes))
            known.set()

        self.gateway._engine.call_soon(work)
        known.wait()

    def a_replay_says_the_same(self) -> None:
        """A fresh scheduler that is given what this one was given writes the same log."""
        again = Scheduler(self.scheduler.settings, Ring())
        for event in self.loop.decisions.events():
            again.handle(event)
        wrote, writes = self.loop.ring.since(0), again.ring.since(0)
        assert wrote.missed == 0
        for name in COLUMNS:
            if name != "spent_ns":  # of user code too, which decides nothing
                assert wrote.columns[name] == writes.columns[name], name
        assert again.counters == self.scheduler.counters

    def dies_and_comes_back(self) -> None:
        """A defect ends the engine: every row learns of it at once, and after a restart rows say what they said."""
        ask = Ask(1, 17, (("max_tokens", 12), ("logit_bias", {2: -100.0})))
        said = ask.alone(self.gateway)
        self.gateway.pause()
        rows = [ask.submit(self.gateway) for _ in range(BATCH + 1)]
        self.gateway.step(4)

        def defect(_instruction: object) -> object:
            raise RuntimeError("a defect")

        self.backend.decode = defect
        self.gateway.resume()
        for row in rows:
            assert isinstance(row.exception(), GatewayDead)
            assert tuple(row._record.token_ids) == said.token_ids[: row.progress().generated_tokens]
        assert self.gateway._engine.join()
        assert self.backend.held_bytes() == 0
        self.gateway.restart()
        assert ask.alone(self.gateway).token_ids == said.token_ids

    def active_bytes(self) -> int:
        """What MLX holds, once nothing refers to what is over."""

        def ask() -> int:
            gc.collect()
            self.backend.synchronize()
            return int(mx.get_active_memory())

        return int(self.gateway.run_exclusive(ask))


class RealBatch(RuleBasedStateMachine):
    served: Served
    resources: list[Resource]

    @initialize()
    def start(self) -> None:
        self.served.reset()
        self.rows: list[Asked] = []
        self.before = self.counted()
        self.seen = self.served.loop.ring.recorded
        self.running: set[int] = set()
        self.budget = self.projected = self.served.budget
        self.owned = len(self.resources)
        self.matchers = matchers.live
        self.served.gateway.pause()

    def counted(self) -> Counter[str]:
        counters = self.served.scheduler.counters
        names = ("submitted", "finished", "cancelled", "failed")
        return Counter({name: getattr(counters, name) for name in names})

    def ask(self, ask: Ask) -> None:
        gateway, cost = self.served.gateway, self.served.gateway._capabilities.cost
        if cost.of(ask.length + ask.max_tokens) > self.budget:
            with pytest.raises(OverBudget):
                ask.submit(gateway)
            return
        self.rows.append(Asked(ask, ask.submit(gateway)))

    def open(self) -> list[Asked]:
        return [row for row in self.rows if not row.handle.done()]

    def one_of_the_open(self, which: int) -> Asked:
        """By a number, not drawn from them: who is open may differ where the engine ran free. All over: any."""
        still = self.open() or self.rows
        return still[which % len(still)]

    # ------------------------------------------------------------ what may happen

    @rule(several=st.lists(asks, min_size=2, max_size=6))
    def submit(self, several: list[Ask]) -> None:
        for ask in several:
            self.ask(ask)

    @precondition(lambda self: self.rows)
    @rule(turns=st.sampled_from([1, 1, 2, 6]))
    def step(self, turns: int) -> None:
        self.served.gateway.step(turns)

    @precondition(lambda self: self.rows)  # not: who is still open, which may differ where the engine ran free
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        row = self.one_of_the_open(which)
        row.cut, was_open = True, row in self.open()
        assert row.handle.cancel() == was_open
        wait_for(row.handle.done)

    @precondition(lambda self: self.rows)  # not: who is still open, which may differ where the engine ran free
    @rule(waited=st.integers(0, 99), cuts=st.lists(st.integers(0, 99), max_size=2))
    def run_free_till_one_is_over(self, waited: int, cuts: list[int]) -> None:
        awaited = self.one_of_the_open(waited)
        cut = [self.one_of_the_open(which) for which in cuts]
        self.served.gateway.resume()
        for row in cut:
            row.cut = True
            row.handle.cancel()
        awaited.handle.exception()
        self.served.gateway.pause()

    @precondition(lambda self: self.rows)  # not: who is still open, which may differ where the engine ran free
    @rule(forwards=st.integers(1, 3))
    def forwards_fail(self, forwards: int) -> None:
        self.served.gateway.step(2)  # so that some of them are writing
        for row in self.open():
            row.shaken = True
        self.served.faults.pending = forwards
        self.served.gateway.step(forwards)
        self.served.faults.pending = 0

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 99), tokens=st.integers(1, 8))
    def extend(self, which: int, tokens: int) -> None:
        row = self.one_of_the_open(which)
        was_open = row in self.open()
        try:
            limit = row.handle.extend(tokens)
        except OverBudget:
            assert was_open
        except MlxNotebookError:
            assert not was_open
        else:
            assert was_open
            assert limit == row.ask.max_tokens + tokens
            row.ask = row.ask.with_limit(limit)

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 99), priority=st.integers(-1, 1))
    def reprioritize(self, which: int, priority: int) -> None:
        row = self.one_of_the_open(which)
        waits = row.handle.status == "queued"
        assert row.handle.reprioritize(priority) == waits

    @rule(rows=st.sampled_from([0, 2, 3, 100, 100]))
    def budget_changes(self, rows: int) -> None:
        self.projected = self.served.scheduler.memory.projected
        self.budget = rows * self.served.gateway._capabilities.cost.of(60) if rows < 100 else self.served.budget
        cost = self.served.gateway._capabilities.cost
        for row in self.open():
            row.squeezed |= cost.of(row.ask.length + row.ask.max_tokens) > self.budget
        self.served.set_budget(self.budget)

    @rule(fails=st.booleans())
    def run_exclusive(self, *, fails: bool) -> None:
        gateway = self.served.gateway
        if fails:
            with pytest.raises(ZeroDivisionError):
                gateway.run_exclusive(lambda: 1 // 0)
        assert gateway.run_exclusive(lambda: mx.arange(5).sum().item()) == 10

    @rule()
    def run_exclusive_after_all_that_were_asked_before(self) -> None:
        gateway, before = self.served.gateway, self.open()
        gateway.resume()
        gateway.run_exclusive(lambda: mx.arange(5).sum().item())
        assert all(row.handle.done() for row in before)
        gateway.pause()

    @rule(earlier=st.lists(asks, max_size=4), later=st.lists(asks, max_size=3))
    def somebody_takes_the_device(self, earlier: list[Ask], later: list[Ask]) -> None:
        gateway = self.served.gateway
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with gateway.lease():
                held.set()
                let_go.wait()

        for ask in earlier:
            self.ask(ask)
        before = self.open()
        gateway.resume()
        holder = in_thread(hold)
        try:
            wait_for(lambda: held.is_set() or device_lease().waiting > 0)
            known = len(self.rows)
            for ask in later:
                self.ask(ask)
            held.wait()
            assert all(row.handle.done() for row in before)
            for row in self.rows[known:]:
                assert row.handle.progress().generated_tokens == 0
                assert row.handle.status in ("queued", "cancelled")
            assert not self.served.scheduler.running_rows()
        finally:
            let_go.set()
            holder.result()
        gateway.pause()

    # ------------------------------------------------------------ what must hold

    @invariant()
    def limits_were_kept(self) -> None:
        """At every record of the log since the last look, also where the engine ran free."""
        batch = self.served.gateway.events(self.seen)
        assert batch.missed == 0
        self.seen = batch.next
        for kind, row, a in zip(batch["kind"], batch["row"], batch["a"], strict=True):
            if kind == Kind.ADMIT:
                assert row not in self.running
                self.running.add(int(row))
            elif kind in (Kind.END, Kind.REWIND):
                self.running.discard(int(row))
            elif kind == Kind.STEP:
                assert a <= len(self.running)
            elif kind == Kind.MEMORY and len(self.running) > 1:
                # Rows that run are not evicted where the budget sinks below them; nobody joins them then.
                assert a <= max(self.budget, self.projected)
            assert len(self.running) <= BATCH
        self.projected = min(self.projected, self.served.scheduler.memory.projected)

    @invariant()
    def no_row_is_lost(self) -> None:
        assert {handle.id for handle in self.served.gateway.handles} == {row.handle.id for row in self.open()}
        assert all(len(row.ends) == row.handle.done() for row in self.rows)

    @invariant()
    def entries_keep_to_their_bytes(self) -> None:
        prefixes = self.served.scheduler.memory.prefixes
        assert prefixes.nbytes == self.served.backend._entries.held_bytes() <= KEPT_BYTES
        assert set(prefixes._entries) == set(self.served.backend._entries._entries)

    def teardown(self) -> None:
        if not hasattr(self, "rows"):
            return
        self.nobody_starves()
        self.served.gateway.resume()
        self.served.set_budget(self.served.budget)
        for row in self.rows:
            row.check(self.served.alone(row.ask), to_the_bit=self.served.deterministic)
        self.everybody_is_counted()
        self.nothing_is_held()

    def nobody_starves(self) -> None:
        """Left alone, each row comes to its end within the turns that all of them need one after another."""
        turns = sum(2 * (row.ask.length // CHUNK + row.ask.max_tokens + 3) for row in self.open())
        while self.served.gateway.busy:
            assert turns > 0, [row.handle for row in self.open()]
            turns -= 1
            self.served.gateway.step(1)
        self.limits_were_kept()
        self.no_row_is_lost()

    def everybody_is_counted(self) -> None:
        statuses = Counter(str(row.handle.status) for row in self.rows)
        statuses["submitted"] = len(self.rows)
        alone = self.counted() - self.before - statuses
        assert alone["submitted"] == alone["finished"]  # what rows say alone was asked for in between
        assert not alone["cancelled"]
        assert not alone["failed"]

    def nothing_is_held(self) -> None:
        served = self.served
        served.gateway.wait_idle()
        served.set_budget(0)
        served.set_budget(served.budget)
        engine, scheduler, backend = served.gateway._engine, served.scheduler, served.backend
        assert not engine.intake.records()
        assert not engine.intake.queued
        assert not served.gateway.handles
        assert not scheduler.rows
        assert not scheduler.waiting_rows()
        assert not scheduler.running_rows()
        assert not scheduler._placements
        assert not scheduler._fences
        memory = scheduler.memory
        assert (memory.projected, memory.prefixes.nbytes, memory._needs, memory._pending) == (0, 0, {}, {})
        assert backend.held_bytes() == 0
        assert not backend._rows
        assert not backend._requests
        assert all(resource.released == 1 for resource in self.resources[self.owned :])
        assert matchers.live == self.matchers
        wait_for(lambda: device_lease().holder is None)
        assert device_lease().waiting == 0
        self.rows.clear()
        assert served.active_bytes() - served.active < COMPILED_BYTES


@pytest.fixture
def owned() -> Iterator[list[Resource]]:
    with owning() as made:
        yield made


def odd_rows_first(waiting: list[Any], _running: list[Any]) -> list[object]:
    """A policy that also names what is no row."""
    return [None, -1, *(row.id for row in sorted(waiting, key=lambda row: row.id % 2 == 0)), "no row"]


def fails(_waiting: list[Any], _running: list[Any]) -> list[int]:
    raise ValueError("no order today")


SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama", {"deterministic": True}),
    "experts, 8 bits": (
        "qwen3_next",
        {"deterministic": True, "kv": {"bits": 8, "group_size": 32, "start": 20}, "policy": "shortest"},
    ),
    "full, free": ("llama", {"deterministic": False, "policy": odd_rows_first}),
    "window": ("gemma3_text", {"deterministic": True, "policy": "shortest"}),
    "window, free": ("gemma3_text", {"deterministic": False}),
    "recurrent": ("mamba2", {"deterministic": True, "policy": odd_rows_first}),
    "recurrent, free": ("mamba2", {"deterministic": False, "policy": "static"}),
    "hybrid": ("lfm2", {"deterministic": True, "policy": "static"}),
    "hybrid, free": ("lfm2", {"deterministic": False, "policy": fails}),
    "experts, free": ("qwen3_next", {"deterministic": False, "policy": "shortest"}),
}
"""What is served how. Where nothing makes it deterministic, noise of float32 has not been seen to tip a token here."""


@pytest.mark.parametrize("name", SERVED)
def test_whatever_comes_the_real_engine_loses_nothing_and_keeps_every_row_to_itself(
    name: str, owned: list[Resource]
) -> None:
    kind, how = SERVED[name]
    served = Served(kind, **how)
    machine = type(f"RealBatch_{kind}", (RealBatch,), {"served": served, "resources": owned})
    before = set(threading.enumerate())
    try:
        run_state_machine_as_test(
            seed(list(SERVED).index(name))(machine),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=25,
                deadline=None,
                database=None,
                phases=[Phase.generate],  # where the engine runs free a sequence need not be the same twice
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert set(threading.enumerate()) == before
        served.a_replay_says_the_same()
        served.dies_and_comes_back()
    finally:
        served.gateway.close()
    assert all(resource.released == 1 for resource in owned)

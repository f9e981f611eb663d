"""Where time went: in any traffic, every nanosecond of a request is in one segment, and they sum to its figures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.core import events as ev
from mlx_notebook.core.figures import figures_of
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import CacheCost
from mlx_notebook.core.recording import Recording, recording_of
from mlx_notebook.core.ring import COLUMNS, Kind
from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings
from mlx_notebook.core.segments import segments_of
from tests.core.running import MS, Run

# What may happen, as (name, small number, another).
ACTIONS = st.tuples(
    st.sampled_from(
        [
            *["submit"] * 3,
            *["round"] * 4,
            *("serial", "cancel", "fail", "chunk_fails", "hold", "release", "slow"),
            *("pause", "resume", "step", "pace", "wanted", "unwanted", "extend", "priority"),
        ]
    ),
    st.integers(0, 6),
    st.integers(1, 30),
)


def play(run: Run, actions: list[tuple[str, int, int]]) -> None:
    """Whatever order: the test plays engine, people and other gateways."""
    count = 0
    for what, small, some in actions:
        if what in ("submit", "serial"):
            count += 1
            how = Mechanism.SERIAL if what == "serial" else Mechanism.CONTINUOUS
            run.submit(count, some, small + 1, priority=small % 3, asked_ms=small / 2, mechanism=how)
        elif what == "round":
            run.round(chunk_ms=some, step_ms=some / 2)
        elif what == "slow":
            run.round(user_ms=some / 3, step_ms=some)
        elif what in ("hold", "release"):
            run.holds = what == "release"
        elif what == "fail":
            run.turn()
            run.chunks()
            run.steps(fails=True)
        elif what == "chunk_fails":
            run.turn()
            run.chunks(fails=True)
            run.steps()
        else:
            run.feed(asked(run, what, small, some))


def asked(run: Run, what: str, small: int, some: int) -> ev.Event:
    at = run.tick(small)
    events: dict[str, ev.Event] = {
        "cancel": ev.CancelAsked(at, small, FinishDetail.USER),
        "pause": ev.PauseAsked(at),
        "resume": ev.ResumeAsked(at),
        "step": ev.StepAsked(at, small + 1),
        "pace": ev.PaceAsked(at, small * MS),
        "wanted": ev.LeaseWanted(at, run.place),
        "unwanted": ev.LeaseUnwanted(at, run.place),
        "extend": ev.ExtendAsked(at, small, some),
        "priority": ev.PriorityAsked(at, small, some),
    }
    return events[what]


def settings_of(rows: int, policy: BuiltIn, budget: int) -> SchedulerSettings:
    return SchedulerSettings(
        max_rows=rows, chunk=8, policy=policy, cost=CacheCost(bytes_per_token=1), budget=budget, context_length=200
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ACTIONS, max_size=60),
    st.integers(1, 3),
    st.sampled_from(BuiltIn),
    st.sampled_from([128, 200, 10_000]),
    st.booleans(),
)
def test_every_nanosecond_is_in_one_segment(
    actions: list[tuple[str, int, int]], rows: int, policy: BuiltIn, budget: int, ends: bool
) -> None:
    run = Run(settings_of(rows, policy, budget))
    play(run, actions)
    if ends:
        run.feed(ev.ResumeAsked(run.tick()))
        run.feed(ev.LeaseUnwanted(run.tick(), run.place))
        run.holds = True
        run.until(*run.rows)
    now = run.tick()
    recording = run.recording()
    for row_id, row in run.rows.items():
        found = segments_of(recording, row_id, now)
        end = row.ended_ns or now
        assert found[0].start_ns == row.queued_ns
        assert found[-1].end_ns == end
        assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
        assert all(one.start_ns < one.end_ns for one in found)
        spent: dict[str, float] = {}
        for one in found:
            spent[one.phase] = spent.get(one.phase, 0.0) + one.ms
        figures = figures_of(row, now)
        assert spent.get("queue", 0.0) == pytest.approx(figures.queue_ms)
        if figures.prefill_ms is not None and figures.decode_ms is not None:
            assert spent.get("prefill", 0.0) == pytest.approx(figures.prefill_ms)
            assert spent.get("decode", 0.0) == pytest.approx(figures.decode_ms)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.integers(1, 3))
def test_a_replay_of_the_decisions_says_the_same(actions: list[tuple[str, int, int]], rows: int) -> None:
    run = Run(settings_of(rows, BuiltIn.PRIORITY, 200))
    play(run, actions)
    again = Scheduler(run.settings)
    assert [again.handle(event) for event in run.log.events()] == run.said


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.data())
def test_a_recording_fed_in_pieces_is_the_same(actions: list[tuple[str, int, int]], data: st.DataObject) -> None:
    run = Run()
    play(run, actions)
    whole = run.ring.since(0).columns
    length = len(whole["kind"])
    cuts = sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=5))})
    pieces = [{name: whole[name][a:b] for name in COLUMNS} for a, b in pairwise(cuts)]
    assert told(recording_of(pieces)) == told(recording_of([whole]))


def told(recording: Recording) -> Any:
    names = ("steps", "chunks", "tokens", "waits", "controls", "memory")
    return recording.requests, {name: getattr(recording, name).columns for name in names}, recording.now_ns


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, min_size=5, max_size=40), st.integers(0, 200))
def test_a_recording_without_its_beginning_still_adds_up(actions: list[tuple[str, int, int]], lost: int) -> None:
    """What was overwritten is gone, but nothing raises, and rows whose asking is known have no gaps."""
    run = Run()
    play(run, actions)
    whole = run.ring.since(0).columns
    recording = recording_of([{name: whole[name][lost:] for name in COLUMNS}], lost)
    for row_id in recording.requests:
        found = segments_of(recording, row_id)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(found))


def test_a_token_s_own_code_is_its_step_s_end() -> None:
    run = Run()
    run.submit(1, max_tokens=3)
    run.round()
    run.round(step_ms=20, user_ms=6)
    slow = [one for one in segments_of(run.recording(), 1) if one.code == "user-code-slow"]
    assert [(one.ms, one.rows) for one in slow] == [(6, (1,))]
    assert slow[0].end_ns == run.now


def test_records_are_what_the_ring_says() -> None:
    run = Run()
    run.submit(1, prompt=20, max_tokens=2)
    run.until(1)
    run.turn()
    kinds = [Kind(kind).name for kind in run.ring.since(0).columns["kind"]]
    assert kinds[:3] == ["SUBMIT", "LEASE", "ADMIT"]
    assert kinds.count("CHUNK") == 3
    assert kinds.count("TOKEN") == kinds.count("STEP") == 2
    assert kinds[-2:] == ["END", "LEASE"]

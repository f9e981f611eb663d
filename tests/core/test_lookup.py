"""What is looked up is what a look at everything finds, and a run's answers do not take the square of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.core.explain import explain
from mlx_notebook.core.lookup import Pairs, lookup_of
from mlx_notebook.core.recording import Recording, RequestTrace
from mlx_notebook.core.ring import Ring
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings
from mlx_notebook.core.segments import segments_of
from tests.core.running import Run
from tests.core.test_segments import ACTIONS, play

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBERS = st.integers(-1, 12)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 5))), NUMBERS, NUMBERS)
def test_pairs(items: list[tuple[int, int, int]], below: int, above: int) -> None:
    assert Pairs(items).where(below, above) == sorted(one for one in items if one[0] < below and one[1] > above)


def ids(rows: Iterable[RequestTrace]) -> set[int]:
    return {row.id for row in rows}


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_a_look_at_everything_finds_the_same(actions: list[tuple[str, int, int]]) -> None:
    run = Run()
    play(run, actions)
    recording = run.recording()
    lookup, rows = lookup_of(recording), list(recording.requests.values())
    for row in rows:
        at, until = row.submit_ns, row.admit_ns if row.admit_ns >= 0 else row.over_ns(run.now)
        assert set(lookup.ran_between(at, at + 1)) == ids(one for one in rows if one.runs_at(at))
        assert set(lookup.ran_between(at, until)) == ids(
            one for one in rows if 0 <= one.admit_ns < until and (one.end_ns < 0 or one.end_ns > at)
        )
        assert set(lookup.went_first(row.heard_ns, until)) == ids(
            one for one in rows if one.heard_ns > row.heard_ns and 0 <= one.admit_ns < until
        )
        mine = row.admit_ns if row.admit_ns >= 0 else 1 << 62
        assert set(lookup.stood_before(row, at)) == ids(
            one
            for one in rows
            if one.id != row.id
            and one.waits_at(at)
            and (0 <= one.admit_ns < mine or (one.admit_ns == mine and one.heard_ns < row.heard_ns))
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_waits_of_one_cause_together_say_what_they_say_apart(actions: list[tuple[str, int, int]]) -> None:
    run = Run()
    play(run, actions)
    recording = run.recording()
    for row_id in recording.requests:
        apart = segments_of(recording, row_id, run.now, each_wait=True)
        together = segments_of(recording, row_id, run.now)
        for one in together:
            inside = [part for part in apart if one.start_ns <= part.start_ns < one.end_ns]
            assert {part.code for part in inside} == {one.code}
            assert sum(part.end_ns - part.start_ns for part in inside) == one.end_ns - one.start_ns
            if one.phase == "queue":
                assert (inside[0].waits[0], inside[-1].waits[1]) == one.waits


class Counting(Recording):
    """Counts how often somebody goes through all controls."""

    walks = 0

    def controls_of(self, what: str) -> list[tuple[int, int, int]]:
        self.walks += 1
        return super().controls_of(what)


def burst(rows: int) -> Counting:
    """So many requests at once, and eight places."""
    run = Run(SchedulerSettings(max_rows=8, chunk=64))
    run.ring = Ring(1 << 15)
    run.scheduler = Scheduler(run.settings, run.ring)
    for row_id in range(1, rows + 1):
        run.submit(row_id, max_tokens=2)
    run.until(*range(1, rows + 1))
    recording = Counting()
    recording.take(run.ring.since(0).columns)
    return recording


@pytest.mark.parametrize("rows", [40, 160])
def test_a_runs_answers_share_what_they_look_up(rows: int) -> None:
    recording = burst(rows)
    for row_id in recording.requests:
        assert explain(recording, row_id)
    assert recording.walks <= 8
    # A request's stretches are its own: waiting for more others makes no more of them.
    assert max(len(segments_of(recording, row_id)) for row_id in recording.requests) < 40


def test_it_is_made_anew_when_the_recording_grows_or_forgets() -> None:
    recording = burst(3)
    first = lookup_of(recording)
    assert lookup_of(recording) is first
    twin = recording.copy()
    assert twin.lookup is None
    assert twin.requests == recording.requests
    assert [list(twin.tokens[name]) for name in twin.tokens.names] == [
        list(recording.tokens[name]) for name in recording.tokens.names
    ]
    assert twin.changed_since(0) == recording.changed_since(0)
    run = Run()
    run.submit(9)
    recording.take(run.ring.since(0).columns)
    assert lookup_of(recording) is not first
    assert 9 not in twin.requests
    recording.trim(1)
    assert recording.lookup is None

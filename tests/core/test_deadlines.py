"""Deadlines against a plain look at all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.deadlines import SPARE, Deadlines

steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "look"]), st.integers(0, 60)), max_size=200)


@given(steps)
def test_the_earliest_live_one_and_those_that_passed(wanted: list[tuple[str, int]]) -> None:
    deadlines, live, now = Deadlines(), dict[int, int](), 0
    for number, (what, value) in enumerate(wanted):
        if what == "add":
            deadlines.add(number, now + value)
            live[number] = now + value
        elif what == "remove" and live:
            gone = list(live)[value % len(live)]
            deadlines.remove(gone)
            del live[gone]
        else:
            now += value % 7
            late = sorted((at, row_id) for row_id, at in live.items() if at <= now)
            assert deadlines.passed(now) == [row_id for _, row_id in late]
            for _, row_id in late:
                deadlines.remove(row_id)
                del live[row_id]
        assert deadlines.next_ns == min(live.values(), default=None)


def test_rows_without_one_and_rows_that_are_over_take_no_room() -> None:
    deadlines = Deadlines()
    for row_id in range(10 * SPARE):
        deadlines.add(row_id, None)
        deadlines.add(-row_id, 1 << 60)
        deadlines.remove(-row_id)
        deadlines.remove(row_id)
    assert len(deadlines._heap) <= SPARE + 1
    assert deadlines.next_ns is None

"""The waiting line: order, fence, and the bound on being passed over."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.line import MAX_PASSED_OVER, WaitingLine
from mlx_notebook.core.policy import BuiltIn, complete, view_of
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import Row


def row(seq: int, *, priority: int = 0, prompt: int = 5, max_tokens: int = 10) -> Row:
    shape = RequestShape(prompt_ids=(1,) * prompt, sampling=SamplingOptions(max_tokens=max_tokens))
    return Row(Request(100 + seq, shape, priority=priority), seq=seq)


def line_of(*rows: Row) -> WaitingLine:
    line = WaitingLine()
    for one in rows:
        line.add(one)
    return line


def test_priority_then_first_come() -> None:
    a, b, c = row(0), row(1, priority=5), row(2, priority=5)
    assert line_of(a, b, c).candidates(BuiltIn.PRIORITY, None) == [b, c, a]


def test_shortest_counts_prompt_and_answer() -> None:
    a, b, c = row(0, prompt=50), row(1, prompt=5, max_tokens=50), row(2, prompt=6, max_tokens=6)
    assert line_of(a, b, c).candidates(BuiltIn.SHORTEST, None) == [c, b, a]


def test_rows_behind_the_fence_are_no_candidates() -> None:
    a, b, c = row(0), row(1), row(2)
    line = line_of(a, b, c)
    assert line.candidates(BuiltIn.PRIORITY, fence=2) == [a, b]


def test_a_users_answer_is_taken_for_what_it_is() -> None:
    a, b, c = row(0), row(1), row(2)
    assert complete([102, 999, "x", 102, None, [100], 1.5], [a, b, c]) == [c, a, b]
    assert complete(np.array([102, 101]), [a, b, c]) == [c, b, a]
    assert complete([view_of(c, 0), np.int64(101)], [a, b, c]) == [c, b, a]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.data())
def test_nobody_is_passed_over_more_often_than_is_allowed(priorities: list[int], data: st.DataObject) -> None:
    line = WaitingLine()
    waiting: list[Row] = []
    for seq, priority in enumerate(priorities):
        one = row(seq, priority=priority)
        line.add(one)
        waiting.append(one)
        if data.draw(st.booleans()):
            chosen = data.draw(st.permutations([r.id for r in line]))
            admitted = line.admit(line.candidates(BuiltIn.PRIORITY, chosen), lambda _row: True)
            assert admitted is not None
            waiting.remove(admitted)
        assert all(other.passed_over <= MAX_PASSED_OVER for other in waiting)


def test_a_row_that_waits_for_room_blocks_the_line_once_it_was_passed_over_enough() -> None:
    line = WaitingLine()
    big = row(0, prompt=1000)
    line.add(big)
    admitted = 0
    for seq in range(1, 100):
        line.add(row(seq))
        if line.admit(line.candidates(BuiltIn.PRIORITY, None), lambda one: one is not big) is not None:
            admitted += 1
    assert admitted == MAX_PASSED_OVER
    assert line.admit(line.candidates(BuiltIn.PRIORITY, None), lambda _one: True) is big

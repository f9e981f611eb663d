"""The waiting line: order, fence, the bound on being passed over, and how far it looks."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mlx_notebook.core.line import LOOK_AHEAD, MAX_PASSED_OVER, WaitingLine, must_be_next
from mlx_notebook.core.policy import BuiltIn, first_come, least_work, view_of
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable


def row(seq: int, *, priority: int = 0, prompt: int = 5, max_tokens: int = 10) -> Row:
    shape = RequestShape(prompt_ids=(1,) * prompt, sampling=SamplingOptions(max_tokens=max_tokens))
    return Row(Request(100 + seq, shape, priority=priority), seq=seq)


def line_of(*rows: Row, policy: BuiltIn = BuiltIn.PRIORITY) -> WaitingLine:
    line = WaitingLine(policy)
    for one in rows:
        line.add(one)
    return line


def test_priority_then_first_come() -> None:
    a, b, c = row(0), row(1, priority=5), row(2, priority=5)
    assert list(line_of(a, b, c).candidates()) == [b, c, a]


def test_shortest_counts_prompt_and_answer() -> None:
    a, b, c = row(0, prompt=50), row(1, prompt=5, max_tokens=50), row(2, prompt=6, max_tokens=6)
    assert list(line_of(a, b, c, policy=BuiltIn.SHORTEST).candidates()) == [c, b, a]


def test_rows_behind_the_fence_are_no_candidates() -> None:
    a, b, c = row(0), row(1), row(2)
    assert list(line_of(a, b, c).candidates(fence=2)) == [a, b]


def test_a_users_answer_is_taken_for_what_it_is() -> None:
    a, b, c = row(0), row(1), row(2)
    line = line_of(a, b, c)

    def order(*chosen: object) -> list[Row]:
        return list(line.candidates(line.named(chosen)))

    assert order(102, 999, "x", 102, None, [100], 1.5) == [c, a, b]
    assert order(*np.array([102, 101])) == [c, b, a]
    assert order(view_of(c, 0), np.int64(101)) == [c, b, a]
    assert order() == [a, b, c]


def test_a_row_whose_priority_or_work_changed_stands_where_it_now_belongs() -> None:
    a, b, c = row(0), row(1), row(2)
    line = line_of(a, b, c, policy=BuiltIn.SHORTEST)
    b.request = replace(b.request, priority=3)
    line.moved(b)
    assert list(line) == [b, a, c]
    a.request = replace(a.request, shape=row(0, max_tokens=90).request.shape)
    line.moved(a)
    assert list(line.candidates()) == [b, c, a]
    gone = row(3)
    line.moved(gone)
    assert gone not in list(line)


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
            admitted = line.admit(line.candidates(line.named(chosen)), lambda _row: True)
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
        if line.admit(line.candidates(), lambda one: one is not big) is not None:
            admitted += 1
    assert admitted == MAX_PASSED_OVER
    assert line.admit(line.candidates(), lambda _one: True) is big


def test_nobody_looks_far_behind_rows_that_do_not_fit() -> None:
    rows = [row(seq) for seq in range(10 * LOOK_AHEAD)]
    line = line_of(*rows)
    asked: list[Row] = []

    def fits(one: Row) -> bool:
        asked.append(one)
        return one is rows[LOOK_AHEAD]

    assert line.admit(line.candidates(), fits) is None
    assert asked == rows[:LOOK_AHEAD]
    line.remove(rows[0])
    assert line.admit(line.candidates(), fits) is rows[LOOK_AHEAD]


# ---------------------------------------------------------------- against a line without any index


class Plain:
    """By definition: sort everything, walk through everything, at every turn."""

    def __init__(self, policy: BuiltIn) -> None:
        self.policy = policy
        self.rows: list[Row] = []

    def candidates(self, chosen: list[int] | None, fence: int | None) -> list[Row]:
        ahead = [one for one in self.rows if fence is None or one.seq < fence]
        urgent = sorted((one for one in ahead if must_be_next(one)), key=lambda one: one.seq)
        key: Callable[[Row], Any] = first_come
        if chosen is None and self.policy is BuiltIn.SHORTEST:
            key = least_work
        places = {row_id: -place for place, row_id in enumerate(reversed(chosen or []), 1)}
        rest = sorted(ahead, key=lambda one: (places.get(one.id, 0), key(one)))
        return [*urgent, *(one for one in rest if not must_be_next(one))]

    def admit(self, candidates: list[Row], fits: Callable[[Row], bool]) -> int | None:
        for one in candidates[:LOOK_AHEAD]:
            if fits(one):
                self.rows.remove(one)
                for other in self.rows:
                    other.passed_over += other.seq < one.seq
                return one.id
            if must_be_next(one):
                return None
        return None


class LineMachine(RuleBasedStateMachine):
    """Both lines hold rows of their own, as like as two copies."""

    @initialize(policy=st.sampled_from(list(BuiltIn)))
    def start(self, policy: BuiltIn) -> None:
        self.line, self.plain = WaitingLine(policy), Plain(policy)
        self.mine: dict[int, Row] = {}
        self.seq = 0

    @rule(priority=st.integers(-1, 2), prompt=st.integers(1, 9), often=st.sampled_from([0, 0, 14, 15, 16]))
    def join(self, priority: int, prompt: int, often: int) -> None:
        one = row(self.seq, priority=priority, prompt=prompt)
        one.passed_over = often  # as one that comes back after a failed step
        self.seq += 1
        self.mine[one.id] = one
        self.line.add(one)
        self.plain.rows.append(copy(one))

    @rule(data=st.data(), priority=st.integers(-1, 2))
    def change(self, data: st.DataObject, priority: int) -> None:
        for one in self.plain.rows:
            if data.draw(st.booleans()):
                mine = self.mine[one.id]
                mine.request = one.request = replace(mine.request, priority=priority)
                self.line.moved(mine)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.plain.rows:
            gone = self.plain.rows.pop(data.draw(st.integers(0, len(self.plain.rows) - 1)))
            assert self.line.remove(self.mine[gone.id])
            assert not self.line.remove(self.mine[gone.id])

    @rule(
        room=st.integers(0, 10),
        fence=st.none() | st.integers(0, 40),
        chosen=st.none() | st.lists(st.integers(100, 140), unique=True),
    )
    def admit(self, room: int, fence: int | None, chosen: list[int] | None) -> None:
        def fits(one: Row) -> bool:
            return one.prompt_tokens <= room

        named = None if chosen is None else self.line.named(chosen)
        should = self.plain.candidates(chosen, fence)
        assert [one.id for one in self.line.candidates(named, fence)] == [one.id for one in should]
        head = self.line.head(named, fence)
        assert (head and head.id) == (should[0].id if should else None)
        taken = self.line.admit(self.line.candidates(named, fence), fits)
        assert (taken and taken.id) == self.plain.admit(should, fits)

    @invariant()
    def they_hold_the_same(self) -> None:
        there = {one.id: one.passed_over for one in self.plain.rows}
        assert {one.id: one.passed_over for one in self.line} == there
        assert len(self.line) == len(there)
        assert self.line.ids() == [one.id for one in sorted(self.plain.rows, key=first_come)]


TestLine: Any = LineMachine.TestCase
TestLine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Chunks: sized by time, together where short, cut where a state is to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core import events as ev
from mlx_notebook.core.chunk_costs import CRUMB, GROWTH, SIZES, ChunkCosts
from mlx_notebook.core.chunks import AIM, ALONE_FACTOR, MOST_OF_A_STEP_NS, TARGET_NS, ChunkPlanner
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable


def row(number: int, prompt: int, *, prefilled: int = 0, boundaries: tuple[int, ...] = ()) -> Row:
    shape = RequestShape(prompt_ids=(1,) * prompt, sampling=SamplingOptions())
    made = Row(Request(number, shape, boundaries=boundaries), seq=number)
    made.prefilled = prefilled
    return made


prompts = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


@given(prompts, st.booleans(), st.floats(1e3, 1e8))
def test_a_plan_stays_within_its_budget_and_moves_its_first_row(
    lengths: list[int], waiting: bool, token_ns: float
) -> None:
    planner = ChunkPlanner(token_ns=token_ns)
    rows = [row(i, length) for i, length in enumerate(lengths)]
    parts = planner.plan(rows, rows_wait=waiting)
    budget = planner.budget(rows_wait=waiting)
    assert parts[0].row_id == 0
    assert parts[0].stop > parts[0].start
    longest = max(part.stop - part.start for part in parts)
    assert len(parts) == 1 or len(parts) * longest <= budget
    assert longest <= budget + 1  # the last token rides along
    for part in parts:
        assert part.start == 0
        assert part.last == (part.stop == lengths[part.row_id])
    assert len(parts) == 1 or all(part.last for part in parts)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_fixed_chunks_are_cut_at_absolute_positions(length: int, fixed: int) -> None:
    planner = ChunkPlanner(fixed=fixed)
    one = row(0, length)
    stops = []
    while one.prefilled < length:
        (part,) = planner.plan([one], rows_wait=True)
        assert part.start == one.prefilled
        one.prefilled = part.stop
        stops.append(part.stop)
    assert stops[-1] == length
    assert all(stop % fixed == 0 for stop in stops[:-1])


MS = 1_000_000


def settle(planner: ChunkPlanner, base_ms: float, token_ms: float, *, rows_wait: bool, chunks: int = 40) -> list[int]:
    """The sizes chosen on a machine where a chunk costs so much, one after another."""
    sizes = []
    for _ in range(chunks):
        size = planner.budget(rows_wait=rows_wait)
        planner.learn(size, int((base_ms + token_ms * size) * MS))
        sizes.append(size)
    return sizes


@given(st.floats(0, 120), st.floats(0.001, 12))
def test_the_size_settles_at_the_largest_that_keeps_to_the_target(base_ms: float, token_ms: float) -> None:
    sizes = settle(ChunkPlanner(), base_ms, token_ms, rows_wait=True)
    target = max(AIM * TARGET_NS / MS, CRUMB * (base_ms + token_ms * SIZES[0]))
    fitting = [size for size in SIZES if base_ms + token_ms * size <= target]
    best = max(fitting, default=SIZES[0])
    assert sizes[-1] <= best
    if sizes[-1] < best:  # a size that was never run is guessed at: then the time is used to two thirds at least
        assert base_ms + token_ms * sizes[-1] > target / GROWTH
    assert sizes[1:] == sorted(sizes[1:]) or max(sizes[1:]) <= 2 * best  # never more than one doubling too far


def test_a_machine_that_is_slow_at_everything_cuts_no_crumbs() -> None:
    planner = ChunkPlanner()
    for _ in range(40):
        planner.learn_step(160 * MS)
    assert settle(planner, 90, 2, rows_wait=True)[-1] == 32  # 154 ms, and the step 160: 314 within 85% of 50 + 320
    assert settle(ChunkPlanner(), 90, 2, rows_wait=True)[-1] == 8  # 106 ms; four tokens would take 98
    slow = ChunkPlanner()
    for _ in range(40):
        slow.learn_step(5_000 * MS)  # somebody's callback sleeps
    assert settle(slow, 90, 2, rows_wait=True)[-1] == 32  # 154 ms, and 250: 404 within 85% of 550; 64 would be 468
    assert TARGET_NS + MOST_OF_A_STEP_NS == 300 * MS


def read_through(planner: ChunkPlanner, length: int, cost: Callable[[int, int], float]) -> list[tuple[int, int, float]]:
    """Read a long prompt beside rows that write: each chunk's tokens, its start, and the milliseconds that it took."""
    one, chunks = row(0, length), []
    while one.prefilled < length:
        (part,) = planner.plan([one], rows_wait=True)
        spent = cost(part.computed, part.start)
        planner.learn_forward((part,), int(spent * MS))
        chunks.append((part.computed, part.start, spent))
        one.prefilled = part.stop
    return chunks


@given(st.floats(1, 60), st.floats(0.01, 2), st.floats(1e-5, 2e-3))
def test_looking_back_at_many_columns_is_foreseen(base_ms: float, token_ms: float, pair_ms: float) -> None:
    def cost(tokens: int, columns: int) -> float:
        return base_ms + token_ms * tokens + pair_ms * tokens * columns

    planner = ChunkPlanner()
    settle(planner, base_ms, token_ms, rows_wait=True)
    chunks = read_through(planner, 6_000, cost)
    assert sum(tokens for tokens, _, _ in chunks) == 5_999
    assert len(too_long(chunks, cost)) <= 3, "till it was learned what columns take"
    again = too_long(read_through(planner, 6_000, cost), cost)
    assert len(again) <= 1, "a larger size may be tried anew"
    assert all(spent < 2 * TARGET_NS / MS for spent in again)


def too_long(chunks: list[tuple[int, int, float]], cost: Callable[[int, int], float]) -> list[float]:
    """What took clearly longer than the target, and than the smallest chunk would have there."""
    return [
        spent
        for tokens, start, spent in chunks
        if spent > 1.1 * TARGET_NS / MS and tokens > SIZES[0] + 1 and spent > 1.05 * CRUMB * cost(SIZES[0], start)
    ]


def test_where_each_forward_has_a_price_of_its_own_a_prompt_is_not_read_in_crumbs() -> None:
    def cost(tokens: int, _columns: int) -> float:
        return 80 + 0.002 * tokens  # a kernel is planned for each length

    chunks = read_through(ChunkPlanner(), 6_000, cost)
    assert len(chunks) <= 12


def test_a_first_prompt_that_begins_far_in_is_learned_from() -> None:
    planner = ChunkPlanner()  # a long chat goes on from a kept prefix, on a machine much faster than the first guess
    for _ in range(40):
        size = planner.budget(rows_wait=True, columns=5_000)
        planner.learn(size, int((2 + 0.004 * size) * MS), columns=5_000)
    assert planner.budget(rows_wait=True, columns=5_000) == SIZES[-1]


@pytest.mark.parametrize(("after_ms", "tokens"), [(75, 64), (95, 64), (110, 32), (140, 16)])
def test_a_step_after_a_chunk_that_takes_longer_is_reckoned_with(after_ms: int, tokens: int) -> None:
    planner = ChunkPlanner()
    for _ in range(40):
        planner.learn_step(75 * MS)
    settle(planner, 0, 1, rows_wait=True)
    for _ in range(40):
        planner.learn_forward(forward((0, 64, False)), 64 * MS)
        planner.learn_step(after_ms * MS)
    assert planner.budget(rows_wait=True) == tokens  # a millisecond each, within 85% of 50 + 150 less the step after


def test_alone_a_chunk_may_take_longer() -> None:
    assert settle(ChunkPlanner(), 0, 1, rows_wait=False)[-1] == 256
    assert TARGET_NS * ALONE_FACTOR >= 256 * MS


def test_a_stall_is_forgotten() -> None:
    costs = ChunkCosts(1.0)
    costs.learn(64, 30 * MS)
    costs.learn(64, 3_000 * MS)
    assert costs.largest_within(TARGET_NS) < 64
    for _ in range(40):
        costs.learn(32, 20 * MS)
    assert costs.largest_within(TARGET_NS) == 64


def forward(*parts: tuple[int, int, bool]) -> tuple[ev.PrefillPart, ...]:
    return tuple(ev.PrefillPart(at, start, stop, last) for at, (start, stop, last) in enumerate(parts))


@pytest.mark.parametrize(
    "parts",
    [
        forward((99, 100, True)),  # an exact hit of the prompt cache, or a prompt of one token: an empty forward
        forward((99, 100, True), (0, 1, True)),
        forward((97, 100, True)),  # two tokens: a few columns beside all the weights
    ],
    ids=["one", "two", "few"],
)
def test_next_to_nothing_teaches_nothing(parts: tuple[ev.PrefillPart, ...]) -> None:
    planner = ChunkPlanner()
    settled = settle(planner, 0, 0.4, rows_wait=True)[-1]
    assert settled == 64
    for _ in range(10):
        planner.learn_forward(parts, 60_000)
    assert planner.budget(rows_wait=True) == settled


def test_a_forward_is_as_wide_as_the_longest_of_those_that_compute() -> None:
    planner, same = ChunkPlanner(), ChunkPlanner()
    planner.learn_forward(forward((0, 33, True), (0, 17, True), (5, 6, True)), 70 * MS)
    same.learn(64, 70 * MS)
    for waiting in (False, True):
        assert planner.budget(rows_wait=waiting) == same.budget(rows_wait=waiting)
    planner, same = ChunkPlanner(), ChunkPlanner()
    planner.learn_forward(forward((0, 32, False)), 70 * MS)
    same.learn(32, 70 * MS)
    assert planner.budget(rows_wait=False) == same.budget(rows_wait=False)


def test_a_chunk_ends_where_a_state_is_to_be_kept() -> None:
    planner = ChunkPlanner(token_ns=1)
    one = row(0, 100, boundaries=(30, 99))
    (first,) = planner.plan([one], rows_wait=False)
    assert (first.stop, first.last) == (30, False)
    one.prefilled = 30
    (second,) = planner.plan([one], rows_wait=False)
    assert (second.stop, second.last) == (100, True)  # 99 is all but the token that decoding feeds


@given(st.integers(1, 200), st.lists(st.integers(1, 199), max_size=3), st.integers(1, 40))
def test_where_nothing_but_positions_may_decide_boundaries_cut_nothing(
    length: int, boundaries: list[int], fixed: int
) -> None:
    planner = ChunkPlanner(fixed, together=False, boundaries=False)
    one, other = row(0, length), row(1, length, boundaries=tuple(sorted(boundaries)))
    while one.prefilled < length:
        (mine,), (theirs,) = (planner.plan([each], rows_wait=True) for each in (one, other))
        assert (mine.start, mine.stop, mine.last) == (theirs.start, theirs.stop, theirs.last)
        one.prefilled = other.prefilled = mine.stop


def test_short_prompts_share_a_forward_and_a_long_one_does_not_hold_them_back() -> None:
    planner = ChunkPlanner(token_ns=AIM * TARGET_NS / 64)
    rows = [row(0, 20), row(1, 30), row(2, 5000), row(3, 30)]
    assert [part.row_id for part in planner.plan(rows, rows_wait=True)] == [0, 1]
    assert [part.row_id for part in planner.plan(rows[2:], rows_wait=True)] == [2]


def test_a_rewound_row_reads_its_answer_too() -> None:
    planner = ChunkPlanner(token_ns=1)
    one = row(0, 10)
    one.token_ids += [5, 6, 7]
    (part,) = planner.plan([one], rows_wait=False)
    assert (part.start, part.stop, part.last) == (0, 13, True)

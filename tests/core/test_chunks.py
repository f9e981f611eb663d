"""Chunks: sized by time, together where short, cut where a state is to be kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.chunks import ALONE_FACTOR, SIZES, TARGET_NS, ChunkPlanner
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import Row


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


def test_a_chunk_takes_about_the_target_once_its_cost_is_known() -> None:
    planner = ChunkPlanner()
    for _ in range(40):
        planner.learn(100, 100 * 1_000_000)
    assert planner.budget(rows_wait=True) == 32  # 50 ms at 1 ms a token, on the grid
    assert planner.budget(rows_wait=False) == 256
    assert TARGET_NS * ALONE_FACTOR >= 256 * 1_000_000
    for _ in range(40):
        planner.learn(100, 100 * 1_000_000_000)
    assert planner.budget(rows_wait=True) == SIZES[0]


def test_a_chunk_ends_where_a_state_is_to_be_kept() -> None:
    planner = ChunkPlanner(token_ns=1)
    one = row(0, 100, boundaries=(30, 99))
    (first,) = planner.plan([one], rows_wait=False)
    assert (first.stop, first.last) == (30, False)
    one.prefilled = 30
    (second,) = planner.plan([one], rows_wait=False)
    assert (second.stop, second.last) == (100, True)  # 99 is all but the token that decoding feeds


def test_short_prompts_share_a_forward_and_a_long_one_does_not_hold_them_back() -> None:
    planner = ChunkPlanner(token_ns=TARGET_NS / 64)
    rows = [row(0, 20), row(1, 30), row(2, 5000), row(3, 30)]
    assert [part.row_id for part in planner.plan(rows, rows_wait=True)] == [0, 1]
    assert [part.row_id for part in planner.plan(rows[2:], rows_wait=True)] == [2]


def test_a_rewound_row_reads_its_answer_too() -> None:
    planner = ChunkPlanner(token_ns=1)
    one = row(0, 10)
    one.token_ids += [5, 6, 7]
    (part,) = planner.plan([one], rows_wait=False)
    assert (part.start, part.stop, part.last) == (0, 13, True)

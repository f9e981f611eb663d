"""Which states are kept, and when: at boundaries, at the end of long prompts, at chunks in deterministic mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.memory import KEEP_PROMPT_FROM, Memory, without_twins
from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.core.projection import CacheCost
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import Row
from mlx_notebook.core.scheduler_settings import SchedulerSettings

CHUNK = 16


def memory(**settings: Any) -> Memory:
    return Memory(SchedulerSettings(**{"prompt_cache": 1 << 30, **settings}))


def row(prompt: int, *, boundaries: tuple[int, ...] = (), cache_prompt: bool = True, row_id: int = 1) -> Row:
    shape = RequestShape(tuple(range(prompt)), SamplingOptions(max_tokens=4))
    return Row(Request(row_id, shape, boundaries=boundaries, cache_prompt=cache_prompt), seq=row_id)


def kept_at(held: Memory, one: Row, stops: list[int]) -> list[int]:
    """Tokens of the snapshots that are taken as the row is read up to these positions."""
    found, start = [], 0
    for stop in stops:
        told = held.snapshot(one, ev.PrefillPart(one.id, start, stop, last=stop == one.known_tokens))
        if told is not None:
            found.append(told.tokens)
            assert held.kept(ev.Kept(0, told.entry_id, told.tokens, 10)) == []
        start = stop
    return found


def test_what_cannot_be_cut_back_is_kept_at_its_boundaries() -> None:
    one = row(100, boundaries=(40, 99))
    assert kept_at(memory(trimmable=False), one, [20, 40, 70, 100]) == [40, 99]


def test_what_can_be_cut_back_is_kept_at_the_end_of_a_long_prompt_only() -> None:
    assert kept_at(memory(), row(KEEP_PROMPT_FROM, boundaries=(40,)), [40, KEEP_PROMPT_FROM]) == []
    long = row(KEEP_PROMPT_FROM + 1)
    assert kept_at(memory(), long, [40, KEEP_PROMPT_FROM + 1]) == [KEEP_PROMPT_FROM]


@pytest.mark.parametrize("trimmable", [True, False])
def test_in_deterministic_mode_at_the_chunk_before_each_boundary_and_before_the_end(*, trimmable: bool) -> None:
    held = memory(trimmable=trimmable, deterministic=True, chunk=CHUNK)
    stops = [*range(CHUNK, 100, CHUNK), 100]
    boundaries = () if trimmable else (40, 99)
    assert kept_at(held, row(100, boundaries=boundaries), stops) == [*([] if trimmable else [32]), 96]


def test_the_last_token_is_not_in_what_is_kept() -> None:
    held = memory(trimmable=False, deterministic=True, chunk=CHUNK)
    # 33 tokens: the second chunk takes the last one along, which the first step feeds.
    assert kept_at(held, row(33), [16, 33]) == [32]


def test_nothing_is_kept_twice_or_where_nobody_wants_it() -> None:
    held = memory(trimmable=False)
    assert kept_at(held, row(100, boundaries=(40,)), [40, 100]) == [40]
    assert kept_at(held, row(100, boundaries=(40,), row_id=2), [40, 100]) == []
    assert kept_at(memory(trimmable=False), row(100, boundaries=(40,), cache_prompt=False), [40, 100]) == []
    assert kept_at(memory(trimmable=False, prompt_cache=0), row(100, boundaries=(40,)), [40, 100]) == []
    few = MIN_REUSE - 1
    assert kept_at(memory(trimmable=False), row(100, boundaries=(few,)), [few, 100]) == []


def test_an_answer_that_is_read_again_is_no_prompt() -> None:
    held = memory(trimmable=False)
    one = row(40, boundaries=(30,))
    one.token_ids += [5] * 20
    assert kept_at(held, one, [30, 45, 60]) == [30]


# ---------------------------------------------------------------- what is reused


def with_entry(held: Memory, tokens: int) -> Memory:
    """One entry of so many tokens, as a row that is over leaves it."""
    over = row(tokens)
    held.enter(over)
    keep_as, _cap = held.leave(over, worth_keeping=True)
    assert keep_as is not None
    assert held.kept(ev.Kept(0, keep_as, tokens, 10)) == []
    return held


@pytest.mark.parametrize(
    ("settings", "shared", "reused"),
    [
        ({}, 60, 60),
        ({"deterministic": True, "chunk": 128}, 60, 0),
        ({"deterministic": True, "chunk": 16}, 60, 48),
        ({"cost": CacheCost(1, start=100, unconverted=CacheCost(1))}, 60, 0),
    ],
    ids=["as it is", "less than a chunk", "whole chunks", "quantised since"],
)
def test_a_hit_is_counted_when_it_is_one(settings: dict[str, Any], shared: int, reused: int) -> None:
    held = with_entry(memory(**settings), 300)
    other = row(shared + 100, row_id=2)
    ids = (*range(shared), *range(1000, 1100))
    other.request = replace(other.request, shape=replace(other.request.shape, prompt_ids=ids))
    entry, tokens = held.find_prefix(other)
    assert ((entry is not None), tokens) == (reused > 0, reused)
    counters = held.prefixes.counters
    assert (counters.hits, counters.misses, counters.tokens_reused) == (int(reused > 0), int(not reused), reused)


def test_of_rows_that_begin_alike_and_are_read_at_once_one_has_it_kept() -> None:
    first = row(100, boundaries=(40, 99))
    second, third = row(100, boundaries=(40, 60), row_id=2), row(100, boundaries=(40, 99), row_id=3)
    assert without_twins(second, []).boundaries == (40, 60)
    assert without_twins(second, [first]).boundaries == (60,)
    assert without_twins(third, [first, second]).boundaries == ()
    first.prefilled = 40  # it is past there: whether it is kept is known, and this row did not start from it
    assert without_twins(third, [first]).boundaries == (40,)
    unlike = row(100, boundaries=(40,), row_id=4)
    shape = replace(unlike.request.shape, prompt_ids=(7, *unlike.request.shape.prompt_ids[1:]))
    unlike.request = replace(unlike.request, shape=shape)
    assert without_twins(unlike, [row(100, boundaries=(40,))]) is unlike.request
    assert without_twins(second, [row(100, boundaries=(40,), cache_prompt=False)]) is second.request

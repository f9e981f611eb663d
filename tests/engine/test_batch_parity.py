"""Rows in a batch say what they say alone, and what mlx-lm's BatchGenerator says, at every layer kind."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator

from tests.engine.driving import with_backend
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, check_alone, check_same, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, WINDOW, random_prompt

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

COUNT = 12
RAGGED = (1, 2, 9, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5)
"""Lengths about nothing, a chunk, and the sliding window."""


def prompts(lengths: tuple[int, ...] = RAGGED) -> list[list[int]]:
    return [random_prompt(length, seed=at) for at, length in enumerate(lengths)]


@cache
def batch_generator(kind: str, delays: tuple[int, ...]) -> list[tuple[list[int], list[Any]]]:
    """Tokens and log-probabilities of each prompt by mlx-lm's own batch; `delays` are the steps before each joins."""
    generator = BatchGenerator(pair(kind)[0], max_tokens=COUNT, prefill_batch_size=8, completion_batch_size=8)
    found: dict[int, tuple[list[int], list[Any]]] = {}
    waiting = sorted(zip(delays, range(len(delays)), strict=True))
    order: dict[int, int] = {}
    now = 0
    while waiting or any(len(tokens) < COUNT for tokens, _ in found.values()):
        while waiting and waiting[0][0] <= now:
            _, at = waiting.pop(0)
            (uid,) = generator.insert([prompts()[at]])
            order[uid] = at
            found[at] = ([], [])
        for response in generator.next_generated():
            tokens, vectors = found[order[response.uid]]
            tokens.append(int(response.token))
            vectors.append(np.array(response.logprobs))
        now += 1
    generator.close()
    return [found[at] for at in range(len(delays))]


@pytest.mark.parametrize("delays", [(0,) * len(RAGGED), tuple(range(len(RAGGED)))], ids=["static", "staggered"])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_as_batch_generator(kind: str, delays: tuple[int, ...]) -> None:
    rows = [Coming(prompt, at=delay) for prompt, delay in zip(prompts(), delays, strict=True)]
    told = in_traffic(kind, rows, COUNT)
    for ours, (tokens, vectors) in zip(told, batch_generator(kind, delays), strict=True):
        assert len(ours.tokens) == COUNT
        check_same(ours, tokens, vectors, noise(kind))


@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_a_row_joins_at_every_step(kind: str) -> None:
    rows = [Coming(prompt, at=at) for at, prompt in enumerate(prompts())]
    for row, told in zip(rows, in_traffic(kind, rows, COUNT), strict=True):
        check_alone(kind, row, told, COUNT)


@pytest.mark.parametrize("kind", tiered(KINDS, "mamba2"))
def test_prompts_of_any_length_in_one_forward(kind: str) -> None:
    rows = [Coming(prompt, chunk=None) for prompt in prompts()]
    for row, told in zip(rows, in_traffic(kind, rows, COUNT), strict=True):
        check_alone(kind, row, told, COUNT)


@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_a_cohort_joins_running_rows(kind: str) -> None:
    rows = [Coming(prompt, at=3 * (at > 2), chunk=None if at > 2 else 8) for at, prompt in enumerate(prompts())]
    for row, told in zip(rows, in_traffic(kind, rows, COUNT), strict=True):
        check_alone(kind, row, told, COUNT)


@pytest.mark.parametrize(
    "stage", tiered(["before the first step", "at its first step", "in the middle", "at the end"], "in the middle")
)
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_rows_taken_away_leave_the_others_as_they_were(kind: str, stage: str) -> None:
    leaves = {"before the first step": 0, "at its first step": 1, "in the middle": 6, "at the end": COUNT}[stage]
    rows = [Coming(p, at=at % 2, leaves=leaves + at % 2 if at % 3 == 0 else None) for at, p in enumerate(prompts())]
    for row, told in zip(rows, in_traffic(kind, rows, COUNT), strict=True):
        check_alone(kind, row, told, COUNT)


@pytest.mark.parametrize("kind", tiered(KINDS, "gemma3_text"))
def test_windows_wrap_while_rows_come_and_go(kind: str) -> None:
    lengths = (3, WINDOW - 2, 2 * WINDOW, 5)
    rows = [Coming(p, at=7 * at) for at, p in enumerate(prompts(lengths))]
    for row, told in zip(rows, in_traffic(kind, rows, 3 * WINDOW), strict=True):
        check_alone(kind, row, told, 3 * WINDOW)


@pytest.mark.parametrize("kind", tiered(KINDS, "mamba2"))
def test_a_place_that_was_left_is_taken_by_another(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        for turn in range(3):
            rows = [Coming(p, at=at) for at, p in enumerate(prompts((4 + turn, 20, 9)))]
            told = run_script(backend, rows, COUNT, first_id=1 + 10 * turn)
            for row, one in zip(rows, told, strict=True):
                check_alone(kind, row, one, COUNT)
        assert backend.held_bytes() == 0

    with_backend(pair(kind), work)

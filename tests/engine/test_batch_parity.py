"""Rows in a batch say what they say alone, and what mlx-lm's BatchGenerator says, at every layer kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.core.events import Keep, Prefill, PrefillPart
from tests.engine.driving import CHUNK, Told, request, step, with_backend
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, check_alone, check_same, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, VOCAB, WINDOW, random_prompt

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

COUNT = 12
RAGGED = (1, 2, 9, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 5)
"""Lengths about nothing, a chunk, and the sliding window."""


def prompts(lengths: tuple[int, ...] = RAGGED) -> list[list[int]]:
    return [random_prompt(length, seed=at) for at, length in enumerate(lengths)]


@dataclass(frozen=True)
class Theirs:
    """A row in mlx-lm's batch: the step before which it joins or is taken away, and what of its prompt is cached."""

    prompt: tuple[int, ...]
    at: int = 0
    leaves: int | None = None
    cached: int = 0


@cache
def batch_generator(kind: str, rows: tuple[Theirs, ...]) -> list[tuple[list[int], list[Any]]]:
    """Tokens and log-probabilities of each row by mlx-lm's own batch."""
    model = pair(kind)[0]
    generator = BatchGenerator(model, max_tokens=COUNT, prefill_batch_size=8, completion_batch_size=8)
    found: list[tuple[list[int], list[Any]]] = [([], []) for _ in rows]
    waiting, live = dict(enumerate(rows)), dict[int, int]()
    now = 0
    while waiting or live:
        for at, row in [(at, row) for at, row in waiting.items() if row.at <= now]:
            del waiting[at]
            prefix = list(row.prompt[: row.cached])
            (uid,) = generator.insert(
                [list(row.prompt[row.cached :])],
                caches=[read_by_mlx_lm(model, prefix)] if prefix else None,
                all_tokens=[prefix],
            )
            live[uid] = at
        for uid, at in list(live.items()):
            leaves = rows[at].leaves
            if leaves is not None and leaves <= now:
                generator.remove([uid])
                del live[uid]
        for response in generator.next_generated() if live else ():
            tokens, vectors = found[live[response.uid]]
            tokens.append(int(response.token))
            vectors.append(np.array(response.logprobs))
            if response.finish_reason is not None:
                del live[response.uid]
        now += 1
    generator.close()
    return found


def read_by_mlx_lm(model: Any, prefix: list[int]) -> list[Any]:
    """A prompt cache as a user of mlx-lm makes one: the prefix in chunks, nothing written after it."""
    caches: list[Any] = make_prompt_cache(model)
    for start in range(0, len(prefix), CHUNK):
        model(mx.array([prefix[start : start + CHUNK]]), cache=caches)
        mx.eval([one.state for one in caches])
    return caches


@pytest.mark.parametrize("delays", [(0,) * len(RAGGED), tuple(range(len(RAGGED)))], ids=["static", "staggered"])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_as_batch_generator(kind: str, delays: tuple[int, ...]) -> None:
    rows = [Coming(prompt, at=delay) for prompt, delay in zip(prompts(), delays, strict=True)]
    told = in_traffic(kind, rows, COUNT)
    theirs = tuple(Theirs(tuple(row.prompt), row.at) for row in rows)
    for ours, (tokens, vectors) in zip(told, batch_generator(kind, theirs), strict=True):
        assert len(ours.tokens) == COUNT
        check_same(ours, tokens, vectors, noise(kind))


@pytest.mark.parametrize(
    "leaves", tiered({"at its first step": 1, "early": 3, "in the middle": 6, "before its last": COUNT - 1}, "early")
)
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_as_batch_generator_where_rows_are_taken_away(kind: str, leaves: int) -> None:
    """Every second row goes in both batches, and others come into what it leaves."""
    rows = [Coming(p, at=at % 3, leaves=at % 3 + leaves if at % 2 else None) for at, p in enumerate(prompts())]
    rows.append(Coming(random_prompt(7, seed=70), at=leaves + 3))
    theirs = tuple(Theirs(tuple(row.prompt), row.at, row.leaves) for row in rows)
    for row, ours, (tokens, vectors) in zip(
        rows, in_traffic(kind, rows, COUNT), batch_generator(kind, theirs), strict=True
    ):
        if row.leaves is None:
            assert len(ours.tokens) == len(tokens) == COUNT
        else:  # each counts in its own way which step a row's first is: as far as both went
            assert len(ours.tokens) < COUNT
            ours.outcomes = ours.outcomes[: len(tokens)]
        check_same(ours, tokens, vectors, noise(kind))


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_as_batch_generator_from_cached_prefixes(kind: str) -> None:
    """Rows that go on from an entry of ours and from a prompt cache of mlx-lm, beside one that starts from nothing."""
    cuts = (CHUNK, 2 * CHUNK, 4 * CHUNK, 0)  # before, at and after the window has wrapped
    shared = random_prompt(4 * CHUNK, seed=60)
    whole = [[*shared[:cut], *random_prompt(3 + 5 * at, seed=61 + at)] for at, cut in enumerate(cuts)]

    def work(backend: MlxBackend) -> list[Told]:
        backend.open(request(90, [*shared, 5, 6]))
        for stop in range(CHUNK, len(shared) + 1, CHUNK):
            assert not backend.prefill(Prefill((PrefillPart(90, stop - CHUNK, stop, last=False),))).errors
            assert backend.keep(Keep(90, stop, stop)).tokens == stop
        backend.drop(90)
        rows = {at: Told() for at in range(len(cuts))}
        for at, (cut, prompt) in enumerate(zip(cuts, whole, strict=True)):
            backend.open(request(at, prompt, max_tokens=COUNT, logprobs=VOCAB), cut or None, cut)
            assert not backend.prefill(Prefill((PrefillPart(at, cut, len(prompt), last=True),))).errors
        while not all(told.over for told in rows.values()):
            step(backend, {at: told for at, told in rows.items() if not told.over})
        return list(rows.values())

    theirs = tuple(Theirs(tuple(prompt), cached=cut) for cut, prompt in zip(cuts, whole, strict=True))
    for ours, (tokens, vectors) in zip(with_backend(pair(kind), work), batch_generator(kind, theirs), strict=True):
        assert len(ours.tokens) == len(tokens) == COUNT
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

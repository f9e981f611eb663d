"""Entries of the prompt cache: exact at their tokens, never consumed, never written into by those who use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_notebook.core.events import Keep, Prefill, PrefillPart
from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.caches import arrays_of, is_state, leaves
from tests.engine.driving import Told, finish, prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import check_same, noise, pair
from tests.small_models import KINDS, VOCAB, WINDOW, random_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.mlx_backend import MlxBackend

CHUNK = 8
COUNT = 10
TRIMMABLE = ("llama", "qwen2")
CUTS = (CHUNK, 2 * CHUNK, 4 * CHUNK)  # before, at and after the sliding window has wrapped
PROMPT = random_prompt(4 * CHUNK + 5, seed=1)


def asked(row_id: int, prompt: Sequence[int], **options: Any) -> Any:
    return request(row_id, prompt, **{"max_tokens": COUNT, "logprobs": VOCAB, **options})


def go_on(backend: MlxBackend, row_id: int, prompt: Sequence[int], entry_id: int, cached: int) -> Told:
    """A row that starts from an entry, run to its end."""
    told = Told()
    backend.open(asked(row_id, prompt), entry_id, cached)
    start = cached
    while start < len(prompt):
        stop = min(start + CHUNK, len(prompt) - 1)
        last = stop == len(prompt) - 1
        part = PrefillPart(row_id, start, len(prompt) if last else stop, last)
        assert not backend.prefill(Prefill((part,))).errors
        start = part.stop
    return finish(backend, row_id, told)


def prefilled(backend: MlxBackend, row_id: int, prompt: Sequence[int], keep: dict[int, int]) -> None:
    """A row whose prompt is read in chunks; snapshots on the way: tokens to entry ids."""
    backend.open(asked(row_id, prompt))
    for start in range(0, len(prompt) - 1, CHUNK):
        stop = min(start + CHUNK, len(prompt))
        part = PrefillPart(row_id, start, stop, last=stop == len(prompt))
        assert not backend.prefill(Prefill((part,))).errors
        if stop in keep:
            kept = backend.keep(Keep(row_id, keep[stop], stop))
            assert kept.tokens == stop
            assert kept.nbytes > 0


@pytest.mark.parametrize("deterministic", tiered([False, True], True))
@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_going_on_from_a_boundary_is_bitwise_as_from_scratch(kind: str, *, deterministic: bool) -> None:
    other = [*PROMPT[: 2 * CHUNK], *random_prompt(9, seed=9)]

    def work(backend: MlxBackend) -> None:
        scratch = [run_row(backend, asked(1 + at, prompt), CHUNK) for at, prompt in enumerate((PROMPT, other))]
        prefilled(backend, 10, PROMPT, {cut: cut for cut in CUTS})
        again = [go_on(backend, 20 + cut, PROMPT, cut, cut) for cut in CUTS]
        again += [go_on(backend, 30 + cut, PROMPT, cut, cut) for cut in CUTS]  # entries are not consumed
        first = finish(backend, 10, Told())
        again += [go_on(backend, 60 + cut, PROMPT, cut, cut) for cut in CUTS]  # nor changed by the row they came from
        for told in (*again, first):
            check_equal(told, scratch[0])
        check_equal(go_on(backend, 50, other, 2 * CHUNK, 2 * CHUNK), scratch[1])

    with_backend(pair(kind), work, deterministic=deterministic, max_rows=8)


def check_equal(told: Told, expected: Told) -> None:
    assert told.tokens == expected.tokens
    for mine, theirs in zip(vectors_of(told.logprobs, VOCAB), vectors_of(expected.logprobs, VOCAB), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_finished_row_becomes_an_entry_of_all_that_it_was_fed(kind: str, others: int) -> None:
    def work(backend: MlxBackend) -> None:
        rows = {
            1 + at: prefill(backend, asked(1 + at, random_prompt(WINDOW + 7 * at, seed=at))) for at in range(1 + others)
        }
        while not rows[1].over:
            step(backend, rows)
            rows = {row_id: told for row_id, told in rows.items() if row_id == 1 or not told.over}
        kept = backend.drop(1, keep_as=5)
        assert kept is not None
        said = [*random_prompt(WINDOW, seed=0), *rows[1].tokens]
        assert kept.tokens == len(said) - 1  # it ended by its length: the last token was never fed
        assert kept.nbytes > 0
        prompt = [*said[: kept.tokens], *random_prompt(6, seed=8)]
        scratch = run_row(backend, asked(8, prompt), CHUNK)
        for row_id in (9, 10):
            told = go_on(backend, row_id, prompt, 5, kept.tokens)
            check_same(told, scratch.tokens, vectors_of(scratch.logprobs, VOCAB), noise(kind))

    with_backend(pair(kind), work)


def buffers_of(caches: Sequence[Any]) -> set[int]:
    """Where the arrays of these caches lie, evaluated."""
    arrays = arrays_of(caches)
    mx.eval(arrays)
    return {int(np.asarray(array).__array_interface__["data"][0]) for array in arrays}


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="elsewhere NumPy sees a copy")
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_finished_row_gives_its_state_back_without_a_copy(kind: str, others: int) -> None:
    """The entry's arrays are the row's own; only state that stood side by side with others' is taken out of there."""

    def work(backend: MlxBackend) -> None:
        rows = {1: prefill(backend, asked(1, random_prompt(WINDOW + 2)))}
        if others:  # much longer: they are not packed into one rectangle
            rows[2] = prefill(backend, asked(2, random_prompt(12 * BLOCK), max_tokens=99), 64)
        while not rows[1].over:
            step(backend, rows)
        own = [leaf for leaf in leaves(backend._rows[1].cache) if not (others and is_state(leaf))]
        before = buffers_of(own)
        kept = backend.drop(1, keep_as=5)
        assert kept is not None
        assert kept.tokens > 0
        entry = backend._entries._entries[5].caches
        assert buffers_of([leaf for leaf in leaves(entry) if not (others and is_state(leaf))]) == before
        assert before or kind == "mamba2"

    with_backend(pair(kind), work)


@pytest.mark.parametrize("kind", tiered(KINDS, "mamba2"))
def test_a_row_that_ends_by_a_stop_token_was_fed_it(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        tokens = run_row(backend, asked(1, PROMPT), CHUNK).tokens
        told = prefill(backend, asked(2, PROMPT, eos=[tokens[4]]))
        while not told.over:
            step(backend, {2: told})
        kept = backend.drop(2, keep_as=1)
        assert kept is not None
        prompt = [*PROMPT, *told.tokens, *random_prompt(3, seed=4)]
        assert kept.tokens == len(prompt) - 3
        scratch = run_row(backend, asked(3, prompt), CHUNK)
        check_same(
            go_on(backend, 4, prompt, 1, kept.tokens), scratch.tokens, vectors_of(scratch.logprobs, VOCAB), noise(kind)
        )

    with_backend(pair(kind), work)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_only_states_that_hold_their_past_can_be_cut_back(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        run = prefill(backend, asked(1, PROMPT))
        for _ in range(3):
            step(backend, {1: run})
        kept = backend.drop(1, keep_as=1, keep_tokens=2 * CHUNK)
        assert kept is not None
        if kind not in TRIMMABLE:
            assert (kept.tokens, kept.nbytes) == (0, 0)
            assert backend.held_bytes() == 0
            return
        assert kept.tokens == 2 * CHUNK
        scratch = run_row(backend, asked(2, PROMPT), CHUNK)
        for row_id, cached in ((3, 2 * CHUNK), (4, CHUNK), (5, CHUNK + 3)):
            told = go_on(backend, row_id, PROMPT, 1, cached)
            check_same(told, scratch.tokens, vectors_of(scratch.logprobs, VOCAB), noise(kind))

    with_backend(pair(kind), work)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_rows_from_one_entry_share_no_writes_in_a_batch(kind: str) -> None:
    prompts = [[*PROMPT[: 2 * CHUNK], *random_prompt(3 + at, seed=20 + at)] for at in range(3)]

    def work(backend: MlxBackend) -> None:
        scratch = [run_row(backend, asked(1 + at, prompt), CHUNK) for at, prompt in enumerate(prompts)]
        prefilled(backend, 9, PROMPT[: 2 * CHUNK + 2], {2 * CHUNK: 1})
        backend.drop(9)
        rows: dict[int, Told] = {}
        parts = []
        for at, prompt in enumerate(prompts):
            backend.open(asked(10 + at, prompt), 1, 2 * CHUNK)
            parts.append(PrefillPart(10 + at, 2 * CHUNK, len(prompt), last=True))
            rows[10 + at] = Told()
        assert not backend.prefill(Prefill(tuple(parts))).errors
        while not all(told.over for told in rows.values()):
            step(backend, rows)
        for told, expected in zip(rows.values(), scratch, strict=True):
            check_same(told, expected.tokens, vectors_of(expected.logprobs, VOCAB), noise(kind))

    with_backend(pair(kind), work)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_bytes_of_entries_are_held_and_given_back(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        prefilled(backend, 1, PROMPT, {2 * CHUNK: 7})
        backend.drop(1)
        held = backend.held_bytes()
        assert held > 0
        kept = None
        prefilled(backend, 2, PROMPT, {})
        kept = backend.drop(2, keep_as=8)
        assert kept is not None
        assert backend.held_bytes() == held + kept.nbytes
        backend.evict(7)
        assert backend.held_bytes() == kept.nbytes
        backend.evict(7)  # nobody's any more: ignored
        backend.evict(8)
        assert backend.held_bytes() == 0
        with pytest.raises(KeyError):
            backend.open(asked(3, PROMPT), 8, 4)

    with_backend(pair(kind), work)

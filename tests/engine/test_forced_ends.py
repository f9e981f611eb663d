"""A row that is ahead of what it committed: it may end, fail or be read again in between, and nothing of it stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepFailed
from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.engine.stores.rows import RowsStore
from tests.engine.driving import Told, finish, prefill, request, run_row, step, with_backend
from tests.engine.fast_forward import COUNT, both_ways, check_like, one_by_one, row, widths
from tests.engine.parity import vectors_of
from tests.engine.traffic import Coming, alone, check_same, in_traffic, noise, pair
from tests.small_models import VOCAB, random_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import mlx.core as mx

    from mlx_notebook.engine.mlx_backend import MlxBackend

KINDS = ("llama", "gemma3_text", "lfm2")
"""Caches that can be cut back, windows that lose their past, and state that has none."""


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


def ahead(backend: MlxBackend, coming: Coming, row_id: int = 1) -> Told:
    """A row with more tokens in its caches than it committed."""
    told = prefill(backend, coming.asked(row_id, COUNT))
    for _ in range(3):
        step(backend, {row_id: told})
    assert len(backend._rows[row_id].forced) > 2
    return told


def check_entry(backend: MlxBackend, coming: Coming, told: Told, entry_id: int, tokens: int) -> None:
    """What was kept are the caches after so many tokens: a free row that goes on from there says what it should."""
    prompt = [*coming.prompt, *told.tokens][:tokens]
    longer = [*prompt, *random_prompt(3, seed=9)]
    asked = request(70, longer, max_tokens=8, logprobs=VOCAB)
    backend.open(asked, entry_id, tokens)
    done = backend.prefill(Prefill((PrefillPart(70, tokens, len(longer), last=True),)))
    assert not done.errors
    went_on = finish(backend, 70, Told())
    fresh = run_row(backend, request(71, longer, max_tokens=8, logprobs=VOCAB))
    check_same(went_on, fresh.tokens, vectors_of(fresh.logprobs, VOCAB), noise("llama"))


def test_the_caches_of_a_row_that_ends_in_between_hold_what_it_committed() -> None:
    coming = row()

    def work(backend: MlxBackend) -> None:
        told = ahead(backend, coming)
        known = len(coming.prompt) + len(told.tokens)
        assert backend._rows[1].fed > known
        kept = backend.drop(1, 5, None)
        assert kept is not None
        assert kept.tokens == known
        check_entry(backend, coming, told, 5, known)

    with_backend(pair("llama"), work)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["stop string", "callback", "failing callback"])
def test_rows_that_end_themselves_in_between(kind: str, how: str) -> None:
    """The same outcomes as token by token, and where the state is kept, it is that of the row's own tokens."""
    calls: list[int] = []

    def at_once(token_id: int, _text: str, _logprob: Any) -> bool:
        calls.append(token_id)
        if how == "failing callback" and len(calls) == 6:
            raise ValueError("no more")
        return len(calls) < 6

    def code() -> UserCode:
        calls.clear()
        return UserCode() if how == "stop string" else UserCode(on_token=at_once)

    coming = row(options={"stop": ("g_n",)} if how == "stop string" else {}, code=code)

    def work(backend: MlxBackend) -> tuple[Told, int, list[int]]:
        told = prefill(backend, coming.asked(1, COUNT))
        while not told.over:
            step(backend, {1: told})
        kept = backend.drop(1, 5, None)
        return told, 0 if kept is None else kept.tokens, list(calls)

    with widths() as seen:
        told, kept, heard = with_backend(pair(kind), work)
    with one_by_one():
        expected, kept_there, heard_there = with_backend(pair(kind), work)
    check_like_but_frames(told, expected, 4 * noise(kind))
    assert (kept, heard) == (kept_there, heard_there)
    assert len(told.tokens) + len(coming.prompt) in (kept, kept + 1)
    assert (max(wide for _, wide in seen) > 1) == (kind == "llama"), "what cannot be cut back is not fed ahead"


def check_like_but_frames(told: Told, expected: Told, bound: float) -> None:
    """As `check_like`; of an error the sentence."""
    if told.error is None or expected.error is None:
        check_like(told, expected, bound)
        return
    assert told.error[0] == expected.error[0]
    assert (told.tokens, told.text) == (expected.tokens, expected.text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_limit_cuts_the_answer_and_its_caches_where_single_steps_would(kind: str) -> None:
    whole = len(alone(kind, row(), COUNT).tokens)

    def work(backend: MlxBackend) -> list[tuple[Told, int]]:
        found = []
        for most in range(1, whole + 1, 3):
            told = prefill(backend, row().asked(most, most))
            while not told.over:
                step(backend, {most: told})
            kept = backend.drop(most, most, None)
            found.append((told, kept.tokens if kept is not None else 0))
        return found

    with one_by_one():
        expected = with_backend(pair(kind), work)
    for (told, kept), (other, kept_there) in zip(with_backend(pair(kind), work), expected, strict=True):
        check_like(told, other, 4 * noise(kind))
        assert kept == kept_there


def test_the_context_s_end_is_a_limit_too() -> None:
    for context in (12, 20, 31):
        (told,), (expected,) = both_ways("llama", [row()], context_length=context)
        assert told.finish == ("length", "context")
        check_like(told, expected, 4 * noise("llama"))


def test_a_row_taken_away_in_between_leaves_nothing_behind() -> None:
    def work(backend: MlxBackend) -> Told:
        ahead(backend, row())
        backend.drop(1)
        assert backend.held_bytes() == 0
        return run_row(backend, row().asked(2, COUNT))

    check_like(with_backend(pair("llama"), work), alone("llama", row(), COUNT), 4 * noise("llama"))


def read_again(backend: MlxBackend, coming: Coming, told: Told) -> None:
    backend.rewind(1)
    known = len(coming.prompt) + len(told.tokens)
    assert not backend.prefill(Prefill((PrefillPart(1, 0, known, last=True),))).errors


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_read_again_in_between_goes_on_from_its_committed_tokens(kind: str) -> None:
    coming = row(options={"temperature": 1.0, "seed": 3})

    def work(backend: MlxBackend) -> Told:
        told = ahead(backend, coming)
        read_again(backend, coming, told)
        assert backend._rows[1].forced == []
        return finish(backend, 1, told)

    told = with_backend(pair(kind), work)
    check_like(told, alone(kind, coming, COUNT), 4 * noise(kind))


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_forward_over_forced_text_that_fails_is_done_again(failing: int) -> None:
    coming, count = row(), [0]
    original = RowsStore.step

    def fails(self: RowsStore, places: Sequence[Any], tokens: mx.array) -> mx.array:
        count[0] += tokens.shape[1] > 1
        if tokens.shape[1] > 1 and count[0] == failing:
            raise RuntimeError("the device is out of memory")
        return original(self, places, tokens)

    expected = alone("llama", coming, COUNT)
    failures = []

    def work(backend: MlxBackend) -> Told:
        told = prefill(backend, coming.asked(1, COUNT))
        while not told.over:
            done = backend.decode(Decode((1,)))
            if isinstance(done, StepFailed):
                failures.append(done)
                read_again(backend, coming, told)
            else:
                told.outcomes += done.outcomes
        backend.drop(1)
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowsStore, "step", fails)
        told = with_backend(pair("llama"), work)
    assert [one.error[0] for one in failures] == ["RuntimeError: the device is out of memory"]
    check_like(told, expected, 4 * noise("llama"))


def test_steps_say_whether_they_computed_anything() -> None:
    def work(backend: MlxBackend) -> list[bool]:
        told = prefill(backend, row().asked(1, COUNT))
        found = []
        while not told.over:
            done = backend.decode(Decode((1,)))
            assert not isinstance(done, StepFailed)
            told.outcomes += done.outcomes
            found.append(done.forward)
        backend.drop(1)
        return found

    with widths() as seen:
        told = with_backend(pair("llama"), work)
    run = sum(rows == 1 for rows, _ in seen[-sum(told) :])
    assert sum(told) == run
    assert told.count(False) > len(told) // 2


def test_many_rows_one_after_the_other_do_not_meet() -> None:
    rows = [row(at, at=9 * at) for at in range(4)]
    with one_by_one():
        expected = in_traffic("llama", rows, COUNT)
    for told, other in zip(in_traffic("llama", rows, COUNT), expected, strict=True):
        check_like(told, other, 4 * noise("llama"))

"""Failures in a batch, at every layer kind: who sees them, and that the others say what they would have said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepFailed
from mlx_notebook.core.request import UserCode
from tests.engine.driving import Told, finish, prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, alone, check_alone, check_same, noise, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend

COUNT = 9
PROMPTS = [random_prompt(5 + 7 * at, seed=at) for at in range(4)]


def raising_callback(at: int, error: BaseException) -> Callable[[], UserCode]:
    def make() -> UserCode:
        seen: list[int] = []

        def on_token(token_id: int, _text: str, _logprobs: object) -> None:
            seen.append(token_id)
            if len(seen) == at:
                raise error

        return UserCode(on_token=on_token)

    return make


def bad_processor(at: int, what: str) -> Callable[[], UserCode]:
    def make() -> UserCode:
        calls: list[int] = []

        def processor(tokens: Any, logits: Any) -> Any:
            calls.append(len(tokens))
            if len(calls) < at:
                return logits
            if what == "raise":
                raise ValueError("mine")
            if what == "cannot be computed":
                return mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)[:1, :1] + logits
            return {"shape": logits[:, :3], "type": None, "nan": logits * mx.nan}[what]

        return UserCode(logits_processors=(processor,))

    return make


CODES = {
    "callback at once": raising_callback(1, RuntimeError("mine")),
    "callback later": raising_callback(4, RuntimeError("mine")),
    "exit": raising_callback(2, SystemExit(3)),
    "interrupt": raising_callback(3, KeyboardInterrupt()),
    "processor at once": bad_processor(1, "raise"),
    "processor later": bad_processor(4, "raise"),
    "wrong shape": bad_processor(3, "shape"),
    "wrong type": bad_processor(1, "type"),
    "not computable": bad_processor(3, "cannot be computed"),
}


@pytest.mark.parametrize("code", tiered(CODES, "callback later", "processor at once", "wrong shape"))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_rows_own_failure_is_its_own(kind: str, code: Callable[[], UserCode]) -> None:
    rows = [Coming(prompt, at=at % 2) for at, prompt in enumerate(PROMPTS)]
    rows[1] = Coming(PROMPTS[1], code=code)
    rows.append(Coming(random_prompt(8, seed=50), at=5))  # comes after the failure, perhaps in its place
    told = with_backend(pair(kind), lambda backend: run_script(backend, rows, COUNT))
    assert told[1].error is not None
    for at in (0, 2, 3, 4):
        check_alone(kind, rows[at], told[at], COUNT)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_nan_in_one_row_stays_there_and_leaves_nothing_in_its_place(kind: str, *, deterministic: bool) -> None:
    def work(backend: MlxBackend) -> None:
        def told_beside(first_id: int, *, poison: bool) -> list[Told]:
            rows = [Coming(prompt) for prompt in PROMPTS[:3]]
            told = {
                first_id + at: prefill(backend, request(first_id + at, row.prompt, max_tokens=COUNT, logprobs=VOCAB))
                for at, row in enumerate(rows)
            }
            step(backend, told)
            if poison:
                spoil(backend, first_id + 1)
            for _ in range(3):
                step(backend, told)
            backend.drop(first_id + 1)
            bad = told.pop(first_id + 1)
            if poison:
                assert not all(value == value for one in bad.logprobs for _, value in one.top)  # noqa: PLR0124 - NaN
            fresh = prefill(backend, request(first_id + 5, PROMPTS[3], max_tokens=COUNT, logprobs=VOCAB))
            told[first_id + 5] = fresh
            while not all(one.over for one in told.values()):
                step(backend, {row_id: one for row_id, one in told.items() if not one.over})
            for row_id in told:
                backend.drop(row_id)
            return list(told.values())

        clean, poisoned = told_beside(10, poison=False), told_beside(20, poison=True)
        for one, other in zip(clean, poisoned, strict=True):
            assert one.tokens == other.tokens
            assert [found.top for found in one.logprobs] == [found.top for found in other.logprobs]

    with_backend(pair(kind), work, deterministic=deterministic, max_rows=8)


def spoil(backend: MlxBackend, row_id: int) -> None:
    """Fill a row's whole state with NaN."""
    from mlx_notebook.engine.stores import caches

    row = backend._rows[row_id]
    with backend._stream.used():
        backend._store.settle(row)
        for leaf in caches.leaves(row.cache):
            caches._replace_arrays(leaf, lambda array: mx.full(array.shape, mx.nan, array.dtype))
        mx.eval(caches.arrays_of(row.cache))


class Flaky:
    """A model whose forward fails when it is told to."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.layers
        self.fails = 0
        self.seen: list[tuple[int, ...]] = []
        if hasattr(model, "make_cache"):
            self.make_cache = model.make_cache

    def modules(self) -> Any:
        return self.model.modules()

    def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
        logits = self.model(tokens, cache=cache)  # the caches are written before it fails
        if self.fails:
            self.fails -= 1
            self.seen.append(tokens.shape)
            raise MemoryError("no room")
        return logits


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_failed_step_is_taken_again_from_committed_tokens(kind: str) -> None:
    model, tokenizer = small(kind)
    flaky = Flaky(model)

    def work(backend: MlxBackend) -> list[Told]:
        told = {
            at: prefill(backend, request(at, prompt, max_tokens=COUNT, logprobs=VOCAB))
            for at, prompt in enumerate(PROMPTS)
        }
        for _ in range(4):
            step(backend, told)
        for _ in range(2):
            flaky.fails = 1
            failed = backend.decode(Decode(tuple(told)))
            assert isinstance(failed, StepFailed)
            assert failed.row_ids == tuple(told)
            assert failed.error[0] == "MemoryError: no room"
            for at, one in told.items():
                backend.rewind(at)
                known = len(PROMPTS[at]) + len(one.tokens)
                assert not backend.prefill(Prefill((PrefillPart(at, 0, known, last=True),))).errors
        while not all(one.over for one in told.values()):
            step(backend, {at: one for at, one in told.items() if not one.over})
        return list(told.values())

    for prompt, told in zip(PROMPTS, with_backend((flaky, tokenizer), work), strict=True):
        check_alone(kind, Coming(prompt), told, COUNT)


@pytest.mark.parametrize("fails", tiered([1, 2], 2))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_failed_cohort_is_read_again_row_by_row(kind: str, fails: int) -> None:
    model, tokenizer = small(kind)
    flaky = Flaky(model)

    def work(backend: MlxBackend) -> tuple[dict[int, Told], dict[int, tuple[str, str]]]:
        running = {9: prefill(backend, request(9, PROMPTS[0], max_tokens=COUNT, logprobs=VOCAB))}
        step(backend, running)
        for at, prompt in enumerate(PROMPTS[1:]):
            backend.open(request(at, prompt, max_tokens=COUNT, logprobs=VOCAB))
        flaky.fails = fails
        parts = tuple(PrefillPart(at, 0, len(prompt), last=True) for at, prompt in enumerate(PROMPTS[1:]))
        errors = dict(backend.prefill(Prefill(parts)).errors)
        rows = {**running, **{at: Told() for at in range(3) if at not in errors}}
        for row_id in errors:
            backend.drop(row_id)
        while not all(one.over for one in rows.values()):
            step(backend, {at: one for at, one in rows.items() if not one.over})
        return rows, errors

    rows, errors = with_backend((flaky, tokenizer), work)
    assert [shape[0] for shape in flaky.seen] == [3, 1][:fails]
    assert sorted(errors) == [0][: fails - 1]  # the first that failed alone as well
    for row_id, told in rows.items():
        check_alone(kind, Coming(PROMPTS[0] if row_id == 9 else PROMPTS[1 + row_id]), told, COUNT)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_rows_removed_at_any_time_free_what_they_held(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        for at, prompt in enumerate(PROMPTS):
            backend.open(request(at, prompt, max_tokens=COUNT))
        backend.drop(0)  # queued: nothing was computed
        backend.prefill(Prefill((PrefillPart(1, 0, 6, last=False),)))
        backend.drop(1)  # in prefill
        told = {at: Told() for at in (2, 3)}
        assert not backend.prefill(
            Prefill(tuple(PrefillPart(at, 0, len(PROMPTS[at]), last=True) for at in told))
        ).errors
        step(backend, told)
        backend.drop(2)  # decoding, its next token under way
        scratch = alone(kind, Coming(PROMPTS[3], options={"logprobs": None}), COUNT)
        assert len(finish(backend, 3, told[3]).tokens) == len(scratch.tokens) == COUNT
        assert backend.held_bytes() == 0
        again = run_row(backend, request(7, PROMPTS[0], max_tokens=COUNT, logprobs=VOCAB))
        by_itself = alone(kind, Coming(PROMPTS[0]), COUNT)
        check_same(again, by_itself.tokens, vectors_of(by_itself.logprobs, VOCAB), noise(kind))

    with_backend(pair(kind), work)

"""Ends and failures that are no row's own code, at every layer kind: afterwards all goes on as if nothing had been."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepFailed
from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme
from mlx_notebook.core.request import UserCode
from mlx_notebook.engine.kv.affine import AffineCache
from mlx_notebook.engine.mlx_backend import MlxBackend
from tests.engine.driving import Told, on_thread, prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.test_batch_failures import COUNT, PROMPTS, Flaky
from tests.engine.test_batch_quantised import wide
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, check_alone, check_same, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt, small


def asked(row_id: int, prompt: list[int]) -> Any:
    return request(row_id, prompt, max_tokens=COUNT, logprobs=VOCAB)


def to_their_ends(backend: MlxBackend, rows: dict[int, Told]) -> None:
    while alive := {row_id: told for row_id, told in rows.items() if not told.over}:
        step(backend, alive)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_callback_that_says_no_ends_its_row_and_no_other(kind: str) -> None:
    def code() -> UserCode:
        seen: list[int] = []

        def on_token(token_id: int, *_: object) -> bool:
            seen.append(token_id)
            return len(seen) < 4

        return UserCode(on_token=on_token)

    rows = [Coming(prompt, at=at % 2, code=code if at == 1 else UserCode) for at, prompt in enumerate(PROMPTS)]
    told = with_backend(pair(kind), lambda backend: run_script(backend, rows, COUNT))
    assert (told[1].finish, len(told[1].tokens)) == (("stop", "callback"), 4)
    for at in (0, 2, 3):
        check_alone(kind, rows[at], told[at], COUNT)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_a_joiner_whose_second_chunk_fails_goes_alone(kind: str) -> None:
    model, tokenizer = small(kind)
    flaky = Flaky(model)

    def work(backend: MlxBackend) -> None:
        rows = {at: prefill(backend, asked(at, prompt)) for at, prompt in enumerate(PROMPTS[:2])}
        step(backend, rows)
        joiner = random_prompt(30, seed=8)
        backend.open(asked(7, joiner))
        assert not backend.prefill(Prefill((PrefillPart(7, 0, 16, last=False),))).errors
        step(backend, rows)
        flaky.fails = 1
        failed = backend.prefill(Prefill((PrefillPart(7, 16, len(joiner), last=True),))).errors
        assert {row_id: error[0] for row_id, error in failed.items()} == {7: "MemoryError: no room"}
        backend.drop(7)
        to_their_ends(backend, rows)
        for at, told in rows.items():
            check_alone(kind, Coming(PROMPTS[at]), told, COUNT)
            backend.drop(at)
        assert backend.held_bytes() == 0
        check_alone(kind, Coming(joiner), run_row(backend, asked(8, joiner)), COUNT)

    with_backend((flaky, tokenizer), work)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_rows_that_fail_again_leave_nothing_and_the_next_ones_are_served(kind: str) -> None:
    model, tokenizer = small(kind)
    flaky = Flaky(model)

    def work(backend: MlxBackend) -> None:
        rows = {at: prefill(backend, asked(at, prompt)) for at, prompt in enumerate(PROMPTS)}
        for _ in range(3):
            step(backend, rows)
        for _ in range(2):
            flaky.fails = 1
            assert isinstance(backend.decode(Decode(tuple(rows))), StepFailed)
            for at, told in rows.items():
                backend.rewind(at)
                known = len(PROMPTS[at]) + len(told.tokens)
                assert not backend.prefill(Prefill((PrefillPart(at, 0, known, last=True),))).errors
        flaky.fails = 1
        assert isinstance(backend.decode(Decode(tuple(rows))), StepFailed)
        for at in rows:
            backend.drop(at)
        assert backend.held_bytes() == 0
        again = {10 + at: prefill(backend, asked(10 + at, prompt)) for at, prompt in enumerate(PROMPTS)}
        to_their_ends(backend, again)
        for at, prompt in enumerate(PROMPTS):
            check_alone(kind, Coming(prompt), again[10 + at], COUNT)

    with_backend((flaky, tokenizer), work)


@pytest.mark.parametrize("kind", tiered(["llama", "gemma3_text", "qwen3_next"], "llama"))
def test_a_conversion_that_finds_no_room_is_a_failed_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = KVScheme(LayerScheme(8, 32), start=12)
    convert = AffineCache.of_native
    fails = [0]

    def of_native(native: Any, own: LayerScheme) -> AffineCache:
        if fails[0]:
            fails[0] -= 1
            raise MemoryError("no room")
        return convert(native, own)

    def alone(backend: MlxBackend) -> Told:
        return run_row(backend, asked(9, PROMPTS[0]), chunk=64)

    def work(backend: MlxBackend) -> Told:
        told = {0: prefill(backend, asked(0, PROMPTS[0]), chunk=64)}
        failed = 0
        while not told[0].over:
            fails[0] = int(not failed and backend._rows[0].fed == scheme.start - 1)
            if fails[0]:
                assert isinstance(backend.decode(Decode((0,))), StepFailed)
                failed += 1
                backend.rewind(0)
                known = len(PROMPTS[0]) + len(told[0].tokens)
                assert not backend.prefill(Prefill((PrefillPart(0, 0, known, last=True),))).errors
            step(backend, told)
        assert failed == 1
        return told[0]

    expected = with_backend(wide(kind), alone, kv_scheme=scheme)
    monkeypatch.setattr(AffineCache, "of_native", of_native)
    told = with_backend(wide(kind), work, kv_scheme=scheme)
    check_same(told, expected.tokens, vectors_of(expected.logprobs, VOCAB), 0.3)
    assert len(told.tokens) == len(expected.tokens)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_closing_frees_rows_at_every_stage_once(kind: str) -> None:
    pair(kind)
    released: list[int] = []

    def life() -> int:
        backend = MlxBackend(*pair(kind))
        try:
            for at, prompt in enumerate(PROMPTS):
                backend.open(replace(asked(at, prompt), owned=(lambda at=at: released.append(at),)))
            backend.prefill(Prefill((PrefillPart(1, 0, 6, last=False),)))
            for at in (2, 3):
                backend.prefill(Prefill((PrefillPart(at, 0, len(PROMPTS[at]), last=True),)))
            step(backend, {2: Told(), 3: Told()})
            backend.drop(3, keep_as=1)
            assert backend.held_bytes() > 0
        finally:
            backend.close()
        assert backend.held_bytes() == 0
        del backend
        mx.clear_cache()
        return mx.get_active_memory()

    active = [on_thread(life) for _ in range(3)]
    assert sorted(released) == sorted([*range(len(PROMPTS))] * 3)
    assert active[1] == active[2]

"""deterministic=True: a row's bits are the same alone, in any place, in any traffic, at every layer kind."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.core.request import UserCode
from mlx_notebook.engine.mlx_backend import MlxBackend
from mlx_notebook.errors import UnsupportedRequest
from tests.engine.driving import CHUNK, Told, on_thread, prefill, read_again, request, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, alone, pair, run_script
from tests.small_models import KINDS, VOCAB, WINDOW, random_prompt, small

COUNT = 10
MODE: dict[str, Any] = {"deterministic": True, "max_rows": 8}
OBSERVED = random_prompt(WINDOW + 3, seed=42)


@cache
def bits_alone(kind: str, **options: Any) -> tuple[list[int], list[Any]]:
    told = alone(kind, Coming(OBSERVED, options=options), COUNT, **MODE)
    return told.tokens, vectors_of(told.logprobs, VOCAB)


def check_bits(kind: str, told: Told, **options: Any) -> None:
    tokens, vectors = bits_alone(kind, **options)
    assert told.tokens == tokens
    for mine, theirs in zip(vectors_of(told.logprobs, VOCAB), vectors, strict=True):
        assert np.array_equal(mine, theirs)


strangers = st.lists(
    st.builds(
        Coming,
        prompt=st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=30),
        at=st.integers(0, COUNT),
        leaves=st.none() | st.integers(0, 2 * COUNT),
        options=st.sampled_from(
            [
                {"logprobs": None},
                {"logprobs": 2, "temperature": 1.0, "seed": 7},
                {"logprobs": None, "max_tokens": 2},
                {"logprobs": 0, "repetition_penalty": 1.5},
            ]
        ),
    ),
    max_size=7,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_those_of_the_row_alone_in_any_traffic(kind: str) -> None:
    @settings(deadline=None, max_examples=15)
    @given(others=strangers, at=st.integers(0, 6), place=st.integers(0, 7), sampled=st.booleans())
    def any_traffic(others: list[Coming], at: int, place: int, *, sampled: bool) -> None:
        options = {"temperature": 0.8, "top_p": 0.9, "seed": 3} if sampled else {}
        rows = list(others)
        rows.insert(place, Coming(OBSERVED, at=at, options=options))
        observed = min(place, len(others))
        told = with_backend(pair(kind), lambda backend: run_script(backend, rows, COUNT), **MODE)
        check_bits(kind, told[observed], **options)

    any_traffic()


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_bits_in_a_full_batch_that_fills_and_empties(kind: str) -> None:
    rows = [Coming(random_prompt(1 + 4 * at, seed=at), at=at, leaves=9 if at % 2 else None) for at in range(7)]
    rows.insert(4, Coming(OBSERVED, at=2))
    told = with_backend(pair(kind), lambda backend: run_script(backend, rows, COUNT), **MODE)
    check_bits(kind, told[4])


@pytest.mark.parametrize("kind", tiered([kind for kind in KINDS if kind != "qwen3_next"], "llama"))
def test_bits_in_half_precision(kind: str) -> None:
    model, tokenizer = small(kind)
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    rows = [Coming(random_prompt(3 + 5 * at, seed=at), at=at) for at in range(5)]

    def vectors(rows: list[Coming], observed: int) -> list[Any]:
        told = with_backend((model, tokenizer), lambda backend: run_script(backend, rows, COUNT), **MODE)
        return vectors_of(told[observed].logprobs, VOCAB)

    mine = vectors([*rows, Coming(OBSERVED, at=3)], 5)
    assert all(np.array_equal(a, b) for a, b in zip(mine, vectors([Coming(OBSERVED)], 0), strict=True))


@pytest.mark.parametrize("length", [1, CHUNK, CHUNK + 1, WINDOW + 3])
@pytest.mark.parametrize("hosted", [False, True], ids=["free", "with a processor"])
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_bits_after_a_failed_forward(kind: str, length: int, *, hosted: bool) -> None:
    """An answer's tokens are read again as steps, in the same shape as when they were written."""
    prompt = random_prompt(length, seed=42)
    code = UserCode(logits_processors=(lambda _tokens, logits: logits,)) if hosted else UserCode()
    expected = alone(kind, Coming(prompt), COUNT, **MODE)

    def work(backend: MlxBackend) -> Told:
        strangers = {at: prefill(backend, request(at, random_prompt(5 * at, seed=at), max_tokens=99)) for at in (1, 2)}
        told = prefill(backend, request(3, prompt, code=code, max_tokens=COUNT, logprobs=VOCAB))
        for _ in range(6):
            step(backend, {**strangers, 3: told})
        read_again(backend, 3, prompt, told)
        while not told.over:
            step(backend, {**strangers, 3: told})
        return told

    told = with_backend(pair(kind), work, **MODE)
    assert told.tokens == expected.tokens
    for mine, theirs in zip(vectors_of(told.logprobs, VOCAB), vectors_of(expected.logprobs, VOCAB), strict=True):
        assert np.array_equal(mine, theirs)


def test_what_cannot_be_proven_is_an_error_that_says_so() -> None:
    model, tokenizer = small("llama")

    class Leaky:
        """Rows see each other's logits."""

        layers = model.layers

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            logits = model(tokens, cache=cache)
            return logits + 1e-3 * logits.sum(axis=0, keepdims=True)

        def modules(self) -> Any:
            return model.modules()

    with pytest.raises(UnsupportedRequest, match="other rows are there") as caught:
        on_thread(lambda: MlxBackend(Leaky(), tokenizer, **MODE))
    assert [reason.code for reason in caught.value.reasons] == ["determinism-unproven"]


def test_experts_in_half_precision_are_refused_where_they_do_not_run() -> None:
    model, tokenizer = small("qwen3_next")
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    if mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("only the CPU cannot multiply experts in bfloat16")
    with pytest.raises(UnsupportedRequest, match="float32"):
        on_thread(lambda: MlxBackend(model, tokenizer, **MODE))

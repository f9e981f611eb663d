"""One row says exactly what mlx-lm's generate_step says, on a small model of every layer kind."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_notebook.core.request import UserCode
from tests.engine.driving import request, run_row, with_backend
from tests.engine.parity import FILTERS, OPTIONS, mlx_lm_processors, mlx_lm_sampler, oracle, spread, vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.small_models import KINDS, VOCAB, random_prompt, small

if TYPE_CHECKING:
    from tests.engine.driving import Told

CHUNK = 8
COUNT = 14
pair = cache(small)


def ours(kind: str, prompt: list[int], chunk: int, code: UserCode | None = None, **options: Any) -> Told:
    asked = request(1, prompt, code=code, max_tokens=COUNT, logprobs=VOCAB, **options)
    return with_backend(pair(kind), lambda backend: run_row(backend, asked, chunk))


@pytest.mark.parametrize("options", tiered(OPTIONS, "plain", "all"))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_greedy_tokens_and_log_probabilities_are_equal(kind: str, options: dict[str, Any]) -> None:
    prompt = random_prompt(29, seed=3)
    tokens, vectors = oracle(pair(kind)[0], prompt, COUNT, CHUNK, mlx_lm_processors(options))
    told = ours(kind, prompt, CHUNK, **options)
    assert told.tokens == tokens
    assert np.array_equal(vectors_of(told.logprobs, VOCAB), vectors)


@pytest.mark.parametrize("filters", tiered(FILTERS, "all"))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_filters_leave_the_same_tokens_to_draw(
    kind: str, filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**filters, "temperature": 1.3, "seed": 21}
    prompt = random_prompt(29, seed=4)
    model, tokenizer = pair(kind)
    spared = tokenizer.encode("\n", add_special_tokens=False)
    sampler = mlx_lm_sampler(options, spared, monkeypatch)
    tokens, vectors = oracle(model, prompt, COUNT, CHUNK, sampler=sampler)
    told = ours(kind, prompt, CHUNK, **options)
    assert told.tokens == tokens
    assert np.array_equal(vectors_of(told.logprobs, VOCAB), vectors)
    # The filters matter here: without them other tokens are drawn.
    assert ours(kind, prompt, CHUNK, temperature=1.3, seed=21).tokens != tokens


@pytest.mark.parametrize("length", tiered([1, 2, CHUNK, CHUNK + 1, CHUNK + 2, 3 * CHUNK + 1], 1, CHUNK + 1))
@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_prompts_of_every_length_about_a_chunk(kind: str, length: int) -> None:
    prompt = random_prompt(length, seed=5)
    tokens, vectors = oracle(pair(kind)[0], prompt, COUNT, CHUNK)
    told = ours(kind, prompt, CHUNK)
    assert told.tokens == tokens
    assert np.array_equal(vectors_of(told.logprobs, VOCAB), vectors)


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_user_processors_see_prompt_and_output_and_change_the_same(kind: str) -> None:
    prompt = random_prompt(19, seed=2)

    def rule(tokens: Any, logits: Any) -> Any:
        seen.append(tokens.tolist())
        return logits - 2.0 * mx.abs(logits - 0.1 * len(tokens))

    seen: list[list[int]] = []
    tokens, vectors = oracle(pair(kind)[0], prompt, COUNT, CHUNK, [*mlx_lm_processors(OPTIONS["all"]), rule])
    theirs, seen = seen, []
    told = ours(kind, prompt, CHUNK, UserCode(logits_processors=(rule,)), **OPTIONS["all"])
    assert told.tokens == tokens
    assert np.array_equal(vectors_of(told.logprobs, VOCAB), vectors)
    # mlx-lm runs ahead and asks its processors once more than it returns tokens; here each token was asked for.
    assert seen == theirs[:COUNT]
    assert seen == [[*prompt, *tokens[:at]] for at in range(COUNT)]


@pytest.mark.parametrize("chunk", tiered([5, 12], 5))
@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_other_chunks_differ_no_more_than_mlx_lms_do(kind: str, chunk: int) -> None:
    prompt = random_prompt(41, seed=7)
    runs = [oracle(pair(kind)[0], prompt, COUNT, size) for size in (3, 8, 16, 2048)]
    bound = 2 * spread(runs)
    assert bound < 1e-2, "these models are float32: mlx-lm's own noise must be small for this to say anything"
    tokens, vectors = runs[-1]
    told = ours(kind, prompt, chunk)
    for mine, theirs, a, b in zip(told.tokens, tokens, vectors_of(told.logprobs, VOCAB), vectors, strict=True):
        assert np.max(np.abs(a - b)) <= bound
        best, second = np.sort(b)[[-1, -2]]
        if mine != theirs:
            assert best - second <= 2 * bound
            break

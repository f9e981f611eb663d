"""SmolLM2 says exactly what mlx-lm's generate_step says, without processors and with all, at the same chunks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engine.driving import on_thread, request, run_row, with_backend
from tests.engine.parity import OPTIONS, mlx_lm_processors, oracle, spread, vectors_of

pytestmark = pytest.mark.slow

COUNT = 6
CHUNK = 16


@cache
def smollm2() -> tuple[Any, Any, list[int]]:
    from mlx_notebook.models.load import load
    from mlx_notebook.models.resolve import resolve

    # On a thread of its own, as the engine does: what is evaluated there serves everywhere.
    loaded = on_thread(lambda: load(resolve("smollm2")))
    messages = [{"role": "user", "content": "Name three animals that live in the sea, and say one thing of each."}]
    prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return loaded.model, loaded.tokenizer, list(prompt)


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["all"]], ids=["plain", "all"])
def test_greedy_tokens_and_log_probabilities_are_equal(options: dict[str, Any]) -> None:
    model, tokenizer, prompt = smollm2()
    tokens, vectors = oracle(model, prompt, COUNT, CHUNK, mlx_lm_processors(options))
    width = len(vectors[0])
    asked = request(1, prompt, max_tokens=COUNT, logprobs=width, **options)
    told = with_backend((model, tokenizer), lambda backend: run_row(backend, asked, CHUNK))
    assert told.tokens == tokens
    assert np.array_equal(vectors_of(told.logprobs, width), vectors)
    assert told.text == tokenizer.decode(tokens)


def test_other_chunks_differ_no_more_than_mlx_lms_do() -> None:
    model, tokenizer, prompt = smollm2()
    runs = [oracle(model, prompt, COUNT, size) for size in (5, CHUNK, 2048)]
    bound = 2 * spread(runs)
    assert bound < 1e-2, "float32: mlx-lm's own noise must be small for this to say anything"
    tokens, vectors = runs[-1]
    width = len(vectors[0])
    asked = request(1, prompt, max_tokens=COUNT, logprobs=width)
    told = with_backend((model, tokenizer), lambda backend: run_row(backend, asked, 7))
    for mine, theirs, a, b in zip(told.tokens, tokens, vectors_of(told.logprobs, width), vectors, strict=True):
        assert np.max(np.abs(a - b)) <= bound
        best, second = np.sort(b)[[-1, -2]]
        if mine != theirs:
            assert best - second <= 2 * bound
            break

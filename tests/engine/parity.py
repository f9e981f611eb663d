"""mlx-lm's own single-row generation as an oracle: tokens and whole log-probability vectors."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm import sample_utils
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors

from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.engine import draws

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import pytest

    from mlx_notebook.core.results import TokenLogprob

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"logit_bias": ((5, 3.0), (77, -8.0), (200, 4.5))},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 2.0, "presence_context_size": 5},
    "frequency": {"frequency_penalty": 1.5, "frequency_context_size": 40},
    "all": {
        "logit_bias": ((5, 3.0),),
        "repetition_penalty": 1.2,
        "repetition_context_size": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
}

FILTERS: dict[str, dict[str, Any]] = {
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.1},
    "top-k": {"top_k": 6},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    "all": {"top_p": 0.9, "min_p": 0.02, "top_k": 9, "xtc_probability": 1.0, "xtc_threshold": 0.05},
}
"""With XTC's coin always fallen: mlx-lm tosses it from the global random state."""


def mlx_lm_processors(options: dict[str, Any]) -> list[Any]:
    """The same options through mlx-lm's maker of logits processors."""
    whole = SamplingOptions(**options)
    names = [f.name for f in fields(whole) if "penalty" in f.name or "context_size" in f.name]
    values = {name: getattr(whole, name) for name in names}
    return list(make_logits_processors(logit_bias=dict(whole.logit_bias) or None, **values))


def mlx_lm_sampler(options: dict[str, Any], spared: list[int], patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """mlx-lm's sampler with its filters as they are, in its order, and our draw of what they leave."""
    whole = SamplingOptions(**options)
    numbers = itertools.count()

    def draw(kept: mx.array, temperature: float) -> mx.array:
        key = draws.keys_of([draws.key_words(whole.seed, next(numbers))])
        return draws.draw_tokens(kept, key, mx.array([temperature]))

    patch.setattr(sample_utils, "categorical_sampling", draw)
    names = ("top_p", "min_p", "top_k", "xtc_probability", "xtc_threshold")
    values = {name: getattr(whole, name) for name in names}
    made: Callable[..., Any] = sample_utils.make_sampler(whole.temperature, xtc_special_tokens=spared, **values)
    return made


def oracle(
    model: Any,
    prompt: Sequence[int],
    count: int,
    chunk: int,
    processors: list[Any] | None = None,
    *,
    sampler: Callable[..., Any] | None = None,
) -> tuple[list[int], list[npt.NDArray[np.float32]]]:
    """Tokens (greedy without a sampler) and log-probabilities [count][V] by `generate_step` at this chunk size."""
    tokens, vectors = [], []
    steps = generate_step(
        mx.array(list(prompt)),
        model,
        max_tokens=count,
        prefill_step_size=chunk,
        logits_processors=processors,
        sampler=sampler,
    )
    for token, logprobs in steps:
        tokens.append(int(token))
        vectors.append(np.array(logprobs))
    return tokens, vectors


def vectors_of(logprobs: Sequence[TokenLogprob], width: int) -> list[npt.NDArray[np.float32]]:
    """Whole vectors from outcomes that were asked for every alternative."""
    vectors = []
    for step in logprobs:
        vector = np.full(width, np.nan, dtype=np.float32)
        for token_id, value in step.top:
            vector[token_id] = value
        assert vector[step.token_id] == np.float32(step.logprob)
        vectors.append(vector)
    return vectors


def spread(runs: Sequence[tuple[list[int], list[npt.NDArray[np.float32]]]]) -> float:
    """The largest difference between runs' log-probabilities while they say the same tokens."""
    worst = 0.0
    tokens, vectors = runs[0]
    for other_tokens, other_vectors in runs[1:]:
        for mine, yours, a, b in zip(tokens, other_tokens, vectors, other_vectors, strict=True):
            worst = max(worst, float(np.max(np.abs(a - b))))
            if mine != yours:
                break
    return worst

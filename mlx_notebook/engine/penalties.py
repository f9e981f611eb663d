"""Logit bias and penalties: changes to raw logits that depend on the tokens so far (prompt and output).

mlx-lm's meaning and order: bias, repetition, presence, frequency; each penalty sees its last
`context_size` tokens. All of it stays on the device, so a row with penalties needs no host code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.core.request import SamplingOptions


def stages_of(options: SamplingOptions) -> tuple[Callable[[mx.array, mx.array], mx.array], ...]:
    """The stages that these options ask for, each `(tokens [n], logits [1, V]) -> logits [1, V]`, in order."""
    stages: list[Callable[[mx.array, mx.array], mx.array]] = []
    if options.logit_bias:
        stages.append(_bias(options.logit_bias))
    if options.repetition_penalty != 1.0:
        stages.append(_repetition(options.repetition_penalty, options.repetition_context_size))
    if options.presence_penalty != 0.0:
        stages.append(_presence(options.presence_penalty, options.presence_context_size))
    if options.frequency_penalty != 0.0:
        stages.append(_frequency(options.frequency_penalty, options.frequency_context_size))
    return tuple(stages)


def reach_of(options: SamplingOptions) -> int:
    """How many of the last tokens the stages look at; 0 if none looks back."""
    sizes = (
        (options.repetition_penalty != 1.0, options.repetition_context_size),
        (options.presence_penalty != 0.0, options.presence_context_size),
        (options.frequency_penalty != 0.0, options.frequency_context_size),
    )
    return max((size for used, size in sizes if used), default=0)


def _bias(pairs: Sequence[tuple[int, float]]) -> Callable[[mx.array, mx.array], mx.array]:
    ids = mx.array([token_id for token_id, _ in pairs])
    values = mx.array([value for _, value in pairs], dtype=mx.float32)

    def stage(_tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, ids].add(values)

    return stage


def _repetition(penalty: float, reach: int) -> Callable[[mx.array, mx.array], mx.array]:
    """Divide a repeated token's positive logit, multiply a negative one (Keskar et al. 2019, CTRL)."""

    def stage(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = tokens[-reach:]
        chosen = logits[:, seen]
        logits[:, seen] = mx.where(chosen < 0, chosen * penalty, chosen / penalty)
        return logits

    return stage


def _presence(penalty: float, reach: int) -> Callable[[mx.array, mx.array], mx.array]:
    """Subtract once from every token that occurred (the OpenAI option of that name)."""

    def stage(tokens: mx.array, logits: mx.array) -> mx.array:
        seen = tokens[-reach:]
        logits[:, seen] = logits[:, seen] - penalty
        return logits

    return stage


def _frequency(penalty: float, reach: int) -> Callable[[mx.array, mx.array], mx.array]:
    """Subtract once for each time that a token occurred (the OpenAI option of that name)."""

    def stage(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, tokens[-reach:]].subtract(penalty)

    return stage

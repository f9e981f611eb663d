"""Quantised rows in a batch: as alone under the same scheme, beside rows that have not converted yet, at any time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme
from mlx_notebook.engine.kv.affine import AffineCache
from tests.engine.driving import Told, prefill, read_again, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import tiered
from tests.engine.traffic import Coming, check_same, run_script
from tests.small_models import CONTEXT, VOCAB, WINDOW, fill_with_noise, random_prompt, small, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.mlx_backend import MlxBackend

COUNT = 12
NOISE = 2e-3
"""Quantising is a step function: where noise moves a value over an edge, log-probabilities move by more than noise."""

EIGHT, FOUR = LayerScheme(8, 32), LayerScheme(4, 32)
SCHEMES = {
    "8 bits": KVScheme(EIGHT),
    "4 bits": KVScheme(FOUR),
    "later": KVScheme(EIGHT, (), 2 * WINDOW),
    "by layer": KVScheme(None, ((3, FOUR),)),
}


@cache
def wide(kind: str) -> tuple[Any, Any]:
    """Small models whose heads a group of 32 divides."""
    if kind == "qwen3_next":
        return small(kind)
    common: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "hidden_size": 64}
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 64,
    }
    if kind == "llama":
        from mlx_lm.models.llama import Model, ModelArgs

        model = Model(ModelArgs(model_type=kind, num_hidden_layers=4, rms_norm_eps=1e-5, **common, **heads))
    elif kind == "lfm2":
        from mlx_lm.models.lfm2 import Model, ModelArgs

        convolution: dict[str, Any] = {"conv_bias": False, "conv_L_cache": 3, "full_attn_idxs": [1, 3]}
        blocks: dict[str, Any] = {"block_dim": 128, "block_ff_dim": 256, "block_multiple_of": 16}
        blocks |= {"block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True}
        common |= {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
        model = Model(ModelArgs(model_type=kind, num_hidden_layers=4, norm_eps=1e-5, **common, **convolution, **blocks))
    else:
        from mlx_lm.models.gemma3_text import Model, ModelArgs

        more: dict[str, Any] = {"query_pre_attn_scalar": 32, "sliding_window": WINDOW, "sliding_window_pattern": 2}
        model = Model(ModelArgs(model_type=kind, num_hidden_layers=4, **more, **common, **heads))
    return fill_with_noise(model, 0, 3.0), tiny_tokenizer()


KINDS = ("llama", "gemma3_text", "lfm2", "qwen3_next")
"""Every layer kind that keeps keys and values: full attention, sliding window, and hybrids without and with experts."""
ROWS = [Coming(random_prompt(length, seed=at), at=at) for at, length in enumerate((3, 9, WINDOW + 2, 3 * WINDOW))]


def alone(kind: str, row: Coming, scheme: KVScheme, **more: Any) -> Told:
    asked = request(1, row.prompt, max_tokens=COUNT, logprobs=VOCAB)
    return with_backend(wide(kind), lambda backend: run_row(backend, asked), kv_scheme=scheme, **more)


def in_traffic(kind: str, rows: Sequence[Coming], scheme: KVScheme, **more: Any) -> list[Told]:
    return with_backend(wide(kind), lambda backend: run_script(backend, rows, COUNT), kv_scheme=scheme, **more)


@pytest.mark.parametrize("scheme", tiered(SCHEMES, "later"))
@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_a_quantised_row_says_in_a_batch_what_it_says_alone(kind: str, scheme: KVScheme) -> None:
    for row, told in zip(ROWS, in_traffic(kind, ROWS, scheme), strict=True):
        expected = alone(kind, row, scheme)
        assert told.error is None
        first = vectors_of(told.logprobs, VOCAB)[0], vectors_of(expected.logprobs, VOCAB)[0]
        assert np.max(np.abs(first[0] - first[1])) < NOISE
        check_same(told, expected.tokens, vectors_of(expected.logprobs, VOCAB), 0.3)


@pytest.mark.parametrize("scheme", tiered(SCHEMES, "later"))
@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_bits_in_deterministic_mode(kind: str, scheme: KVScheme) -> None:
    mode: dict[str, Any] = {"deterministic": True, "max_rows": 8}
    for row, told in zip(ROWS, in_traffic(kind, ROWS, scheme, **mode), strict=True):
        expected = alone(kind, row, scheme, **mode)
        assert told.tokens == expected.tokens
        for mine, theirs in zip(vectors_of(told.logprobs, VOCAB), vectors_of(expected.logprobs, VOCAB), strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("after", [2, 8])
@pytest.mark.parametrize("scheme", tiered(SCHEMES, "later"))
@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_bits_after_a_failed_forward(kind: str, scheme: KVScheme, after: int) -> None:
    """What is read again is quantised where it was, also where some rows had come to the scheme's start."""
    mode: dict[str, Any] = {"kv_scheme": scheme, "deterministic": True, "max_rows": 8}

    def work(backend: MlxBackend) -> list[Told]:
        told = [prefill(backend, request(at, row.prompt, max_tokens=COUNT, logprobs=VOCAB)) for at, row in rows]
        running = dict(enumerate(told))
        for _ in range(after):
            step(backend, running)
        for at, row in rows:
            read_again(backend, at, row.prompt, told[at])
        while not told[0].over:
            step(backend, running)
        return told

    rows = list(enumerate(ROWS))
    for (_, row), one in zip(rows, with_backend(wide(kind), work, **mode), strict=True):
        expected = alone(kind, row, scheme, deterministic=True, max_rows=8)
        assert one.tokens == expected.tokens
        for mine, theirs in zip(vectors_of(one.logprobs, VOCAB), vectors_of(expected.logprobs, VOCAB), strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_rows_before_and_after_their_conversion_sit_in_one_batch(kind: str) -> None:
    def kinds_held(backend: MlxBackend, row_id: int) -> set[type]:
        return {type(layer) for layer in backend._rows[row_id].cache} & {AffineCache}

    def work(backend: MlxBackend) -> None:
        told = {at: prefill(backend, request(at, row.prompt, max_tokens=40)) for at, row in enumerate(ROWS)}
        for _ in range(4):
            step(backend, told)
        assert [bool(kinds_held(backend, at)) for at in told] == [False, False, False, True]
        for _ in range(2 * WINDOW):
            step(backend, told)
        assert all(kinds_held(backend, at) for at in told)
        less = backend.held_bytes()
        assert less > 0

    with_backend(wide(kind), work, kv_scheme=SCHEMES["later"])

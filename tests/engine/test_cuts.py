"""Which kept states may be cut back: those of kinds that hold their whole past, whatever a cache says of itself."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from mlx_notebook.core.kv_scheme import LayerScheme
from mlx_notebook.engine.kv.affine import AffineCache
from mlx_notebook.engine.probe import capabilities_of
from mlx_notebook.engine.stores.caches import cut, keeps_past
from mlx_notebook.models.evaluate import evaluate_everything
from tests.engine.driving import prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.test_prompt_cache import go_on
from tests.small_models import CONTEXT, VOCAB, fill_with_noise, random_prompt, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend

CHUNK = 16
PROMPT = random_prompt(2 * CHUNK + 5, seed=1)


@cache
def llama4() -> tuple[Any, Any]:
    """Three of its four layers keep only a chunk of the past, in a cache that says that it can be trimmed."""
    from mlx_lm.models.llama4 import Model, ModelArgs

    text: dict[str, Any] = {
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": CHUNK,
        "head_dim": 16,
        "hidden_size": 64,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 64,
        "intermediate_size_mlp": 64,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": 4,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 1e4,
        "use_qk_norm": True,
        "vocab_size": VOCAB,
    }
    model = fill_with_noise(Model(ModelArgs(text_config=text, model_type="llama4")), 0, 2.0)
    evaluate_everything(model)
    return model, tiny_tokenizer()


def test_a_model_with_a_cache_of_another_kind_is_not_cut_back() -> None:
    assert not capabilities_of(llama4()[0]).trimmable

    def work(backend: MlxBackend) -> None:
        assert not backend.capabilities.trimmable
        told = prefill(backend, request(1, PROMPT, max_tokens=6, logprobs=VOCAB))
        for _ in range(3):
            step(backend, {1: told})
        kept = backend.drop(1, keep_as=1, keep_tokens=CHUNK + 3)
        assert kept is not None
        assert (kept.tokens, kept.nbytes) == (0, 0)

    with_backend(llama4(), work)


def test_as_it_is_such_a_state_is_exact() -> None:
    def work(backend: MlxBackend) -> None:
        told = run_row(backend, request(1, PROMPT, max_tokens=6, logprobs=VOCAB))
        again = prefill(backend, request(2, PROMPT, max_tokens=6, logprobs=VOCAB))
        for _ in range(3):
            step(backend, {2: again})
        kept = backend.drop(2, keep_as=1)
        assert kept is not None
        assert kept.tokens == len(PROMPT) + 2
        known = [*PROMPT, *told.tokens[:3]]
        on = go_on(backend, 3, known, 1, kept.tokens)
        found = zip(vectors_of(on.logprobs, VOCAB), vectors_of(told.logprobs, VOCAB)[3:], strict=False)
        assert all(np.allclose(mine, theirs, atol=1e-4) for mine, theirs in found)

    with_backend(llama4(), work)


OWN: Any = type("Own", (KVCache,), {})
"""A kind that we know nothing of, though it says that it can be trimmed."""


def quantised(part: Callable[[], Any]) -> AffineCache:
    return AffineCache((part(), part(), part()), LayerScheme(8, 32))


@pytest.mark.parametrize(
    ("make", "whole"),
    [
        (KVCache, True),
        (lambda: quantised(KVCache), True),
        (lambda: RotatingKVCache(max_size=64), False),
        (lambda: quantised(lambda: RotatingKVCache(max_size=64)), False),
        (lambda: ChunkedKVCache(CHUNK), False),
        (OWN, False),
        (lambda: ArraysCache(1), False),
    ],
    ids=["full", "quantised", "window", "quantised window", "chunked", "subclass", "state"],
)
def test_kinds_that_hold_their_whole_past_are_named_not_asked(make: Callable[[], Any], *, whole: bool) -> None:
    leaf = make()
    assert keeps_past(leaf) == whole
    if isinstance(leaf, ArraysCache):
        return
    window = isinstance(leaf, RotatingKVCache) or (
        isinstance(leaf, AffineCache) and isinstance(leaf.parts[0], RotatingKVCache)
    )
    leaf.update_and_fetch(mx.zeros((1, 1, 10, 32)), mx.zeros((1, 1, 10, 32)))
    assert cut([CacheList(leaf)], 3) == (whole or window)  # a window that has let go of nothing holds its past too
    if window:
        leaf.update_and_fetch(mx.zeros((1, 1, 64, 32)), mx.zeros((1, 1, 64, 32)))
        assert not cut([leaf], 3)

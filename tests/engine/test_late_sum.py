"""Late sums: a twin whose blocks leave their sums to the next norm says what the model says, or is not used."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import choose_store
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late_sum import LateBlock, LateNorm, Sums
from mlx_notebook.engine.stores.page_ops import StockPages
from mlx_notebook.engine.stores.pool import PoolStore
from tests.small_models import CONTEXT, VOCAB, random_prompt, small


class Counting(StockPages):
    """Counts the sums that it was left."""

    def __init__(self) -> None:
        self.sums = 0

    def add_norm(self, x: mx.array, more: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
        self.sums += 1
        return super().add_norm(x, more, weight, eps)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_twin_says_what_the_model_says_and_leaves_every_sum(kind: str) -> None:
    model, _ = small(kind)
    ops = Counting()
    sums = Sums(ops)
    twin = joined(model, ops.split, sums=sums)
    layers = len(model.layers)
    assert sums.found == layers
    assert all(type(block) is LateBlock for block in twin.layers)
    assert type(twin.model.norm) is LateNorm
    tokens = mx.array([random_prompt(20, seed=1), random_prompt(20, seed=2)])
    expected = model(tokens, cache=make_prompt_cache(model))
    assert mx.allclose(twin(tokens, cache=make_prompt_cache(model)), expected, atol=1e-4)
    assert ops.sums == 2 * layers, "all but the embeddings' own norm"
    sums.late, ops.sums = False, 0
    assert mx.allclose(twin(tokens, cache=make_prompt_cache(model)), expected, atol=1e-4)
    assert ops.sums == 0


@pytest.mark.parametrize("kind", ["gemma3_text", "mamba2"])
def test_blocks_with_other_parts_stay(kind: str) -> None:
    model, _ = small(kind)
    sums = Sums(StockPages())
    twin = joined(model, StockPages().split, sums=sums)
    assert sums.found == 0
    assert not any(type(block) is LateBlock for block in twin.layers)


def scaled_residuals() -> Any:
    """Granite: a block with the same parts, which scales what it adds."""
    from mlx_lm.models.granite import Model, ModelArgs

    model = Model(
        ModelArgs(
            model_type="granite",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=VOCAB,
            max_position_embeddings=CONTEXT,
            logits_scaling=1.0,
            attention_multiplier=0.25,
            embedding_multiplier=1.0,
            residual_multiplier=0.3,
            attention_bias=False,
            mlp_bias=False,
            rope_theta=10_000.0,
        )
    )
    mx.eval(model.parameters())
    return model


def test_a_block_that_does_more_is_found_out_by_the_probe_and_served_the_other_way() -> None:
    model = scaled_residuals()
    route = AttentionRoute(model)
    ops = StockPages()
    sums = Sums(ops)
    twin = joined(model, ops.split, sums=sums)
    assert sums.found == 2

    def make(late: bool) -> PoolStore:
        sums.late = late
        return PoolStore(model, ops, twin=twin)

    choice = choose_store(model, first=[partial(make, True), partial(make, False)])
    route.close()
    assert choice.store is not None
    assert choice.store.name == "pool"
    assert len(choice.findings) == 1
    assert "logits differ" in choice.findings[0]
    assert sums.late is False

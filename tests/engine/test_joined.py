"""Joined projections: the twin says what the model says, and nothing is held twice."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.page_ops import StockPages
from tests.small_models import random_prompt, small


@pytest.mark.parametrize("kind", ["llama", "qwen2"])  # without and with a bias
def test_the_twin_says_what_the_model_says(kind: str) -> None:
    model, _ = small(kind)
    before = {name: value + 0 for name, value in dict(tree_flatten(model.parameters())).items()}
    tokens = mx.array([random_prompt(20, seed=1), random_prompt(20, seed=2)])
    expected = model(tokens, cache=make_prompt_cache(model))
    mx.eval(before, expected)
    twin = joined(model, StockPages().split)
    assert type(twin) is type(model)
    assert type(model.layers[0].self_attn.q_proj) is Linear
    assert type(twin.layers[0].self_attn.q_proj) is not Linear
    assert type(twin.layers[0].mlp.down_proj) is not Linear
    assert mx.allclose(twin(tokens, cache=make_prompt_cache(model)), expected, atol=1e-4)
    assert mx.allclose(model(tokens, cache=make_prompt_cache(model)), expected, atol=1e-5)
    after = dict(tree_flatten(model.parameters()))
    assert after.keys() == before.keys()
    assert all(mx.array_equal(after[name], value).item() for name, value in before.items())


class Odd(Module):
    """Asks its projections with different inputs, in another order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.q_proj = Linear(8, 6, bias=False)
        self.k_proj = Linear(8, 4, bias=False)
        self.v_proj = Linear(8, 2, bias=False)
        self.gate_proj = Linear(8, 4)
        self.up_proj = Linear(6, 4)  # not of the same input

    def __call__(self, x: mx.array) -> mx.array:
        parts = [self.v_proj(x), self.q_proj(x), self.k_proj(x + 1), self.gate_proj(x)]
        return mx.concatenate([*parts, self.up_proj(parts[1])], axis=-1)


def test_no_result_depends_on_how_they_are_used() -> None:
    model = Odd()
    x = mx.random.normal((3, 8))
    expected = model(x)
    twin = joined(model, StockPages().split)
    assert type(twin.up_proj) is not type(twin.q_proj), "no sibling of anybody"
    assert mx.allclose(twin(x), expected, atol=1e-5)


def test_nothing_is_held_twice() -> None:
    layer = Module()  # type: ignore[no-untyped-call]
    for name in ("q_proj", "k_proj", "v_proj"):
        layer[name] = Linear(1024, 1024, bias=False)
    mx.eval(layer.parameters())  # type: ignore[no-untyped-call]
    gc.collect()
    held = mx.get_active_memory()
    twin = joined(layer, StockPages().split)
    assert twin.q_proj(mx.ones((1, 1024))).shape == (1, 1024)
    more = mx.get_active_memory() - held
    assert more < layer.q_proj.weight.nbytes / 2, more  # a copy of all would be three times one of them

"""A model's numbers, found without computing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.engine.mlx_backend import device_name
from mlx_notebook.engine.probe import capabilities_of
from tests.engine.driving import prefill, request, step, with_backend
from tests.small_models import KINDS, VOCAB, random_prompt, small

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend


@pytest.mark.parametrize("kind", KINDS)
def test_one_rows_bytes_are_what_its_caches_take(kind: str) -> None:
    pair = small(kind)
    found = capabilities_of(pair[0], context_length=512)
    assert found.vocab_size == VOCAB
    assert found.context_length == 512

    def work(backend: MlxBackend) -> int:
        told = prefill(backend, request(1, random_prompt(256, seed=1), max_tokens=3), chunk=64)
        step(backend, {1: told})  # feeds the last token: windows let go of what left them
        return backend.held_bytes()

    assert with_backend(pair, work) == found.cost.of(256)


def test_what_grows_and_what_does_not() -> None:
    found = {kind: capabilities_of(small(kind)[0]) for kind in KINDS}
    assert found["llama"].state_bytes == 0
    assert found["llama"].kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # layers x (keys, values) x heads x size x float32
    assert found["mamba2"].kv_bytes_per_token == 0
    for kind in ("mamba2", "lfm2", "qwen3_next"):
        assert found[kind].state_bytes > 0
    assert found["gemma3_text"].windows == ((16, 2 * 2 * 2 * 16 * 4),)  # two of its four layers
    assert [kind for kind in KINDS if found[kind].trimmable] == ["llama", "qwen2"]


def test_nothing_is_computed() -> None:
    model, _ = small("llama")
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    capabilities_of(model)
    assert mx.get_peak_memory() <= before + 4096


def test_the_smaller_of_embedding_head_and_what_the_caller_knows() -> None:
    class PaddedHead:
        """A head wider than the embedding, as padded models have."""

        def __init__(self, model: Any) -> None:
            self.model, self.layers = model, model.layers

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            logits = self.model(tokens, cache=cache)
            return mx.concatenate([logits, mx.zeros((*logits.shape[:-1], 64))], axis=-1)

        def modules(self) -> Any:
            return self.model.modules()

    model = PaddedHead(small("llama")[0])
    assert model(mx.array([[1]]), cache=make_prompt_cache(model)).shape[-1] == VOCAB + 64
    assert capabilities_of(model).vocab_size == VOCAB
    assert capabilities_of(model, vocab_size=300).vocab_size == 300
    assert capabilities_of(model, vocab_size=VOCAB + 64).vocab_size == VOCAB


def test_the_device_has_a_name() -> None:
    assert device_name().startswith(("CPU", "GPU"))

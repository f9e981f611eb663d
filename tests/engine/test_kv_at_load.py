"""A kv scheme is tried when the model is loaded: what cannot be served so is refused there, not row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme
from mlx_notebook.core.placement import Mechanism, resolve
from mlx_notebook.core.request import RequestShape, SamplingOptions
from mlx_notebook.engine.kv.convert import check_model
from mlx_notebook.engine.mlx_backend import MlxBackend
from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.evaluate import evaluate_everything
from tests.engine.driving import on_thread, request, run_row, with_backend
from tests.engine.test_batch_quantised import wide
from tests.small_models import CONTEXT, VOCAB, WINDOW, fill_with_noise, random_prompt, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

EIGHT = KVScheme(LayerScheme(8, 32))
LATE = KVScheme(LayerScheme(4, 32), (), 64)
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _gpt_oss() -> Any:
    from mlx_lm.models.gpt_oss import Model, ModelArgs

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return Model(ModelArgs(sliding_window=WINDOW, head_dim=32, **experts, **SIZES, **HEADS))


def _gemma2() -> Any:
    from mlx_lm.models.gemma2 import Model, ModelArgs

    return Model(ModelArgs(model_type="gemma2", head_dim=32, rms_norm_eps=1e-6, **SIZES, **HEADS))


def _deepseek_v3() -> Any:
    from mlx_lm.models.deepseek_v3 import Model, ModelArgs

    widths = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 32, "v_head_dim": 12, "qk_nope_head_dim": 16}
    args = ModelArgs(max_position_embeddings=CONTEXT, **widths, **SIZES, **HEADS)
    return Model(args)


def made(build: Callable[[], Any]) -> tuple[Any, Any]:
    model = fill_with_noise(build(), 0, 2.0)
    evaluate_everything(model)
    return model, tiny_tokenizer()


@pytest.mark.parametrize("scheme", [EIGHT, LATE], ids=["at once", "late"])
@pytest.mark.parametrize(
    ("build", "said"),
    [(_gpt_oss, "sinks"), (_gemma2, "expand_dims"), (_deepseek_v3, "swapaxes")],
    ids=["gpt_oss", "gemma2", "deepseek_v3"],
)
def test_a_model_that_cannot_read_quantised_rows_is_refused_at_load(
    build: Callable[[], Any], said: str, scheme: KVScheme
) -> None:
    pair = made(build)
    told = with_backend(pair, lambda backend: run_row(backend, request(1, random_prompt(9), max_tokens=4)))
    assert len(told.tokens) == 4  # natively it is served
    bits = scheme.of(0).bits  # type: ignore[union-attr]
    words = rf"{build.__name__[1:]} can't be served .* in {bits} bits, groups of 32.*{said}.*kv='native'"
    with pytest.raises(ModelLoadError, match=words):
        on_thread(lambda: MlxBackend(*pair, kv_scheme=scheme))


@pytest.mark.parametrize("build", [_gpt_oss, _gemma2, _deepseek_v3])
def test_the_weights_need_not_be_there_to_find_out(build: Callable[[], Any]) -> None:
    model = build()  # its weights are drawn when somebody needs them
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    with pytest.raises(ModelLoadError, match="quantised keys"):
        check_model(model, EIGHT)
    assert mx.get_peak_memory() <= before + 4096


def test_what_only_computing_shows_is_refused_too() -> None:
    model, tokenizer = wide("llama")

    class FailsLate(Served):
        """Builds a graph that cannot be computed once a row is quantised."""

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            logits = self.model(tokens, cache=cache)
            if any(hasattr(one, "bits") for one in cache):
                logits = logits + mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)[0, 0]
            return logits

    with pytest.raises(ModelLoadError, match="kv='native'"):
        on_thread(lambda: MlxBackend(FailsLate(model), tokenizer, kv_scheme=EIGHT))


class Served:
    """A model whose calls are ours to change; its attention is routed or not."""

    def __init__(self, model: Any, *, routed: bool = True) -> None:
        self.model, self.layers, self._routed = model, model.layers, routed

    def modules(self) -> list[Any]:
        return list(self.model.modules()) if self._routed else []

    def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
        return self.model(tokens, cache=cache)


class QuantisedAlone(Served):
    """Takes several rows, but not when any of them is quantised."""

    def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
        units = getattr(cache[0], "units", ())
        if any(hasattr(unit, "bits") for unit in units):
            raise NotImplementedError("one quantised row at a time")
        return self.model(tokens, cache=cache)


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_only_fails_together_runs_one_row_at_a_time_and_says_why(*, deterministic: bool) -> None:
    model, tokenizer = wide("llama")
    pair = QuantisedAlone(model), tokenizer
    asked = request(1, random_prompt(9), max_tokens=6)
    assert with_backend(pair, lambda backend: backend.capabilities.continuous)

    def work(backend: MlxBackend) -> list[int]:
        placement = resolve(RequestShape((1, 2), SamplingOptions()), backend.capabilities, 0)
        assert placement.mechanism is Mechanism.SERIAL
        assert "one quantised row at a time" in placement.reasons[0].text
        return run_row(backend, asked).tokens

    expected = with_backend(wide("llama"), lambda backend: run_row(backend, asked).tokens, kv_scheme=EIGHT)
    if not deterministic:
        assert with_backend(pair, work, kv_scheme=EIGHT) == expected
        return
    with pytest.raises(Exception, match="one quantised row at a time"):
        with_backend(pair, work, kv_scheme=EIGHT, deterministic=True)


def test_a_rectangle_cannot_hold_quantised_rows() -> None:
    model, tokenizer = wide("llama")
    pair = Served(model, routed=False), tokenizer
    assert with_backend(pair, lambda backend: backend.store) == "rectangle"

    def work(backend: MlxBackend) -> None:
        assert not backend.capabilities.continuous
        assert backend.store == "one row at a time"
        assert len(run_row(backend, request(1, random_prompt(9), max_tokens=6)).tokens) == 6

    with_backend(pair, work, kv_scheme=EIGHT)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_models_that_read_them_keep_the_batch(kind: str, bits: int) -> None:
    def work(backend: MlxBackend) -> None:
        assert backend.capabilities.continuous, backend.capabilities.continuous_why_not
        assert backend._cohorts
        assert backend.store == "rows"

    with_backend(wide(kind), work, kv_scheme=KVScheme(LayerScheme(bits, 32)))

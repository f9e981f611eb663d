"""More families, for what is their own: nested caches, sinks, values of another width, heads by layer."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlx_notebook.core.events import Keep
from mlx_notebook.models.evaluate import evaluate_everything
from tests.engine.driving import Told, prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import tiered
from tests.engine.traffic import Coming, check_same, run_script
from tests.small_models import CONTEXT, VOCAB, WINDOW, fill_with_noise, random_prompt, tiny_tokenizer

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

COUNT = 24
NOISE = 1e-3
LENGTHS = (1, 7, WINDOW + 3, 30)
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _falcon_h1() -> Any:
    from mlx_lm.models.falcon_h1 import Model, ModelArgs

    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 2}
    state = {"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4, "mamba_d_state": 16}
    return Model(ModelArgs(vocab_size=VOCAB, max_position_embeddings=CONTEXT, **sizes, **state, **HEADS))


def _baichuan_m1() -> Any:
    from mlx_lm.models.baichuan_m1 import Model, ModelArgs

    windows: dict[str, Any] = {"sliding_window": WINDOW, "sliding_window_layers": [1, 3], "conv_window": 2}
    other: dict[str, Any] = {"num_swa_attention_heads": 2, "num_swa_key_value_heads": 1, "rope_theta": 1e4}
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4}
    return Model(ModelArgs(rms_norm_eps=1e-5, **sizes, **windows, **other, **HEADS))


def _gpt_oss() -> Any:
    from mlx_lm.models.gpt_oss import Model, ModelArgs

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 4}
    return Model(ModelArgs(vocab_size=VOCAB, sliding_window=WINDOW, **experts, **sizes, **HEADS))


def _deepseek_v2() -> Any:
    from mlx_lm.models.deepseek_v2 import Model, ModelArgs

    widths = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_nope_head_dim": 16}
    scaling = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "mscale": 1, "mscale_all_dim": 1}
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    args = ModelArgs(
        vocab_size=VOCAB, rope_scaling=scaling, max_position_embeddings=CONTEXT, **widths, **sizes, **HEADS
    )
    return Model(args)


def _cohere2() -> Any:
    from mlx_lm.models.cohere2 import Model, ModelArgs

    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 4}
    windows: dict[str, Any] = {"sliding_window": WINDOW, "sliding_window_pattern": 2, "logit_scale": 1.0}
    return Model(ModelArgs(model_type="cohere2", vocab_size=VOCAB, **sizes, **windows, **HEADS))


BUILDERS = {
    "falcon_h1": _falcon_h1,
    "baichuan_m1": _baichuan_m1,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "cohere2": _cohere2,
}


@cache
def pair(family: str) -> tuple[Any, Any]:
    model = fill_with_noise(BUILDERS[family](), 0, 2.0)
    evaluate_everything(model)  # some rotary frequencies are no parameters
    return model, tiny_tokenizer()


def alone(family: str, row: Coming, **options: Any) -> Told:
    asked = request(1, row.prompt, max_tokens=COUNT, logprobs=VOCAB)
    return with_backend(pair(family), lambda backend: run_row(backend, asked), **options)


def rows_of(*, together: bool) -> list[Coming]:
    return [
        Coming(random_prompt(length, seed=at), at=0 if together else 3 * at, chunk=None if together else 8)
        for at, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize("together", [True, False], ids=["in one forward", "one by one"])
@pytest.mark.parametrize("family", tiered(BUILDERS.keys(), "deepseek_v2"))
def test_rows_in_a_batch_say_what_they_say_alone(family: str, *, together: bool) -> None:
    def work(backend: MlxBackend) -> list[Told]:
        assert backend.store == "rows"
        return run_script(backend, rows, COUNT)

    rows = rows_of(together=together)
    for row, told in zip(rows, with_backend(pair(family), work), strict=True):
        expected = alone(family, row)
        assert told.error is None
        check_same(told, expected.tokens, vectors_of(expected.logprobs, VOCAB), NOISE)


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_bits_in_deterministic_mode(family: str) -> None:
    mode: dict[str, Any] = {"deterministic": True, "max_rows": 8}
    rows = rows_of(together=False)
    for row, told in zip(rows, with_backend(pair(family), lambda b: run_script(b, rows, COUNT), **mode), strict=True):
        expected = alone(family, row, **mode)
        assert told.tokens == expected.tokens
        for mine, theirs in zip(vectors_of(told.logprobs, VOCAB), vectors_of(expected.logprobs, VOCAB), strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("family", tiered(BUILDERS.keys(), "deepseek_v2"))
def test_entries_of_nested_caches_are_exact_and_stay_as_they_are(family: str) -> None:
    prompt = random_prompt(20, seed=3)

    def work(backend: MlxBackend) -> None:
        told = prefill(backend, request(1, prompt, max_tokens=COUNT, logprobs=VOCAB))
        step(backend, {1: told})
        step(backend, {1: told})
        kept = backend.keep(Keep(1, 1, len(prompt) + 1))
        assert kept.tokens == len(prompt) + 1
        known = [*prompt, told.tokens[0]]
        for _ in range(5):
            step(backend, {1: told})
        for row_id in (2, 3):
            backend.open(request(row_id, [*known, *told.tokens[1:2]], max_tokens=6, logprobs=VOCAB), 1, len(known))
            again = Told()
            while not again.over:
                step(backend, {row_id: again})
            assert again.tokens[:4] == told.tokens[2:6]
            backend.drop(row_id)

    with_backend(pair(family), work)


def test_a_model_that_ignores_lengths_reads_its_prompts_alone() -> None:
    def cohorts(backend: MlxBackend) -> bool:
        return backend._cohorts

    assert not with_backend(pair("baichuan_m1"), cohorts)
    assert with_backend(pair("falcon_h1"), cohorts)

"""A small model whose heads are as wide as the kernels over pages want them."""

from __future__ import annotations

from typing import Any

from tests.small_models import CONTEXT, VOCAB, fill_with_noise


def wide_llama() -> Any:
    """A Llama of two layers with four query heads and two key heads of 64 numbers."""
    from mlx_lm.models.llama import Model, ModelArgs

    arguments = ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
    )
    return fill_with_noise(Model(arguments), 0, 2.0)

"""A small model whose heads are as wide as the kernels over pages want them."""

from __future__ import annotations

from typing import Any

from tests.small_models import CONTEXT, VOCAB, fill_with_noise, llama


def wide_llama() -> Any:
    """A Llama of two layers with four query heads and two key heads of 64 numbers."""
    return fill_with_noise(llama(VOCAB, CONTEXT, head_dim=64), 0, 2.0)

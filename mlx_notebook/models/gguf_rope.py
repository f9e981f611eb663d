"""Rotary scaling: from GGUF's keys and frequency table to mlx-lm's `rope_scaling`, or a clear refusal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlx_notebook.errors import ModelLoadError

if TYPE_CHECKING:
    from mlx_notebook.models.gguf_file import GgufFile

# Llama 3.1 to 3.3 share these; only the factor differs, and the table's largest entry is the factor.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_CONTEXT = 1.0, 4.0, 8192


def rope_scaling(file: GgufFile, head_size: int, base: float) -> dict[str, Any] | None:
    """mlx-lm's description of the file's rotary scaling; None where it has none.

    Raises:
        ModelLoadError: a kind of scaling, or a frequency table, that mlx-lm cannot reproduce.
    """
    if "rope_freqs.weight" in file.tensors:
        return _from_table(file, head_size, base)
    if any(name.startswith("rope_factors") for name in file.tensors):
        raise _refusal(file, "separate long and short rotary factors")
    kind = str(file.of_architecture("rope.scaling.type", "none"))
    factor = file.number("rope.scaling.factor", 0.0) or file.number("rope.scale_linear", 0.0) or 1.0
    if factor == 1.0:
        return None
    if kind == "linear" or (kind == "none" and file.of_architecture("rope.scaling.type") is None):
        return {"type": "linear", "factor": factor}
    if kind == "none":
        return None
    if kind == "yarn":
        return _yarn(file, factor)
    raise _refusal(file, f"rotary scaling of type {kind!r}")


def _yarn(file: GgufFile, factor: float) -> dict[str, Any]:
    key = "rope.scaling.original_context_length"
    if file.of_architecture(key) is None:
        raise _refusal(file, "yarn scaling without its original context length")
    if file.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise _refusal(file, "yarn scaling with an attention factor of its own")
    if file.of_architecture("rope.scaling.yarn_log_multiplier", 0.0):
        raise _refusal(file, "yarn scaling with a log multiplier")
    scaling: dict[str, Any] = {"type": "yarn", "factor": factor, "original_max_position_embeddings": file.whole(key)}
    for key, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if file.of_architecture(f"rope.scaling.{key}") is not None:
            scaling[ours] = file.number(f"rope.scaling.{key}")
    return scaling


def _from_table(file: GgufFile, head_size: int, base: float) -> dict[str, Any] | None:
    """The file holds one divisor a frequency; find the Llama 3 setting that gives exactly these."""
    table = np.asarray(file.tensors["rope_freqs.weight"].data, dtype=np.float32).reshape(-1)
    factor = float(table.max(initial=1.0))
    if np.allclose(table, 1.0):
        return None
    if table.shape == (head_size // 2,) and np.allclose(table, _llama3_divisors(head_size, base, factor), rtol=1e-4):
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }
    raise _refusal(file, "a rotary frequency table that is not Llama 3's")


def _llama3_divisors(head_size: int, base: float, factor: float) -> npt.NDArray[np.float64]:
    """By how much each frequency is divided (Llama 3.1's rule: long waves wholly, short ones not, a ramp between)."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_size, 2) / head_size)
    smooth = (LLAMA3_CONTEXT / wavelengths - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
    ramp = 1.0 / ((1 - smooth) / factor + smooth)
    divisors = np.where(wavelengths > LLAMA3_CONTEXT / LLAMA3_LOW, factor, ramp)
    return np.where(wavelengths < LLAMA3_CONTEXT / LLAMA3_HIGH, 1.0, divisors)


def _refusal(file: GgufFile, what: str) -> ModelLoadError:
    return ModelLoadError(
        f"{file.path.name} uses {what}, which cannot be reproduced exactly. "
        "Use an mlx-lm folder or a Hugging Face id of this model.",
        model=str(file.path),
    )

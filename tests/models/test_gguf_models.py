"""A GGUF file and the model that it stands for give the same logits, family by family, type by type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models import resolve
from mlx_notebook.models.gguf_convert import convert_gguf
from mlx_notebook.models.load import load
from tests.models.gguf_files import FAMILIES, write_small

if TYPE_CHECKING:
    from pathlib import Path

# Kept by MLX's layout, dequantised ones, and plain ones.
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1")
TOKENS = [5, 17, 200, 31, 44, 99, 7, 150, 260, 13, 77, 180, 3, 9, 111, 250, 8, 64, 32, 201]


def logits(model: Any) -> mx.array:
    found: mx.array = model(mx.array([TOKENS]))[0].astype(mx.float32)
    return found


def difference(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a - b).max() / mx.abs(b).max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", TYPES)
def test_logits_equal_those_of_the_same_weights_filled_in_directly(family: str, kind: str, tmp_path: Path) -> None:
    expected = write_small(tmp_path / "small.gguf", family, quantisation=kind)
    loaded = load(resolve(tmp_path / "small.gguf"), dtype="float32")
    assert difference(logits(loaded.model), logits(expected)) < 1e-4
    # The bound means something: another model is far away.
    other = write_small(tmp_path / "other.gguf", family, quantisation=kind, seed=1)
    assert difference(logits(other), logits(expected)) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_kept_quantised_weights_give_the_same_logits(family: str, kind: str, tmp_path: Path) -> None:
    expected = write_small(tmp_path / "small.gguf", family, quantisation=kind)
    loaded = load(resolve(tmp_path / "small.gguf"), dtype="4bit")
    assert loaded.quantised
    assert loaded.dtype == ("8bit" if kind == "Q8_0" else "4bit")
    assert loaded.weight_bytes < load(resolve(tmp_path / "small.gguf"), dtype="float32").weight_bytes / 2
    assert difference(logits(loaded.model), logits(expected)) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_a_separate_output_head_is_used(family: str, tmp_path: Path) -> None:
    expected = write_small(tmp_path / "untied.gguf", family, tied=False, quantisation="Q8_0")
    loaded = load(resolve(tmp_path / "untied.gguf"), dtype="float32")
    assert difference(logits(loaded.model), logits(expected)) < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_linear_rope_scaling(family: str, tmp_path: Path) -> None:
    scaling = {"type": "linear", "factor": 4.0}
    expected = write_small(
        tmp_path / "scaled.gguf",
        family,
        model_options={"rope_scaling": scaling},
        metadata={"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": 4.0},
        quantisation="Q8_0",
    )
    loaded = load(resolve(tmp_path / "scaled.gguf"), dtype="float32")
    assert difference(logits(loaded.model), logits(expected)) < 1e-4
    plain = write_small(tmp_path / "plain.gguf", family, quantisation="Q8_0")
    assert difference(logits(plain), logits(expected)) > 1e-2


def test_yarn_rope_scaling(tmp_path: Path) -> None:
    expected = write_small(
        tmp_path / "yarn.gguf",
        "qwen2",
        model_options={"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        metadata={
            "{arch}.rope.scaling.type": "yarn",
            "{arch}.rope.scaling.factor": 4.0,
            "{arch}.rope.scaling.original_context_length": 128,
        },
        quantisation="Q8_0",
    )
    loaded = load(resolve(tmp_path / "yarn.gguf"), dtype="float32")
    assert difference(logits(loaded.model), logits(expected)) < 1e-4


def test_gemma3_scales_only_its_global_layers(tmp_path: Path) -> None:
    expected = write_small(
        tmp_path / "scaled.gguf",
        "gemma3",
        model_options={"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        metadata={"{arch}.rope.scaling.type": "linear", "{arch}.rope.scaling.factor": 8.0},
        quantisation="Q8_0",
    )
    loaded = load(resolve(tmp_path / "scaled.gguf"), dtype="float32")
    assert difference(logits(loaded.model), logits(expected)) < 1e-4


def llama3_table(factor: float, base: float, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Llama 3's divisors, written from its own description, one frequency at a time."""
    table = []
    for i in range(size // 2):
        wavelength = 2 * np.pi * base ** (2 * i / size)
        if wavelength < 8192 / 4:
            table.append(1.0)
        elif wavelength > 8192:
            table.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            table.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(table, dtype=np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_table_is_recognised(factor: float, tmp_path: Path) -> None:
    options = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = write_small(
        tmp_path / "llama3.gguf",
        "llama",
        model_options={"rope_scaling": options, "rope_theta": 500_000.0},
        metadata={"{arch}.rope.freq_base": 500_000.0},
        tensors={"rope_freqs.weight": llama3_table(factor, 500_000.0, 16)},
        quantisation="Q8_0",
    )
    loaded = load(resolve(tmp_path / "llama3.gguf"), dtype="float32")
    assert loaded.config["rope_scaling"]["factor"] == factor
    assert difference(logits(loaded.model), logits(expected)) < 1e-4


def test_a_table_that_is_not_llama3s_is_refused(tmp_path: Path) -> None:
    odd = np.linspace(1, 5, 8).astype(np.float32)
    write_small(tmp_path / "odd.gguf", "llama", tensors={"rope_freqs.weight": odd})
    with pytest.raises(ModelLoadError, match="frequency table"):
        resolve(tmp_path / "odd.gguf")


def test_the_cached_folder_is_plain_mlx_lm(tmp_path: Path) -> None:
    write_small(tmp_path / "plain.gguf", "llama", quantisation="Q4_1")
    folder = convert_gguf(tmp_path / "plain.gguf")
    with safe_open(str(folder / "model.safetensors"), framework="np") as file:
        names = set(file.keys())
    assert {"model.embed_tokens.weight", "model.embed_tokens.scales", "model.layers.0.self_attn.q_proj.biases"} <= names
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": 4}
    from mlx_lm import load as mlx_lm_load

    model, tokenizer = mlx_lm_load(str(folder))[:2]
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"
    assert logits(model).shape == (len(TOKENS), 320)

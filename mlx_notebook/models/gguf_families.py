"""What a GGUF file of the llama, qwen2 or gemma3 family means in mlx-lm's terms: configuration and tensor names.

Sources: llama.cpp's converter (it permutes llama's q and k rows for interleaved rotary
embedding, and stores gemma's norm weights plus one) and mlx-lm's models of the same names.
What is not understood exactly is refused: a model that is nearly right answers nonsense.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.gguf_rope import rope_scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.models.gguf_file import GgufFile

# llama.cpp keeps these constant for gemma3 where the file does not say otherwise.
GEMMA3_SLIDING_PATTERN = 6
GEMMA3_LOCAL_ROPE_BASE = 10_000.0
# The 27B model alone scales its queries by hidden size over heads, not by head size.
GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a GGUF tensor goes.

    Attributes:
        name: mlx-lm's name without the last part (`.weight` is added for matrices).
        leaf: the last part, `weight` or `bias`.
        heads: rows are permuted over this many heads and must be put back; 0 where they are not.
        offset: added to every value.
    """

    name: str
    leaf: str = "weight"
    heads: int = 0
    offset: float = 0.0


def config_of(file: GgufFile) -> dict[str, Any]:
    """mlx-lm's `config.json` for this file, without quantisation and token ids.

    Raises:
        ModelLoadError: unknown architecture, missing key, or a feature that is not understood.
    """
    family = _FAMILIES.get(file.architecture)
    if family is None:
        raise ModelLoadError(
            f"{file.path.name} has architecture {file.architecture!r}. GGUF files of these families can be loaded: "
            f"{', '.join(sorted(_FAMILIES))}. For others use an mlx-lm folder or a Hugging Face id.",
            model=str(file.path),
        )
    _refuse(file, "expert_count", "a mixture of experts")
    _refuse(file, "attn_logit_softcapping", "soft-capped attention")
    _refuse(file, "final_logit_softcapping", "soft-capped logits")
    return family(file)


def _refuse(file: GgufFile, key: str, what: str) -> None:
    if file.of_architecture(key, 0):
        raise ModelLoadError(
            f"{file.path.name} uses {what} ({file.architecture}.{key}), which GGUF loading does not cover. "
            "Use an mlx-lm folder or a Hugging Face id of this model.",
            model=str(file.path),
        )


def _common(file: GgufFile) -> dict[str, Any]:
    heads = file.whole("attention.head_count")
    return {
        "hidden_size": file.whole("embedding_length"),
        "num_hidden_layers": file.whole("block_count"),
        "intermediate_size": file.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.whole("attention.head_count_kv", heads),
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": file.whole("context_length"),
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]) if "token_embd.weight" in file.tensors else 0,
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _head_size(file: GgufFile, config: dict[str, Any]) -> int:
    size = file.whole("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    rotated = file.whole("rope.dimension_count", size)
    values = file.whole("attention.value_length", size)
    if rotated != size or values != size:
        raise ModelLoadError(
            f"{file.path.name} rotates {rotated} of {size} dimensions of a head, with values of size {values}; "
            "only whole heads of one size are covered.",
            model=str(file.path),
        )
    return size


def _llama(file: GgufFile) -> dict[str, Any]:
    config = _common(file)
    biased = "blk.0.attn_q.bias" in file.tensors
    base = file.number("rope.freq_base", 10_000.0)
    head_size = _head_size(file, config)
    return config | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "head_dim": head_size,
        "rope_theta": base,
        "rope_scaling": rope_scaling(file, head_size, base),
        "attention_bias": biased,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _qwen2(file: GgufFile) -> dict[str, Any]:
    config = _common(file)
    base = file.number("rope.freq_base", 1_000_000.0)
    head_size = _head_size(file, config)
    if head_size * config["num_attention_heads"] != config["hidden_size"]:
        raise ModelLoadError(
            f"{file.path.name}: qwen2 heads of size {head_size} do not fill the hidden size.", model=str(file.path)
        )
    return config | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "rope_theta": base,
        "rope_scaling": rope_scaling(file, head_size, base),
    }


def _gemma3(file: GgufFile) -> dict[str, Any]:
    config = _common(file)
    base = file.number("rope.freq_base", 1_000_000.0)
    head_size = file.whole("attention.key_length", 256)
    pattern = file.of_architecture("attention.sliding_window_pattern", GEMMA3_SLIDING_PATTERN)
    if not isinstance(pattern, int):
        raise ModelLoadError(
            f"{file.path.name} lists its sliding layers one by one, which is not covered for gemma3.",
            model=str(file.path),
        )
    scalar = head_size
    if config["num_hidden_layers"] == GEMMA3_27B_LAYERS:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    return config | {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": head_size,
        "query_pre_attn_scalar": scalar,
        "sliding_window": file.whole("attention.sliding_window"),
        "sliding_window_pattern": pattern,
        "rope_theta": base,
        "rope_local_base_freq": file.number("rope.freq_base_swa", GEMMA3_LOCAL_ROPE_BASE),
        "rope_scaling": rope_scaling(file, head_size, base),
    }


_FAMILIES: dict[str, Callable[[GgufFile], dict[str, Any]]] = {"llama": _llama, "qwen2": _qwen2, "gemma3": _gemma3}

_TOP = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm", "output.weight": "lm_head"}
_PLAIN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _PLAIN_LAYER | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Read through the metadata (rotary scaling), or derived data that mlx-lm computes itself.
_NOT_WEIGHTS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)$")


def place_tensors(file: GgufFile, config: dict[str, Any]) -> dict[str, Placed]:
    """For each tensor of the file, where it goes.

    Raises:
        ModelLoadError: a tensor whose meaning is not known, or one that the family needs and the file lacks.
    """
    placed = {name: _place(file, name, config) for name in file.tensors if name not in _NOT_WEIGHTS}
    _check_complete(file, config, {f"{p.name}.{p.leaf}" for p in placed.values()})
    return placed


def _place(file: GgufFile, name: str, config: dict[str, Any]) -> Placed:
    gemma = file.architecture == "gemma3"
    if name in _TOP:
        return Placed(_TOP[name], offset=-1.0 if gemma and name == "output_norm.weight" else 0.0)
    match = _LAYER_NAME.match(name)
    part = (_GEMMA_LAYER if gemma else _PLAIN_LAYER).get(match[2]) if match else None
    if match is None or part is None or int(match[1]) >= config["num_hidden_layers"]:
        raise ModelLoadError(
            f"{file.path.name} holds a tensor {name!r} that the {file.architecture} family does not know.",
            model=str(file.path),
        )
    heads = 0
    if file.architecture == "llama":
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}.get(match[2], 0)
    return Placed(
        f"model.layers.{match[1]}.{part}", match[3], heads, -1.0 if gemma and match[2].endswith("norm") else 0.0
    )


def _check_complete(file: GgufFile, config: dict[str, Any], present: set[str]) -> None:
    parts = (_GEMMA_LAYER if file.architecture == "gemma3" else _PLAIN_LAYER).values()
    needed = {"model.embed_tokens.weight", "model.norm.weight"}
    needed |= {f"model.layers.{i}.{part}.weight" for i in range(config["num_hidden_layers"]) for part in parts}
    missing = sorted(needed - present)
    if missing:
        raise ModelLoadError(
            f"{file.path.name} lacks {len(missing)} tensors, the first being {missing[0]!r}; the file is incomplete.",
            model=str(file.path),
        )


def unpermuted_rows(rows: int, heads: int) -> npt.NDArray[np.intp]:
    """The order that undoes llama.cpp's permutation of q and k rows.

    Inside a head the file interleaves the two halves that rotate together (0, n/2, 1, n/2 + 1, ...);
    mlx-lm, like Hugging Face, keeps them apart.
    """
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)

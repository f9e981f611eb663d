"""Small GGUF files as llama.cpp's converter writes them, beside the model that they stand for.

`write_small(path, family)` makes random weights, writes them in GGUF's names and layout (q and k
permuted for llama, norm weights plus one for gemma3), and returns an mlx-lm model that was filled
with the same numbers directly. A converter that loses anything gives other logits.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import gguf
import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from tests.small_models import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS, CONTEXT, EPS = 64, 128, 4, 2, 4, 512, 1e-5
EXACT_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
FAMILIES = ("llama", "qwen2", "gemma3")
Floats = npt.NDArray[np.float32]

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
_GEMMA_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Vocabulary:
    """What goes into `tokenizer.ggml.*`."""

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    pre: str | None = None
    add_space_prefix: bool | None = None


@cache
def byte_level_vocabulary(pre: str = "gpt-2") -> Vocabulary:
    """The suite's tiny tokenizer as GGUF lists."""
    import json

    described = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    special = {t["id"]: t for t in described["added_tokens"]}
    by_id = {i: token for token, i in described["model"]["vocab"].items()} | {
        i: t["content"] for i, t in special.items()
    }
    tokens = [by_id[i] for i in range(len(by_id))]
    types = [3 if i in special and special[i]["special"] else 4 if i in special else 1 for i in range(len(tokens))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in described["model"]["merges"]]
    return Vocabulary("gpt2", tokens, types, merges=merges, pre=pre)


@cache
def trained_sentence_piece(add_dummy_prefix: bool = True, size: int = 420) -> Any:
    """A SentencePiece byte-pair model with byte fallback, trained in the process on a few sentences."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_writer=written,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=True,
        add_dummy_prefix=add_dummy_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        character_coverage=0.98,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


SENTENCES = [
    "the fox and the hen went over the hill and then into the river",
    "there was another one in the rain, and the other animals were on the other side of it",
    "a language model writes one token after another; each depends on those before",
    "Grüße aus Köln und Zürich, où est la façade naïve ?",
    "numbers like 12, 345 and 6789 are split, def f(x): return {x: x ** 2}",
    "aaaa aaaaaaa bb bbb bbbbb ababab banana bananas",
]


def sentence_piece_vocabulary(add_dummy_prefix: bool = True) -> Vocabulary:
    """The trained model as GGUF lists."""
    sp = trained_sentence_piece(add_dummy_prefix)
    ids = range(sp.get_piece_size())
    types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in ids]
    pieces, scores = [sp.id_to_piece(i) for i in ids], [sp.get_score(i) for i in ids]
    return Vocabulary("llama", pieces, types, scores=scores, add_space_prefix=add_dummy_prefix)


def reference_model(family: str, vocab_size: int, tied: bool, **more: Any) -> Any:
    """An mlx-lm model of the family, unfilled."""
    common: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "vocab_size": vocab_size,
        "max_position_embeddings": CONTEXT,
    }
    if family == "llama":
        from mlx_lm.models import llama

        return llama.Model(llama.ModelArgs(model_type="llama", tie_word_embeddings=tied, **common, **more))
    if family == "qwen2":
        from mlx_lm.models import qwen2

        return qwen2.Model(qwen2.ModelArgs(model_type="qwen2", tie_word_embeddings=tied, **common, **more))
    from mlx_lm.models import gemma3_text

    args = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "sliding_window_pattern": 2} | more
    model = gemma3_text.Model(gemma3_text.ModelArgs(model_type="gemma3_text", **common, **args))
    if tied:
        model.sanitize({})
    return model


def write_small(
    path: Path,
    family: str,
    *,
    quantisation: str = "F32",
    tied: bool = True,
    vocabulary: Vocabulary | None = None,
    model_options: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Floats] | None = None,
    seed: int = 0,
) -> Any:
    """Write the file; the mlx-lm model with the same weights, in float32."""
    words = vocabulary or (sentence_piece_vocabulary(False) if family == "gemma3" else byte_level_vocabulary())
    model = reference_model(family, len(words.tokens), tied, **(model_options or {}))
    weights = _random_weights(model, seed)
    writer = gguf.GGUFWriter(path, family)
    _write_settings(writer, family, metadata or {})
    _write_vocabulary(writer, words)
    kept = {name: _write_tensor(writer, family, name, value, quantisation) for name, value in weights.items()}
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_weights([(name, mx.array(value)) for name, value in kept.items()])
    mx.eval(model.parameters())
    return model


def _random_weights(model: Any, seed: int) -> dict[str, Floats]:
    drawn = np.random.default_rng(seed)
    weights: dict[str, Floats] = {}
    for name, value in cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters())):
        scale = 3.0 / np.sqrt(value.shape[-1]) if value.ndim == 2 else 0.3
        base = 1.0 if name.endswith("norm.weight") and "gemma" not in model.model_type else 0.0
        weights[name] = (base + scale * drawn.standard_normal(value.shape)).astype(np.float32)
    return weights


def _write_settings(writer: gguf.GGUFWriter, family: str, more: dict[str, Any]) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPS)
    if "{arch}.rope.freq_base" not in more:
        writer.add_rope_freq_base(1_000_000.0 if family != "llama" else 10_000.0)
    if family == "gemma3":
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_sliding_window(16)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    for key, value in more.items():
        name = key.replace("{arch}", family)
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_string(name, value)


def _write_vocabulary(writer: gguf.GGUFWriter, words: Vocabulary) -> None:
    if words.model == "none":
        return
    writer.add_tokenizer_model(words.model)
    if words.pre is not None:
        writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    if words.scores is not None:
        writer.add_token_scores(words.scores)
    if words.merges is not None:
        writer.add_token_merges(words.merges)
    if words.add_space_prefix is not None:
        writer.add_add_space_prefix(words.add_space_prefix)
    if words.model == "llama":
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
    else:
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(str(tiny_tokenizer().chat_template))


def _write_tensor(writer: gguf.GGUFWriter, family: str, name: str, value: Floats, quantisation: str) -> Floats:
    """Write one weight; what a reader gets back, in mlx-lm's layout."""
    target = _gguf_name(family, name)
    stored = value + 1 if family == "gemma3" and target.endswith("norm.weight") else value
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(target.split(".")[-2], 0) if family == "llama" else 0
    if heads:
        stored = _permuted(stored, heads)
    if value.ndim == 1 or quantisation == "F32":
        writer.add_tensor(target, stored)
        return value
    kind = gguf.GGMLQuantizationType[quantisation]
    packed = gguf.quants.quantize(stored, kind)
    writer.add_tensor(target, packed, raw_dtype=kind)
    back = np.asarray(gguf.quants.dequantize(packed, kind), dtype=np.float32).reshape(stored.shape)
    if quantisation not in EXACT_TYPES:
        back = back.astype(np.float16).astype(np.float32)  # a dequantised matrix is stored so
    return _unpermuted(back, heads) if heads else back


def _permuted(value: Floats, heads: int) -> Floats:
    """The two halves of each head interleaved, as llama.cpp's converter does (its `permute`)."""
    split = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(value.shape))


def _unpermuted(value: Floats, heads: int) -> Floats:
    split = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(value.shape))


def _gguf_name(family: str, name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    base, _, leaf = name.rpartition(".")
    if base in top:
        return f"{top[base]}.{leaf}"
    _, _, index, part = base.split(".", 3)
    return f"blk.{index}.{(_GEMMA_NAMES if family == 'gemma3' else _LAYER_NAMES)[part]}.{leaf}"

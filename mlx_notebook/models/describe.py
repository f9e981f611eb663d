"""What is known about a model in memory: the record that a load gives, and the facts in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from mlx_notebook.errors import ModelLoadError, about_model
from mlx_notebook.models.evaluate import reachable_arrays
from mlx_notebook.models.model_files import setting

# Sampling options of generation_config.json that have a counterpart here; the rest is not sampling.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and what is known about it.

    Attributes:
        model: the mlx-lm model; every array evaluated.
        tokenizer: mlx-lm's `TokenizerWrapper`.
        config: config.json, as mlx-lm read it.
        name: the name that was asked for.
        source: where the weights came from, for people.
        revision: a commit or SHA-256; None for a folder.
        dtype: `float32`, `float16`, `bfloat16`, or `4bit`, `8bit` and the like where matrices run in quantised form.
        quantised: whether matrices run in quantised form.
        weight_bytes: bytes that the model's arrays hold.
        context_length: tokens; None where the configuration does not say.
        vocab_size: rows of the embedding; ids of prompts must lie below.
        eos_token_ids: tokens that end an answer, ascending.
        recommended_sampling: the makers' sampling options, by our names; empty where they give none.
        chat_template_present: whether text prompts are put into a chat.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    name: str
    source: str
    revision: str | None
    dtype: str
    quantised: bool
    weight_bytes: int
    context_length: int | None
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    recommended_sampling: dict[str, float | int]
    chat_template_present: bool


def describe_loaded(model: Any, tokenizer: Any, *, name: str = "loaded") -> LoadedModel:
    """What can be known of a model that the caller loaded (`mlx_lm.load`'s two values); evaluates nothing.

    Args:
        model: an mlx-lm model. Evaluate it before with `evaluate_everything`, on the thread that made it.
        tokenizer: mlx-lm's wrapper, or a Hugging Face tokenizer, which is put into one.
        name: what to call it.

    Raises:
        TypeError: the tokenizer is none.
        ModelLoadError: the size of the vocabulary cannot be found.
    """
    import mlx.core as mx
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    if not hasattr(tokenizer, "encode") or not hasattr(tokenizer, "decode"):
        raise TypeError(f"the tokenizer is {type(tokenizer).__name__}; give the second value that mlx_lm.load returned")
    wrapped = tokenizer if isinstance(tokenizer, TokenizerWrapper) else TokenizerWrapper(tokenizer)
    config = _arguments_of(model)
    arrays = list(reachable_arrays(model))
    sizes: Counter[str] = Counter()
    for array in arrays:
        if mx.issubdtype(array.dtype, mx.floating):
            sizes[str(array.dtype).removeprefix("mlx.core.")] += int(array.nbytes)
    widths = Counter(int(module.bits) for _, module in model.named_modules() if "scales" in module)
    with about_model(name):
        vocab_size = vocab_size_of(model, config)
    return LoadedModel(
        model=model,
        tokenizer=wrapped,
        config=config,
        name=name,
        source="a model loaded by the caller",
        revision=None,
        dtype=_dtype_name(widths, sizes),
        quantised=bool(widths),
        weight_bytes=sum(int(array.nbytes) for array in arrays),
        context_length=context_length(config),
        vocab_size=vocab_size,
        eos_token_ids=tuple(sorted(int(i) for i in wrapped.eos_token_ids)),
        recommended_sampling={},
        chat_template_present=bool(wrapped.has_chat_template),
    )


def _dtype_name(widths: Counter[int], sizes: Counter[str]) -> str:
    if widths:
        return f"{widths.most_common(1)[0][0]}bit"
    return sizes.most_common(1)[0][0] if sizes else "float32"


def _arguments_of(model: Any) -> dict[str, Any]:
    """The model's own arguments as a dict, in config.json's names (mlx-lm's models keep them as `args`)."""
    arguments = getattr(model, "args", None)
    if is_dataclass(arguments):
        return {f.name: getattr(arguments, f.name) for f in fields(arguments)}
    return dict(arguments) if isinstance(arguments, dict) else {}


def vocab_size_of(model: Any, config: dict[str, Any]) -> int:
    """Rows of the token embedding, or fewer where the configuration says fewer: what an id may index."""
    from mlx.nn.layers.embedding import Embedding
    from mlx.nn.layers.quantized import QuantizedEmbedding

    embeddings = [m for _, m in model.named_modules() if isinstance(m, Embedding | QuantizedEmbedding)]
    # Positions may have an embedding too; it is the smaller one.
    rows = max((int(m.weight.shape[0]) for m in embeddings), default=0)
    known = [size for size in (rows, setting(config, "vocab_size")) if isinstance(size, int) and size > 0]
    if not known:
        raise ModelLoadError("The model does not say how many tokens its vocabulary has (vocab_size).")
    return min(known)


def context_length(config: dict[str, Any]) -> int | None:
    """The longest context by config.json, in tokens; None where it does not say."""
    for source in (config, config.get("text_config")):
        for key in (
            "max_position_embeddings",
            "max_sequence_length",
            "n_positions",
            "n_ctx",
            "max_seq_len",
            "seq_length",
        ):
            value = source.get(key) if isinstance(source, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def recommended_sampling(generation: dict[str, Any]) -> dict[str, float | int]:
    """Sampling options of generation_config.json by our names.

    `do_sample: false` means greedy, so nothing is recommended then but the repetition penalty.
    """
    keys: tuple[str, ...] = _SAMPLING_KEYS
    if generation.get("do_sample") is False:
        keys = ("repetition_penalty",)
    found: dict[str, float | int] = {}
    for key in keys:
        value = generation.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[key] = int(value) if key == "top_k" else float(value)
    return found

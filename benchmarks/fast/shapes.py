"""Models to measure: Llama's proportions and others with random weights, and SmolLM2 with real ones.

Timing does not depend on values. Each comes with a tokenizer that knows every id, so that text is made as for a real
model; nothing ends an answer, so that all sides make exactly as many tokens as were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 64
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Shape:
    """What to build.

    Attributes:
        title: for the reader.
        make: the model, not yet evaluated; None for SmolLM2.
        bits: what its weights are quantised to, None for none.
        bars: whether the claims about a GPU are made for it, and which of the Llamas it is then.
        small: for trying the tables on any machine.
    """

    title: str
    make: Callable[[], Any] | None
    dtype: mx.Dtype = mx.bfloat16
    bits: int | None = None
    bars: str = ""
    small: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory, the way that `mlx_lm.load` would give it."""

    name: str
    shape: Shape
    model: Any
    tokenizer: Any
    vocab: int
    nbytes: int


def llama(*, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> Any:
    """A Llama of these proportions."""
    from mlx_lm.models.llama import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="llama",
            hidden_size=hidden,
            num_hidden_layers=layers,
            intermediate_size=inner,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-5,
            vocab_size=vocab,
            rope_theta=500_000.0,
            max_position_embeddings=131_072,
            tie_word_embeddings=tied,
        )
    )


def windowed(*, layers: int, hidden: int, inner: int, width: int, window: int, vocab: int) -> Any:
    """Gemma 3's way: five layers of six see a window only."""
    from mlx_lm.models.gemma3_text import Model, ModelArgs

    model = Model(
        ModelArgs(
            model_type="gemma3_text",
            hidden_size=hidden,
            num_hidden_layers=layers,
            intermediate_size=inner,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=width,
            query_pre_attn_scalar=width,
            vocab_size=vocab,
            sliding_window=window,
            sliding_window_pattern=6,
            max_position_embeddings=32_768,
        )
    )
    model.sanitize({})  # a file without a head: the embedding serves as one
    return model


def hybrid(*, hidden: int, inner: int, heads: int, kv_heads: int, kinds: str, vocab: int) -> Any:
    """LFM2's way: a layer each letter of `kinds`, `c` for a short convolution, `a` for attention."""
    from mlx_lm.models.lfm2 import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="lfm2",
            vocab_size=vocab,
            hidden_size=hidden,
            num_hidden_layers=len(kinds),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=128_000,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=hidden,
            block_ff_dim=inner,
            block_multiple_of=256,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=True,
            full_attn_idxs=[at for at, kind in enumerate(kinds) if kind == "a"],
        )
    )


def _llama_1b() -> Any:
    return llama(layers=16, hidden=2048, inner=8192, heads=32, kv_heads=8, vocab=128_256, tied=True)


def _llama_8b() -> Any:
    return llama(layers=32, hidden=4096, inner=14_336, heads=32, kv_heads=8, vocab=128_256, tied=False)


def _tiny() -> Any:
    return llama(layers=2, hidden=128, inner=256, heads=2, kv_heads=1, vocab=1_024, tied=True)


def _gemma_1b() -> Any:
    return windowed(layers=26, hidden=1152, inner=6912, width=256, window=512, vocab=262_144)


def _tiny_windowed() -> Any:
    return windowed(layers=6, hidden=64, inner=128, width=64, window=64, vocab=1_024)


def _lfm2_1b() -> Any:
    return hybrid(hidden=2048, inner=12_288, heads=32, kv_heads=8, kinds="ccaccaccacacacac", vocab=65_536)


def _tiny_hybrid() -> Any:
    return hybrid(hidden=128, inner=256, heads=2, kv_heads=1, kinds="caca", vocab=1_024)


SHAPES = {
    "1B": Shape("Llama 1B shape, bfloat16", _llama_1b, bars="1B"),
    "8B": Shape("Llama 8B shape, bfloat16", _llama_8b, bars="8B"),
    "1B-4bit": Shape("Llama 1B shape, 4 bits", _llama_1b, bits=4),
    "8B-4bit": Shape("Llama 8B shape, 4 bits", _llama_8b, bits=4),
    "smollm2": Shape("SmolLM2-135M-Instruct, float32", None, mx.float32),
    "windowed": Shape("Gemma 3 1B shape, bfloat16", _gemma_1b),
    "hybrid": Shape("LFM2 1.2B shape, bfloat16", _lfm2_1b),
    "tiny": Shape("two narrow layers, float32", _tiny, mx.float32, small=True),
    "tiny-4bit": Shape("two narrow layers, 4 bits", _tiny, mx.float32, bits=4, small=True),
    "tiny-windowed": Shape("six narrow layers, windows", _tiny_windowed, mx.float32, small=True),
    "tiny-hybrid": Shape("four narrow layers, convolutions", _tiny_hybrid, mx.float32, small=True),
}


def load(name: str) -> Loaded:
    """Build the model of this shape, evaluated, and its tokenizer."""
    shape = SHAPES[name]
    if shape.make is None:
        from benchmarks.smollm2 import load_model

        model, tokenizer = load_model()
        vocab = int(model.args.vocab_size)
    else:
        model = shape.make()
        vocab = int(model.args.vocab_size)
        model.update(tree_map(lambda value: _random(value, shape.dtype), model.parameters()))
        if shape.bits is not None:
            quantize(model, group_size=GROUP, bits=shape.bits)
        tokenizer = tokenizer_of(vocab)
    mx.eval(model.parameters())
    model.eval()
    mx.clear_cache()
    tokenizer.eos_token_ids = set()
    return Loaded(name, shape, model, tokenizer, vocab, sum(array.nbytes for array in arrays_of(model)))


def arrays_of(model: Any) -> list[mx.array]:
    """The model's parameters."""
    return [value for _, value in cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))]


def _random(value: mx.array, dtype: mx.Dtype) -> mx.array:
    if value.ndim < 2:
        return value.astype(dtype)  # norms start at one
    return mx.random.normal(value.shape, dtype=dtype) * 0.02


def tokenizer_of(vocab: int) -> Any:
    """A byte-level tokenizer of exactly so many ids: the specials, the 256 bytes, then words that are never joined.

    One character of ASCII text is one token, so that a prompt of so many tokens can be had as text too.
    """
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"\u0120w{number}" for number in range(len(names), vocab)]
    raw = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=SPECIALS[2], additional_special_tokens=list(SPECIALS[:2])
    )
    return TokenizerWrapper(fast)

"""Small random-weight models of every layer kind, and small tokenizers, all made in the process.

`small(kind)` gives (model, tokenizer) in the shape that `mlx_lm.load` returns. Float32, some
tens of thousands of weights, no file and no network. The weights are scaled so that what a model
says depends on its whole prompt: a test that loses or shifts context then sees other tokens.
Nothing here says anything sensible; text is bytes.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 320
CONTEXT = 512
WINDOW = 16

END = "<|im_end|>"
SPECIALS = ("<|endoftext|>", "<|im_start|>", END)

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Merges are learned from this, so that common words take fewer tokens than bytes.
_SAMPLE = (
    "the fox and the hen went over the hill and then into the river there was another one in the rain "
    "the other animals were on the other side of it and the man on the moon had seen the whole thing "
)


def llama(vocab_size: int, context: int, **more: Any) -> Any:
    """A Llama of two narrow layers; `more` arguments of mlx-lm's."""
    from mlx_lm.models.llama import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=vocab_size,
            max_position_embeddings=context,
            **more,
        )
    )


def _qwen2() -> Any:
    from mlx_lm.models.qwen2 import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="qwen2",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-6,
            vocab_size=VOCAB,
            max_position_embeddings=CONTEXT,
        )
    )


def _gemma3_text() -> Any:
    from mlx_lm.models.gemma3_text import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="gemma3_text",
            hidden_size=64,
            num_hidden_layers=4,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            query_pre_attn_scalar=16,
            vocab_size=VOCAB,
            sliding_window=WINDOW,
            sliding_window_pattern=2,
            max_position_embeddings=CONTEXT,
        )
    )


def _mamba2() -> Any:
    from mlx_lm.models.mamba2 import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="mamba2",
            num_heads=4,
            head_dim=16,
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            state_size=16,
            num_hidden_layers=2,
            layer_norm_epsilon=1e-5,
            conv_kernel=4,
            n_groups=1,
            use_bias=False,
            use_conv_bias=True,
            tie_word_embeddings=False,
            time_step_limit=(0.0, 0.2),
            time_step_rank="auto",
            max_position_embeddings=CONTEXT,
        )
    )


def _lfm2() -> Any:
    from mlx_lm.models.lfm2 import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="lfm2",
            vocab_size=VOCAB,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=64,
            block_ff_dim=128,
            block_multiple_of=16,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=True,
            full_attn_idxs=[1, 3],
        )
    )


def _qwen3_next() -> Any:
    from mlx_lm.models.qwen3_next import Model, ModelArgs

    return Model(
        ModelArgs(
            model_type="qwen3_next",
            hidden_size=64,
            num_hidden_layers=4,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_value_heads=4,
            linear_num_key_heads=2,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=2,
            decoder_sparse_step=1,
            shared_expert_intermediate_size=64,
            mlp_only_layers=[0],
            moe_intermediate_size=64,
            rms_norm_eps=1e-6,
            vocab_size=VOCAB,
            rope_theta=1e4,
            partial_rotary_factor=0.5,
            max_position_embeddings=CONTEXT,
        )
    )


_BUILDERS: dict[str, tuple[Callable[[], Any], float]] = {
    "llama": (partial(llama, VOCAB, CONTEXT), 3.0),
    "qwen2": (_qwen2, 3.0),
    "gemma3_text": (_gemma3_text, 3.0),
    "mamba2": (_mamba2, 2.0),
    "lfm2": (_lfm2, 3.0),
    "qwen3_next": (_qwen3_next, 2.0),
}
KINDS = tuple(_BUILDERS)
"""full attention (two families), sliding window, recurrent, convolution hybrid, hybrid with experts."""


def small(kind: str, seed: int = 0) -> tuple[Any, Any]:
    """A model of this kind and a tokenizer for it: the pair that `mlx_lm.load` gives.

    Everything is evaluated, so the pair may cross to another thread.
    """
    build, gain = _BUILDERS[kind]
    return fill_with_noise(build(), seed, gain), tiny_tokenizer()


def fill_with_noise(model: Any, seed: int, gain: float) -> Any:
    """Normal weights of standard deviation gain / sqrt(fan-in), from their own random stream."""
    flat = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    keys = mx.random.split(mx.random.key(seed), len(flat))
    noisy = [(name, _noise(name, value, key, gain)) for (name, value), key in zip(flat, keys, strict=True)]
    model.update(tree_unflatten(noisy))
    model.eval()
    mx.eval(model.parameters())
    return model


def _noise(name: str, value: mx.array, key: mx.array, gain: float) -> mx.array:
    if value.ndim >= 2:
        return mx.random.normal(value.shape, key=key) * (gain / math.sqrt(_fan_in(name, value)))
    if name.endswith(("bias", "A_log")):  # the library draws some of these from the global generator
        return mx.random.normal(value.shape, key=key) * 0.5
    return value  # norms start at one


def _fan_in(name: str, weight: mx.array) -> int:
    # A depthwise convolution sums over its kernel [channels, kernel, 1]; all else sums over the last axis.
    return weight.shape[-2] * weight.shape[-1] if "conv" in name else weight.shape[-1]


def random_prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """`length` token ids, none of them special, the same for the same arguments."""
    import random

    drawn = random.Random(seed * 1000 + length)
    return [drawn.randrange(len(SPECIALS), vocab) for _ in range(length)]


def tiny_tokenizer(vocab_size: int = VOCAB) -> Any:
    """A byte-level BPE tokenizer with exactly `vocab_size` ids (at least 259), wrapped as mlx-lm does.

    Ids 0 to 2 are the special tokens of `SPECIALS`, then the 256 bytes, then merges. It has a
    chat template, and `<|im_end|>` ends a turn.
    """
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    return TokenizerWrapper(_byte_level(vocab_size))


@cache
def _trained(vocab_size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([_SAMPLE], trainer)
    # The sample yields only so many merges: a larger vocabulary is filled with plain words.
    raw.add_tokens([f" word{k}" for k in range(raw.get_vocab_size(), vocab_size)])
    if raw.get_vocab_size() != vocab_size:
        raise ValueError(f"a byte-level vocabulary has at least {256 + len(SPECIALS)} ids, {vocab_size} asked")
    return str(raw.to_str())


def _byte_level(vocab_size: int) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(vocab_size)),
        eos_token=END,
        additional_special_tokens=list(SPECIALS[:2]),
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )

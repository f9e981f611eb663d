"""How byte-level vocabularies cut text into words before merging, by GGUF's `tokenizer.ggml.pre`.

The patterns are those of llama.cpp's `llama-vocab.cpp` (facts of the format: each names the
split that its vocabulary was trained with), in the form that Hugging Face's `tokenizers` runs.
"""

from __future__ import annotations

from typing import Any

from mlx_notebook.errors import ModelLoadError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_PATTERNS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), (_GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), (r"\p{N}", _GPT2)
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_QWEN2,)),
    "tekken": (_TEKKEN,),
}

# These take a word that is in the vocabulary whole, without merging up to it.
_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"}
# llama.cpp begins with the beginning-of-sequence token for these even where the file does not say so.
_BEGIN_TOKEN = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"}

# Qwen's own tokenizers compose characters first (llama.cpp leaves that out).
_COMPOSES = {"qwen2", "deepseek-r1-qwen"}


def known_kinds() -> list[str]:
    """The values of `tokenizer.ggml.pre` that can be loaded."""
    return sorted(_PATTERNS)


def pre_tokenizer(kind: str) -> dict[str, Any]:
    """The `pre_tokenizer` part of a `tokenizer.json`.

    Raises:
        ModelLoadError: a kind that is not known; guessing would split words wrongly without any sign of it.
    """
    patterns = _PATTERNS.get(kind)
    if patterns is None:
        raise ModelLoadError(
            f"The file's vocabulary splits text in a way named {kind!r} (tokenizer.ggml.pre), which is not known here. "
            f"Known: {', '.join(known_kinds())}. Use an mlx-lm folder or a Hugging Face id of this model."
        )
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, to_bytes]}


def takes_whole_words(kind: str) -> bool:
    """Whether a word found in the vocabulary is taken as it is."""
    return kind in _WHOLE_WORDS_FIRST


def begins_with_token(kind: str) -> bool:
    """Whether text begins with the beginning-of-sequence token where the file does not say."""
    return kind in _BEGIN_TOKEN


def normalizer(kind: str) -> dict[str, Any] | None:
    """The `normalizer` part of a `tokenizer.json`."""
    return {"type": "NFC"} if kind in _COMPOSES else None

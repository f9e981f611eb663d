"""Checks a tokenizer by its own words: text to ids and back, over several scripts."""

from __future__ import annotations

import unicodedata
from typing import Any

from mlx_notebook.errors import ModelLoadError

SAMPLES = (
    "The quick brown fox doesn't jump; it's asleep, isn't it?",
    "Grüße aus Köln, naïve façade, ¿qué tal? Ångström, Łódź",
    "Привет, как дела? Ελληνικά Ծանոթ",
    "你好，世界。今日は良い天気ですね。안녕하세요 세계",  # noqa: RUF001 - a comma of its own script
    "שלום עולם! مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया ภาษาไทย",
    "😀 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇨🇭 👍🏽",
    "0 1 12 123 1234567890 3.14159 1,000,000 ½ ²",
    "tabs\tand\n\nnewlines\r\n   three spaces,  two",
    " leading space",
    "def f(x):\n    return {'a': [x ** 2, x != 0]}  # comment\n",
    "e\u0301 combining, \u00a0no-break, \u200bzero-width, \u3000wide",
)
# A decoder that was not chosen rightly shows the vocabulary's own marks for spaces and newlines.
_RAW_MARKS = ("\u0120", "\u010a", "\u2581")
_PLAIN = "Hello world, two  spaces\nand a line."


def check_round_trips(tokenizer: Any, vocab_size: int, model: str) -> None:
    """Encode and decode every sample.

    Args:
        tokenizer: mlx-lm's wrapper or a Hugging Face tokenizer.
        vocab_size: rows of the model's embedding; every id must lie below.
        model: the name for the error.

    Raises:
        ModelLoadError: a text does not come back as it was, or an id lies outside the embedding.
    """
    composes = _composes(tokenizer)
    for text in SAMPLES:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if not all(0 <= i < vocab_size for i in ids):
            raise ModelLoadError(
                f"The tokenizer of {model} gives id {max(ids)} for {text!r}, "
                f"and the model knows only {vocab_size} tokens.",
                model=model,
            )
        back = tokenizer.decode(ids)
        if back not in {text, unicodedata.normalize("NFC", text) if composes else text}:
            raise ModelLoadError(
                f"The tokenizer of {model} does not give back what it was given: {text!r} became {back!r}. "
                "Its vocabulary was not understood; use an mlx-lm folder or a Hugging Face id of this model.",
                model=model,
            )


def _composes(tokenizer: Any) -> bool:
    """Whether the tokenizer composes characters before it splits (Qwen's do), so that text comes back composed."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return normalizer is not None and bool(normalizer.normalize_str("e\u0301") == "\u00e9")


def mend_decoder(tokenizer: Any, model: str) -> None:
    """Choose the decoder from the vocabulary where the tokenizer's own leaves raw space marks in the text.

    Raises:
        ModelLoadError: it still does.
    """
    if not _shows_marks(tokenizer):
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        from tokenizers import decoders

        pieces = backend.get_vocab()
        byte_level = sum("\u0120" in p for p in pieces) > sum("\u2581" in p for p in pieces)
        spaces = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
        backend.decoder = decoders.ByteLevel() if byte_level else spaces
        if not _shows_marks(tokenizer):
            return
    raise ModelLoadError(
        f"The tokenizer of {model} leaves raw marks in decoded text ({tokenizer.decode(tokenizer.encode(_PLAIN))!r}). "
        "Its tokenizer.json has no fitting decoder; download it again from the original model.",
        model=model,
    )


def _shows_marks(tokenizer: Any) -> bool:
    text = str(tokenizer.decode(tokenizer.encode(_PLAIN, add_special_tokens=False)))
    return any(mark in text for mark in _RAW_MARKS)

"""Streamed text joined is what `tokenizer.decode` makes of all the ids, for any ids and every kind of decoder."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mlx_notebook.engine.detokenize import WINDOW, Detokenizer
from tests.small_models import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIECES = ["▁", "▁the", "▁fox", "fox", "a", "b", "é", "漢", "▁▁", ".", "▁.", "'", "s", "▁'s", "\ufffd", "▁n't", "\n"]
END, UNKNOWN = "<|end|>", "<unk>"
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def _wrapped(raw: Tokenizer, **options: Any) -> Any:
    raw.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, **options)


def _with_byte_fallback(*steps: Any, extra: Sequence[str] = ()) -> Any:
    vocabulary = {token: at for at, token in enumerate([UNKNOWN, *BYTES, *PIECES, *extra])}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token=UNKNOWN, byte_fallback=True))
    raw.decoder = decoders.Sequence(list(steps))
    return _wrapped(raw)


def _llama2() -> Any:
    """SentencePiece BPE, the first space stripped."""
    return _with_byte_fallback(
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0), extra=[""]
    )


def _byte_level_among_others() -> Any:
    """Bytes joined by a decoder that is not byte level alone, so that windows must do."""
    tokenizer = tiny_tokenizer()._tokenizer
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("~", 0, 0)])
    return tokenizer


def _gemma() -> Any:
    """SentencePiece BPE, no space stripped."""
    return _with_byte_fallback(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())


def _unigram() -> Any:
    raw = Tokenizer(models.Unigram([(UNKNOWN, 0.0), *((piece, -1.0) for piece in PIECES)], unk_id=0))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    return _wrapped(raw)


def _unigram_cleaned() -> Any:
    tokenizer = _unigram()
    tokenizer.clean_up_tokenization_spaces = True
    return tokenizer


def _wordpiece() -> Any:
    words = [UNKNOWN, "the", "fox", "##es", "##s", ".", ",", "!", "?", "'", "n't", "s", "m", "re", "ve", "do", "a"]
    raw = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token=UNKNOWN))
    raw.decoder = decoders.WordPiece()
    return _wrapped(raw, clean_up_tokenization_spaces=True)


def _bpe_with_suffix() -> Any:
    words = [UNKNOWN, "the</w>", "fo", "x</w>", "a</w>", "a", ".</w>"]
    raw = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, [], unk_token=UNKNOWN))
    raw.decoder = decoders.BPEDecoder("</w>")
    return _wrapped(raw)


def _plain() -> Any:
    """No decoder at all: tokens joined by spaces."""
    raw = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate([UNKNOWN, "a", "bc", "."])}, unk_token=UNKNOWN)
    )
    return _wrapped(raw)


KINDS: dict[str, Callable[[], Any]] = {
    "byte level": tiny_tokenizer,
    "byte level among others": _byte_level_among_others,
    "llama 2": _llama2,
    "gemma": _gemma,
    "unigram": _unigram,
    "unigram cleaned": _unigram_cleaned,
    "wordpiece": _wordpiece,
    "bpe with suffix": _bpe_with_suffix,
    "plain": _plain,
}


@cache
def made(kind: str) -> tuple[Any, Detokenizer]:
    tokenizer = KINDS[kind]()
    return tokenizer, Detokenizer(tokenizer)


def streamed(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    stream = detokenizer.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_ids(kind: str, data: st.DataObject) -> None:
    tokenizer, detokenizer = made(kind)
    # A few ids above the vocabulary too: a model's head is often padded wider than its tokenizer.
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 3), max_size=4 * WINDOW))
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["llama 2", "gemma"])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_runs_of_byte_tokens(kind: str, data: st.DataObject) -> None:
    tokenizer, detokenizer = made(kind)
    byte = st.sampled_from([0x41, 0xE6, 0xBC, 0xA2, 0xF0, 0x9F, 0x80, 0xFF, 0x00]).map(lambda value: 1 + value)
    piece = st.integers(257, 256 + len(PIECES))
    ids = data.draw(st.lists(st.one_of(byte, byte, piece), max_size=3 * WINDOW))
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


def test_a_window_of_nothing_is_no_context() -> None:
    tokenizer, detokenizer = made("llama 2")
    nothing = tokenizer.convert_tokens_to_ids("")
    fox = tokenizer.convert_tokens_to_ids("▁fox")
    ids = [fox, *[nothing] * 2 * WINDOW, fox, fox]
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids) == "fox fox fox"


@pytest.mark.parametrize("kind", KINDS)
def test_long_text_flows_and_each_token_costs_a_bounded_decode(kind: str) -> None:
    tokenizer, detokenizer = made(kind)
    longest = 0
    decode = detokenizer.decode

    def watched(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    detokenizer.decode = watched  # type: ignore[method-assign]
    try:
        usual = [1, 2, 3, 5] if len(tokenizer) < 200 else [260, 261, 262, 265]
        ids = usual * 200
        pieces = streamed(detokenizer, ids)
    finally:
        del detokenizer.decode
    assert "".join(pieces) == tokenizer.decode(ids)
    assert longest <= 2 * WINDOW
    # Text comes as it is made, not at the end.
    assert len(pieces[-1]) < len("".join(pieces)) / 20


@pytest.mark.parametrize(
    "text",
    [
        "漢字かな ok",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 fin",
        " world",
        "  indented\n    code  ",
        "a\x00b\x01c",
        "bad \ufffd char",
        "word ",
    ],
)
def test_texts_that_others_got_wrong(text: str) -> None:
    tokenizer, detokenizer = made("byte level")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(streamed(detokenizer, ids)) == text


def test_a_character_in_pieces_is_shown_once_and_whole() -> None:
    tokenizer, detokenizer = made("byte level")
    ids = tokenizer.encode("\U0001f98a", add_special_tokens=False)
    assert len(ids) == 4
    assert streamed(detokenizer, ids) == ["", "", "", "\U0001f98a", ""]
    assert streamed(detokenizer, ids[:2]) == ["", "", "\ufffd"]


def test_special_tokens_are_text_as_in_decode() -> None:
    tokenizer, detokenizer = made("byte level")
    assert "".join(streamed(detokenizer, [1, 2])) == tokenizer.decode([1, 2]) == "<|im_start|><|im_end|>"


def test_a_byte_level_vocabulary_needs_the_tokenizer_no_more() -> None:
    _, detokenizer = made("byte level")

    def never(_ids: list[int]) -> str:
        raise AssertionError("the tokenizer was used")

    detokenizer.decode = never  # type: ignore[method-assign,assignment]
    try:
        assert "".join(streamed(detokenizer, [4, 300])) != ""
    finally:
        del detokenizer.decode


def test_the_lock_is_held_around_each_decode() -> None:
    class Counting:
        entered = 0

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None:
            pass

    lock = Counting()
    detokenizer = Detokenizer(_gemma(), lock)
    before = lock.entered
    streamed(detokenizer, [258, 259])
    assert lock.entered > before


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, 49_151), max_size=60))
def test_any_ids_of_smollm2(ids: list[int]) -> None:
    tokenizer, detokenizer = _smollm2()
    assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.slow
def test_every_single_token_of_smollm2_after_another() -> None:
    tokenizer, detokenizer = _smollm2()
    for token_id in range(0, len(tokenizer), 7):
        ids = [token_id, (token_id * 31 + 7) % len(tokenizer)]
        assert "".join(streamed(detokenizer, ids)) == tokenizer.decode(ids)


@cache
def _smollm2() -> tuple[Any, Detokenizer]:
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    from mlx_notebook.models.resolve import resolve

    tokenizer = load_tokenizer(resolve("smollm2").path)
    return tokenizer, Detokenizer(tokenizer)

"""Vocabularies from GGUF give the ids that the tokenizer behind them gives, and their text back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.gguf_convert import convert_gguf
from mlx_notebook.models.gguf_file import open_gguf
from mlx_notebook.models.gguf_pretokenizers import known_kinds, pre_tokenizer
from mlx_notebook.models.gguf_tokenizer import tokenizer_files
from mlx_notebook.models.roundtrip import SAMPLES
from tests.models.gguf_files import (
    SENTENCES,
    byte_level_vocabulary,
    sentence_piece_vocabulary,
    trained_sentence_piece,
    write_small,
)
from tests.small_models import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def backend_of(path: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(json.dumps(tokenizer_files(open_gguf(path)).tokenizer))


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "plain"])
def sentence_piece(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(ours from GGUF, the original SentencePiece model), with and without the space put before a text."""
    path = tmp_path_factory.mktemp("sp") / "sp.gguf"
    write_small(path, "llama", vocabulary=sentence_piece_vocabulary(request.param))
    return backend_of(path), trained_sentence_piece(request.param)


@pytest.mark.parametrize("text", [*SENTENCES, *SAMPLES, "a", " ", "   x", "banana  bananas\n", "\x00"])
def test_sentence_piece_ids_are_the_originals(text: str, sentence_piece: tuple[Any, Any]) -> None:
    ours, original = sentence_piece
    assert ours.encode(text, add_special_tokens=False).ids == original.encode(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("ab nthe ü\n,1é日😀"), max_size=40))
def test_sentence_piece_ids_are_the_originals_for_any_text(text: str) -> None:
    ours, original = _plain_pair()
    assert ours.encode(text, add_special_tokens=False).ids == original.encode(text)


_pair: list[Any] = []


def _plain_pair() -> tuple[Any, Any]:
    if not _pair:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sp.gguf"
            write_small(path, "llama", vocabulary=sentence_piece_vocabulary(False))
            _pair.extend((backend_of(path), trained_sentence_piece(False)))
    return _pair[0], _pair[1]


@pytest.mark.parametrize("text", [*SAMPLES, "the fox <|im_start|>user\nand<|im_end|>", "a<|endoftext|>b"])
def test_byte_level_ids_are_the_originals(text: str, tmp_path: Path) -> None:
    write_small(tmp_path / "b.gguf", "llama")
    original = tiny_tokenizer().backend_tokenizer
    ours = backend_of(tmp_path / "b.gguf")
    assert ours.encode(text).ids == original.encode(text).ids
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


def split(kind: str, text: str) -> list[str]:
    """The words that a kind cuts text into, as characters again (the byte level writes bytes as letters)."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.BPE())
    description = json.loads(raw.to_str())
    description["pre_tokenizer"] = pre_tokenizer(kind)
    built = Tokenizer.from_str(json.dumps(description)).pre_tokenizer
    assert isinstance(built, pre_tokenizers.PreTokenizer)
    return [text[a:b] for _, (a, b) in built.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gpt-2", "It's 123 a!!", ["It", "'s", " 123", " a", "!!"]),
        ("smollm", "x 123", ["x", " ", "1", "2", "3"]),
        ("llama-bpe", "It'S 12345 !a\n\n b", ["It", "'S", " ", "123", "45", " !", "a", "\n\n", " b"]),
        ("qwen2", "n 123\r\n", ["n", " ", "1", "2", "3", "\r\n"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("default", "a+1234", ["a", "+", "123", "4"]),
    ],
)
def test_each_kind_cuts_words_its_own_way(kind: str, text: str, words: list[str]) -> None:
    assert split(kind, text) == words


@pytest.mark.parametrize("kind", known_kinds())
def test_no_kind_loses_a_character(kind: str) -> None:
    for text in SAMPLES:
        assert "".join(split(kind, text)) == text


def test_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    write_small(tmp_path / "odd.gguf", "llama", vocabulary=byte_level_vocabulary("some-new-one"))
    with pytest.raises(ModelLoadError, match=r"'some-new-one'.*qwen2"):
        convert_gguf(tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"merges": None}, "without merges"),
        ({"merges": ["zz qq"]}, "merge 'zz qq'"),
        ({"merges": ["nospace"]}, "merge 'nospace'"),
        ({"types": [1, 2, 3]}, "differ in length"),
        ({"model": "bert"}, "kind 'bert'"),
        ({"model": "llama"}, "differ in length"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_small(tmp_path / "bad.gguf", "llama", vocabulary=replace(byte_level_vocabulary(), **change))
    with pytest.raises(ModelLoadError, match=said):
        convert_gguf(tmp_path / "bad.gguf")


def test_a_token_listed_twice_is_refused(tmp_path: Path) -> None:
    words = byte_level_vocabulary()
    write_small(
        tmp_path / "twice.gguf", "llama", vocabulary=replace(words, tokens=[*words.tokens[:-1], words.tokens[5]])
    )
    with pytest.raises(ModelLoadError, match="same token twice"):
        convert_gguf(tmp_path / "twice.gguf")


def test_begin_tokens_follow_the_file_or_the_kind(tmp_path: Path) -> None:
    cases = [
        (byte_level_vocabulary(), {}, []),
        (byte_level_vocabulary(), {"tokenizer.ggml.add_bos_token": True}, [1]),
        (byte_level_vocabulary("llama-bpe"), {}, [1]),
        (sentence_piece_vocabulary(False), {}, [1]),
        (sentence_piece_vocabulary(False), {"tokenizer.ggml.add_bos_token": False}, []),
    ]
    for number, (words, metadata, expected) in enumerate(cases):
        path = tmp_path / f"{number}.gguf"
        write_small(path, "llama", vocabulary=words, metadata=metadata)
        ours = backend_of(path)
        assert ours.encode("the fox").ids == expected + ours.encode("the fox", add_special_tokens=False).ids


def test_endings_are_the_files_and_the_known_ones(tmp_path: Path) -> None:
    write_small(tmp_path / "e.gguf", "llama", metadata={"tokenizer.ggml.eot_token_id": 1})
    # eos 2 (<|im_end|>), the file's end of turn 1, and <|endoftext|>, id 0, by its spelling.
    assert tokenizer_files(open_gguf(tmp_path / "e.gguf")).eos_token_ids == [2, 1, 0]


def test_user_defined_tokens_are_matched_but_not_special(tmp_path: Path) -> None:
    words = sentence_piece_vocabulary(False)
    spaces = words.tokens[-1]
    changed = replace(words, tokens=[*words.tokens[:-1], "    "], types=[*words.types[:-1], 4])
    assert spaces != "    "
    write_small(tmp_path / "u.gguf", "llama", vocabulary=changed)
    ours = backend_of(tmp_path / "u.gguf")
    ids = ours.encode("a    b", add_special_tokens=False).ids
    assert len(words.tokens) - 1 in ids
    assert ours.decode(ids) == "a    b"  # special tokens are skipped here; this one is none

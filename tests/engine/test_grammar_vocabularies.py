"""Vocabularies of other kinds: SentencePiece's with its marks for spaces and its bytes, read from GGUF."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.gateway.gateway import Gateway
from tests.models.gguf_files import sentence_piece_vocabulary, write_small

if TYPE_CHECKING:
    from collections.abc import Iterator

CHOICES = ["banana bread", "the ox", "naïve é日", "😀 yes", "a  b\nc"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a b": {"enum": ["ü one", 'q"\\']},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["a b", "list"],
}


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "plain"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    path = tmp_path_factory.mktemp("sp") / "sp.gguf"
    write_small(path, "llama", vocabulary=sentence_piece_vocabulary(request.param))
    with Gateway(str(path), batch=4) as made:
        yield made


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """The gateway is the module's: it outlives each test."""


def test_answers_are_the_choices_to_the_letter(gateway: Gateway) -> None:
    seen = set()
    for seed in range(12):
        allowed = random.Random(seed).sample(CHOICES, 2)
        result = gateway.generate("x y", raw=True, choices=allowed, temperature=2.0, seed=seed, max_tokens=60)
        assert result.finish_reason == "stop"
        assert result.text in allowed
        assert result.parsed == result.text
        seen.add(result.text)
    assert len(seen) >= 3


def test_json_is_json(gateway: Gateway) -> None:
    for seed in range(6):
        result = gateway.generate("x", raw=True, json_schema=SCHEMA, temperature=2.0, seed=seed, max_tokens=120)
        assert result.parsed == json.loads(result.text)
        assert result.parsed["a b"] in SCHEMA["properties"]["a b"]["enum"]


def test_a_choice_that_begins_with_a_space_is_known_also_where_the_text_loses_it(gateway: Gateway) -> None:
    """Tokenizers that put a space before a text take the first one away again."""
    result = gateway.generate("x", raw=True, choices=[" banana", " the"], max_tokens=30)
    assert result.parsed in (" banana", " the")
    assert result.parsed.endswith(result.text)

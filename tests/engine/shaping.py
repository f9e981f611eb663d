"""What tests of grammars share: compiled grammars for the small models' tokenizer, and what each of its tokens says."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from mlx_notebook.core.grammar import CHECKS, GrammarKind
from mlx_notebook.engine.grammar import Compiled, compile_grammar
from mlx_notebook.engine.masks import MaskFiller
from mlx_notebook.engine.vocabulary import Vocabulary
from tests.small_models import SPECIALS, VOCAB, tiny_tokenizer

EOS = 2


@cache
def vocabulary(size: int = VOCAB) -> Vocabulary:
    return Vocabulary(tiny_tokenizer(size), [EOS])


def compiled(size: int = VOCAB, **option: Any) -> Compiled:
    """`compiled(regex="a+")`"""
    ((name, value),) = option.items()
    kind = GrammarKind(name)
    return compile_grammar(CHECKS[kind](name, value), vocabulary(size))


@cache
def tokens(size: int = VOCAB) -> tuple[bytes | None, ...]:
    """What each id of the small tokenizer says, by the table of byte-level vocabularies (GPT-2's)."""
    backend = tiny_tokenizer(size).backend_tokenizer
    by_letter = {letter: byte for byte, letter in _letters().items()}
    said: list[bytes | None] = []
    added = {one["id"]: one["content"] for one in json.loads(backend.to_str())["added_tokens"]}
    for token_id in range(size):
        if token_id < len(SPECIALS):
            said.append(None)
        elif token_id in added:
            said.append(added[token_id].encode())
        else:
            said.append(bytes(by_letter[letter] for letter in backend.id_to_token(token_id)))
    return tuple(said)


def _letters() -> dict[int, str]:
    """Byte to letter: printable ones are themselves, the others come from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + at) for at, byte in enumerate(others)}


def allowed_by(matcher: Any, width: int = VOCAB) -> set[int]:
    """The ids that a matcher lets through now."""
    (mask,) = MaskFiller().fill([matcher], width)
    return {int(i) for i in mask.nonzero()[0]}

"""Token ids to text, a token at a time: the pieces joined equal `tokenizer.decode` of all the ids.

That holds for any ids: bytes that are no UTF-8, special tokens, ids without a token. Special tokens
are text like any other, as in `decode` without `skip_special_tokens`; only the token that ends a row stays out,
and that is the caller's affair. Text that later tokens could still change is held back.

Two ways. A byte-level vocabulary (GPT-2's, most of today's) needs no tokenizer at all: its text is the tokens'
bytes, decoded as UTF-8. All others decode a short window of tokens whose text is settled at the left end. The
first way is taken only after it agreed with the tokenizer on a few hundred random sequences.
"""

from __future__ import annotations

import codecs
import json
import random
import re
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

REPLACEMENT = "\ufffd"
WINDOW = 24  # tokens decoded again for each new one, at most, while text settles normally
CONTEXT = 8  # tokens kept in front of new ones, so that a decoder that treats its first token apart does so there
SETTLED = 3  # after so many characters without a space, clean-up (a space and up to 3 more) can't reach back

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TextStream(Protocol):
    """One row's decoder."""

    def push(self, token_id: int) -> str:
        """Take the next token; give back the text that is settled now."""
        ...

    def flush(self) -> str:
        """No token will follow: give back the rest."""
        ...


class Detokenizer:
    """Makes a `TextStream` for each row of one tokenizer.

    Args:
        tokenizer: mlx-lm's wrapper or a transformers tokenizer.
        lock: held around each use of the tokenizer, which other threads may use as well. A byte-level
            vocabulary is read once, here, and needs no lock afterwards.
    """

    def __init__(self, tokenizer: Any, lock: AbstractContextManager[Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._lock = lock if lock is not None else nullcontext()
        with self._lock:
            self._tokens = _tokens_of(tokenizer)
            self._bytes = self._read_bytes()
        self._cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))

    def stream(self) -> TextStream:
        """A decoder for a new row."""
        if self._bytes is not None:
            return _ByteStream(self._bytes)
        return _WindowStream(self)

    def decode(self, ids: list[int]) -> str:
        """The tokenizer's own text of these ids."""
        with self._lock:
            return str(self._tokenizer.decode(ids))

    def token(self, token_id: int) -> str | None:
        """The vocabulary's entry; None where the tokenizer has none (its `decode` leaves such ids out)."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else None

    @property
    def knows_vocabulary(self) -> bool:
        """Whether `token` can be relied on."""
        return bool(self._tokens)

    @property
    def cleans(self) -> bool:
        """Whether `decode` may remove spaces before punctuation after the fact."""
        return self._cleans

    def _read_bytes(self) -> list[bytes] | None:
        if not self._tokens or not _is_byte_level(self._tokenizer):
            return None
        table = [_bytes_of(token) for token in self._tokens]
        draw = random.Random(0)
        for length in (1, 2, 3, 5, 8, 13, 21) * 30:
            ids = [draw.randrange(len(table)) for _ in range(length)]
            if b"".join(table[i] for i in ids).decode("utf-8", "replace") != self._tokenizer.decode(ids):
                return None
        return table


class _ByteStream:
    """Joins tokens' bytes and decodes them as UTF-8, invalid ones as U+FFFD."""

    __slots__ = ("_table", "_utf8")

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._table[token_id]) if token_id < len(self._table) else ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowStream:
    """Decodes a window of the last tokens; shows what follows the part that was shown before."""

    __slots__ = ("_ids", "_owner", "_shown")

    def __init__(self, owner: Detokenizer) -> None:
        self._owner = owner
        self._ids: list[int] = []
        self._shown = ""  # the start of the window's text that has been shown

    def push(self, token_id: int) -> str:
        token = self._owner.token(token_id)
        if token is None and self._owner.knows_vocabulary:
            return ""
        self._ids.append(token_id)
        if token is not None and _BYTE_TOKEN.fullmatch(token):
            return ""  # a run of byte tokens is decoded as a whole: one bad byte at its end changes all of it
        text = self._owner.decode(self._ids)
        piece = self._show(text, self._settled(text))
        if len(self._ids) >= WINDOW:
            self._move(text)
        return piece

    def flush(self) -> str:
        if not self._ids:
            return ""
        text = self._owner.decode(self._ids)
        return self._show(text, len(text))

    def _show(self, text: str, stop: int) -> str:
        if stop <= len(self._shown) or not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) : stop]
        self._shown = text[:stop]
        return piece

    def _settled(self, text: str) -> int:
        """How much of the window's text no later token can change."""
        stop = len(text)
        if text.endswith(REPLACEMENT):
            stop -= 1  # an unfinished character decodes to one
        if self._owner.cleans:
            while stop and (stop < SETTLED or " " in text[stop - SETTLED : stop]):
                stop -= 1
        return stop

    def _move(self, text: str) -> None:
        """Forget the oldest tokens, if the rest alone gives the same text but for its own first characters."""
        kept = self._ids[-CONTEXT:]
        if not text.startswith(self._shown):
            return
        kept_text = self._owner.decode(kept)
        held = len(text) - len(self._shown)
        common = _common_suffix(text, kept_text)
        if common >= held + SETTLED + 1 and kept_text[-common:].strip():
            self._ids, self._shown = kept, kept_text[: len(kept_text) - held]


def _common_suffix(first: str, second: str) -> int:
    count = 0
    for a, b in zip(reversed(first), reversed(second), strict=False):
        if a != b:
            break
        count += 1
    return count


def _tokens_of(tokenizer: Any) -> list[str | None]:
    """The vocabulary by id, if the tokenizer is one that leaves out ids that it does not have."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return []
    return list(tokenizer.convert_ids_to_tokens(list(range(1 + max(tokenizer.get_vocab().values(), default=-1)))))


def _is_byte_level(tokenizer: Any) -> bool:
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    while decoder and decoder["type"] == "Sequence" and len(decoder["decoders"]) == 1:
        decoder = decoder["decoders"][0]
    return bool(decoder) and decoder["type"] == "ByteLevel"


def _bytes_of(token: str | None) -> bytes:
    if token is None:
        return b""
    alphabet = _byte_of_character()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:  # an added token is not spelt in the byte alphabet
        return token.encode("utf-8")


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + at): byte for at, byte in enumerate(others)}

"""A tokenizer with its lock, and text that stays text.

Fast tokenizers are not safe to use from two threads while their settings change, so encoding
happens under a lock. Control tokens (end of turn, beginning of sequence) that stand inside a
prompt are ordinary characters here unless the caller says otherwise: a second copy of the
tokenizer without them encodes such text, made the first time that it is needed.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Stands before a piece so that tokenizers which treat the first word of a text apart see that it is not the first.
_ANCHOR = "\U000f5a17anchor\U000f5a17"


class Tokenization:
    """Encoding and decoding for one loaded model, safe from any thread.

    Args:
        tokenizer: mlx-lm's wrapper or a Hugging Face tokenizer.
        vocab_size: rows of the model's embedding; ids are checked against it where given.
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.lock = threading.RLock()
        self._text_only: Any = None
        self._control = _control_tokens(tokenizer)
        self._control_pattern = _pattern_of(self._control)
        self._control_ids = {self.id_of(token) for token in self._control}
        added = list((getattr(tokenizer, "added_tokens_decoder", {}) or {}).values())
        self._swallows_left = {t.content for t in added if t.lstrip}
        self._swallows_right = {t.content for t in added if t.rstrip}

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Tokens that steer the model and must not come out of a user's text, longest first."""
        return self._control

    def holds_control_tokens(self, text: str) -> bool:
        """Whether `text` contains the spelling of a control token."""
        return self._control_pattern.search(text) is not None

    def encode(self, text: str, *, add_special_tokens: bool = False, allow_special: bool = False) -> list[int]:
        """Ids of `text`.

        Args:
            text: any text.
            add_special_tokens: put the model's begin and end tokens around it (the begin token not twice).
            allow_special: read spellings of control tokens as those tokens; else they are plain characters.
        """
        with self.lock:
            if allow_special or not self.holds_control_tokens(text):
                begins = getattr(self.tokenizer, "bos_token", None)
                add = add_special_tokens and not (begins and text.startswith(begins))
                return self._plain(text, add)
            ids = self.encode_as_text(text, first=True)
            if not add_special_tokens:
                return ids
            before, after = self._frame()
            return [*before, *ids, *after]

    def encode_as_text(self, text: str, *, first: bool) -> list[int]:
        """Ids of a piece in which control tokens are plain characters.

        Args:
            text: the piece.
                first: whether it begins the whole text (some vocabularies treat the first word apart).

        Raises:
            ValueError: the vocabulary has no other way to write a control token that stands in it.
        """
        if not text:
            return []
        with self.lock:
            twin = self._text_only_twin()
            if twin is None:
                ids = [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)]
            elif first:
                ids = list(twin.encode(text, add_special_tokens=False).ids)
            else:
                ids = list(twin.encode(_ANCHOR + text, add_special_tokens=False).ids[1:])
            self._check_is_text(ids)
            return ids

    def _check_is_text(self, ids: list[int]) -> None:
        if not self._control_ids.isdisjoint(ids):
            token = next(t for t in self._control if self.id_of(t) in set(ids))
            raise ValueError(
                f"this model's vocabulary cannot write {token!r} as plain text; take it out of the prompt, "
                "or pass allow_special=True if it is meant to steer the model"
            )

    def trimmed_between(self, text: str, *, after: str, before: str) -> str:
        """`text` without the white space that the control tokens around it swallow (a setting of some tokens)."""
        if after in self._swallows_right:
            text = text.lstrip()
        return text.rstrip() if before in self._swallows_left else text

    def id_of(self, token: str) -> int:
        """The id of one token by its spelling."""
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def split_at_control_tokens(self, text: str) -> list[str]:
        """Pieces of `text`, alternately plain and a control token."""
        return self._control_pattern.split(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens included.

        Needs no lock with a fast tokenizer: nothing here changes its settings, so a long encode
        on another thread does not hold the engine up.
        """
        listed = [int(i) for i in ids]
        if _backend(self.tokenizer) is not None:
            return str(self.tokenizer.decode(listed))
        with self.lock:
            return str(self.tokenizer.decode(listed))

    def count(self, text: str, *, allow_special: bool = False) -> int:
        """How many tokens `text` is, without begin and end tokens."""
        return len(self.encode(text, allow_special=allow_special))

    def check_ids(self, ids: Sequence[Any]) -> list[int]:
        """Token ids as plain integers within the vocabulary.

        Raises:
            TypeError: something that is not an integer (a bool counts as none).
            ValueError: an id outside the model's vocabulary.
        """
        checked = []
        for position, value in enumerate(ids):
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError(
                    f"prompt token {position} is {value!r} ({type(value).__name__}); token ids are integers"
                )
            number = int(value)
            if number < 0 or (self.vocab_size is not None and number >= self.vocab_size):
                limit = "the vocabulary" if self.vocab_size is None else f"the vocabulary (0 to {self.vocab_size - 1})"
                raise ValueError(f"prompt token {position} is {number}, outside {limit}")
            checked.append(number)
        return checked

    def _plain(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=add_special_tokens)]

    def _frame(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before and after a text."""
        framed, bare = self._plain("a", True), self._plain("a", False)
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start], framed[start + len(bare) :]
        return [], []

    def _text_only_twin(self) -> Any:
        """The same tokenizer without its control tokens, plus the anchor; None where it is not a fast one."""
        backend = _backend(self.tokenizer)
        if backend is None:
            return None
        if self._text_only is None:
            self._text_only = _without_control_tokens(backend, self._control)
        return self._text_only


def _backend(tokenizer: Any) -> Any:
    return getattr(tokenizer, "backend_tokenizer", None)


def _without_control_tokens(backend: Any, control: tuple[str, ...]) -> Any:
    import json

    from tokenizers import Tokenizer

    description = json.loads(backend.to_str())
    description["added_tokens"] = [t for t in description.get("added_tokens", []) if t["content"] not in set(control)]
    # A begin token in the frame must be an added token, and this copy never adds a frame.
    description["post_processor"] = None
    twin = Tokenizer.from_str(json.dumps(description))
    twin.no_truncation()
    twin.no_padding()
    twin.add_special_tokens([_ANCHOR])
    return twin


def _control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Special tokens, and added tokens that the chat template writes (such as `<tool_call>` or `<think>`)."""
    decoder = getattr(tokenizer, "added_tokens_decoder", {}) or {}
    template = getattr(tokenizer, "chat_template", None)
    written = (
        template
        if isinstance(template, str)
        else " ".join((template or {}).values())
        if isinstance(template, dict)
        else ""
    )
    found = {
        token.content
        for token in decoder.values()
        if token.content and not token.content.isspace() and (token.special or token.content in written)
    }
    found |= {t for t in getattr(tokenizer, "all_special_tokens", []) or [] if t and not t.isspace()}
    return tuple(sorted(found, key=lambda t: (-len(t), t)))


def _pattern_of(tokens: tuple[str, ...]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(t) for t in tokens)
    return re.compile(f"({alternatives})" if alternatives else r"((?!))")

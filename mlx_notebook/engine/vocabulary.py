"""One model's tokenizer as the grammar library wants it."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_VOCABULARIES = 2


class Vocabulary:
    """One model's tokenizer as the library wants it, made when it is first needed.

    Args:
        tokenizer: a Hugging Face tokenizer (or mlx-lm's wrapper around one) with a fast backend.
        eos_ids: the ids that end a row.
        tokenizer_lock: held while the tokenizer is read, if other threads use it too.

    Raises (when it is made): ValueError where the tokenizer is of a kind that cannot be read.
    """

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: Iterable[int],
        tokenizer_lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self._tokenizer: Any = tokenizer
        self._tokenizer_lock = tokenizer_lock if tokenizer_lock is not None else contextlib.nullcontext()
        self.eos_ids = tuple(sorted(eos_ids))
        self._lock = threading.Lock()
        self._made: Any = None
        self._key = ""

    def made(self) -> Any:
        """The library's tokenizer."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    @property
    def ready(self) -> bool:
        """Whether it is made."""
        return self._made is not None

    @property
    def key(self) -> str:
        """Names the vocabulary's contents: equal ones share compiled grammars."""
        self.made()
        return self._key

    def bytes_of(self, token_id: int) -> bytes:
        """What one token says."""
        return bytes(self.made().decode_bytes([token_id]))

    def _make(self) -> Any:
        import llguidance

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("the model's tokenizer is not one of the fast kind")
        with self._tokenizer_lock:
            text = backend.to_str()
        self._key = hashlib.sha256(f"{self.eos_ids}{text}".encode()).hexdigest()
        with _vocabularies_lock:
            made = _vocabularies.get(self._key)
        if made is None:
            # In two parts: each holds Python's lock, and between them whoever waits for it gets it.
            words = llguidance.LLTokenizer(text, eos_token=list(self.eos_ids) or None, slices=[])
            made = words.with_slices(llguidance.LLTokenizer.general_slices())
            with _vocabularies_lock:
                _vocabularies[self._key] = made
                while len(_vocabularies) > MOST_VOCABULARIES:
                    _vocabularies.popitem(last=False)
        return made


_vocabularies: OrderedDict[str, Any] = OrderedDict()
_vocabularies_lock = threading.Lock()

"""Arrays of the prompt cache, by entry id. Which entry there is, and for how long, the core decides.

An entry is the caches of a row after exactly so many tokens. It is never consumed: a row that starts from it
gets caches over the same buffers, and whoever writes first writes into a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.engine.stores.caches import arrays_of, compact, cut, detach, nbytes_of, twin

if TYPE_CHECKING:
    from mlx_notebook.engine.row import RowState


@dataclass(slots=True)
class Entry:
    """Caches of exactly `tokens` tokens."""

    caches: list[Any]
    tokens: int
    nbytes: int


class PromptCache:
    """Entries of one model."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, entry_id: int, row: RowState, tokens: int) -> Entry | None:
        """A snapshot of a row (settled) at `tokens` tokens; None where it cannot be had exactly. The row goes on.

        The buffers are shared until the row writes again, which copies the row's.
        """
        return self._put(entry_id, twin(row.cache), row, tokens)

    def take_over(self, entry_id: int, row: RowState, tokens: int) -> Entry | None:
        """The caches of a row (settled) that is over, without a copy; cut back to `tokens` where it holds more."""
        return self._put(entry_id, row.cache, row, min(tokens, row.fed))

    def start(self, entry_id: int, tokens: int) -> list[Any]:
        """Caches for a new row: the first `tokens` tokens of an entry, which stays as it is.

        Raises:
            KeyError: there is no such entry.
            ValueError: it cannot be cut back to so many tokens.
        """
        entry = self._entries[entry_id]
        caches = twin(entry.caches)
        if not 0 < tokens <= entry.tokens or not cut(caches, entry.tokens - tokens):
            raise ValueError(f"entry {entry_id} of {entry.tokens} tokens can't be cut back to {tokens}")
        return caches

    def evict(self, entry_id: int) -> None:
        """Free an entry; unknown ones are ignored."""
        self._entries.pop(entry_id, None)

    def clear(self) -> None:
        """Free all."""
        self._entries.clear()

    def held_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.nbytes for entry in list(self._entries.values()))

    def _put(self, entry_id: int, caches: list[Any], row: RowState, tokens: int) -> Entry | None:
        if not 0 < tokens <= row.fed or not cut(caches, row.fed - tokens):
            return None
        compact(caches)
        detach(caches)
        mx.eval(arrays_of(caches))
        entry = self._entries[entry_id] = Entry(caches, tokens, nbytes_of(caches))
        return entry

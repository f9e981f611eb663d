"""The prefix index: which kept states could spare a prompt's beginning its computation.

An entry stands for the caches of a row after exactly its tokens; the arrays live with the
backend, by entry id. A trimmable entry serves any prompt that shares a beginning with it; one with
wrapped windows or recurrent state serves only prompts that go on from its very end. Entries are
never consumed. At least one token of a prompt is always left to compute, so an exact hit works.

One ceiling: entries may fill what the budget leaves beside the live rows, and the least
recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MIN_REUSE = 16
"""Shorter prefixes cost more to look after than to compute."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A kept state of exactly these tokens; `nbytes` is what its arrays take."""

    id: int
    tokens: tuple[int, ...]
    nbytes: int
    trimmable: bool


@dataclass(slots=True)
class PrefixCounters:
    """Lookups that reused something or nothing, and tokens that were not computed again."""

    hits: int = 0
    misses: int = 0
    tokens_reused: int = 0


class PrefixIndex:
    """Entries in order of their last use, the least recent first; `changes` counts those that came and went."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.nbytes = 0
        self.changes = 0
        self.counters = PrefixCounters()
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._entries)

    def new_id(self) -> int:
        """An id for an entry that is about to be kept."""
        self._next_id += 1
        return self._next_id - 1

    def take(
        self, prompt: Sequence[int], allowed: Callable[[Entry, int], int] = lambda _entry, tokens: tokens
    ) -> tuple[Entry, int] | None:
        """The entry that spares most of this prompt, and how many tokens it spares; counts the lookup.

        Args:
            prompt: all of its tokens.
            allowed: of so many tokens that an entry could spare, those that may be taken from it.
        """
        best = self.best(prompt, allowed)
        if best is None:
            self.counters.misses += 1
            return None
        self._entries.move_to_end(best[0].id)
        self.counters.hits += 1
        self.counters.tokens_reused += best[1]
        return best

    def best(
        self, prompt: Sequence[int], allowed: Callable[[Entry, int], int] = lambda _entry, tokens: tokens
    ) -> tuple[Entry, int] | None:
        """What `take` would find; nothing is counted, and no entry is used."""
        best: tuple[Entry, int] | None = None
        prompt = tuple(prompt)
        for entry in self._entries.values():
            beat = best[1] if best else MIN_REUSE - 1
            usable = _usable(entry, prompt, beat)
            if usable and (tokens := allowed(entry, usable)) > beat:
                best = entry, tokens
        return best

    def covers(self, tokens: Sequence[int]) -> bool:
        """Whether keeping a state of these tokens would add nothing."""
        key = tuple(tokens)
        return any(entry.tokens == key for entry in self._entries.values())

    def put(self, entry: Entry, room: int) -> list[int]:
        """Add an entry; the ids of all that must go for it (perhaps its own) so that `room` bytes suffice.

        A twin is replaced. Entries that a trimmable newcomer continues add nothing any more. A newcomer that
        would not fit even alone is the only one to go.
        """
        if entry.nbytes > min(room, self.ceiling):
            return [entry.id, *self.shrink(room)]
        gone = [old.id for old in self._entries.values() if self._superseded(old, entry)]
        for entry_id in gone:
            self._forget(entry_id)
        self._entries[entry.id] = entry
        self.changes += 1
        self.nbytes += entry.nbytes
        return gone + self.shrink(room)

    def shrink(self, room: int) -> list[int]:
        """Evict the least recently used until at most `room` bytes (and the ceiling) are held; their ids."""
        gone = []
        while self._entries and self.nbytes > min(room, self.ceiling):
            entry_id = next(iter(self._entries))
            self._forget(entry_id)
            gone.append(entry_id)
        return gone

    def clear(self) -> list[int]:
        """Forget all; their ids."""
        gone = list(self._entries)
        self._entries.clear()
        self.changes += 1
        self.nbytes = 0
        return gone

    def _forget(self, entry_id: int) -> None:
        self.changes += 1
        self.nbytes -= self._entries.pop(entry_id).nbytes

    @staticmethod
    def _superseded(old: Entry, new: Entry) -> bool:
        if old.tokens == new.tokens:
            return True
        # An untrimmable newcomer serves only what goes on from its end: its ancestors must survive it.
        return new.trimmable and old.trimmable and new.tokens[: len(old.tokens)] == old.tokens


def _usable(entry: Entry, prompt: tuple[int, ...], beat: int) -> int:
    """How many tokens of the prompt the entry spares, 0 if no more than `beat`."""
    most = min(len(entry.tokens), len(prompt) - 1)
    if most <= beat or entry.tokens[: beat + 1] != prompt[: beat + 1]:
        return 0
    if entry.tokens[:most] == prompt[:most]:
        return most if entry.trimmable or most == len(entry.tokens) else 0
    return common(entry.tokens, prompt, beat + 1, most) if entry.trimmable else 0


def common(a: tuple[int, ...], b: tuple[int, ...], low: int, high: int) -> int:
    """Length of the common beginning, known to be in [low, high): by halving, as slices compare fast."""
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

"""What rows and kept prefixes may take together: one budget, and which states are kept under it.

Running rows are counted at their worst case and never evicted; entries fill what is left, the least
recently used going first. In deterministic mode only states that prefill built are kept, cut at
chunk boundaries, so that a reused prefix has the bits that computing it would have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.prefix import MIN_REUSE, Entry, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.request import Request
    from mlx_notebook.core.rows import Row
    from mlx_notebook.core.scheduler_settings import SchedulerSettings

KEEP_PROMPT_FROM = 256
"""Prompts of at least so many tokens are kept as soon as they are read, for rows that start meanwhile."""


class Memory:
    """Budget of one gateway's rows, and its prefix index."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.budget = settings.budget
        self.projected = 0
        self.prefixes = PrefixIndex(settings.prompt_cache)
        self._settings = settings
        self._needs: dict[int, int] = {}
        self._pending: dict[int, tuple[int, ...]] = {}

    def need_of(self, row: Row) -> int:
        """Bytes that the row takes at most."""
        tokens = row.prompt_tokens + row.request.shape.sampling.max_tokens
        limit = self._settings.context_length
        return self._settings.cost.of(tokens if limit is None else min(tokens, limit))

    def fits(self, row: Row) -> bool:
        """Whether the row could join those that run; entries give way to rows."""
        return self.projected + self.need_of(row) <= self.budget

    def refusal(self, row: Row) -> str | None:
        """Why the row can't run though nobody else does, in words: the budget has sunk since it was taken in."""
        need = self.need_of(row)
        if need <= self.budget:
            return None
        return (
            f"OverBudget: the request would take {need:,} bytes of KV memory and the budget is {self.budget:,} bytes:"
            " it sank while the request waited (another model was loaded?). Lower max_tokens, shorten the prompt,"
            " or unload a model, and submit it again."
        )

    def enter(self, row: Row) -> list[int]:
        """The row runs; the entries that must go to make room for it."""
        self._needs[row.id] = self.need_of(row)
        self.projected += self._needs[row.id]
        return self.prefixes.shrink(self.budget - self.projected)

    def over_by(self, row: Row, need: int) -> int:
        """Bytes by which the budget would be exceeded if the row (running or waiting) took `need` at most."""
        others = self.projected - self._needs[row.id] if row.id in self._needs else 0
        return others + need - self.budget

    def extend(self, row: Row) -> list[int]:
        """The row's limit was raised; the entries that must go for it."""
        if row.id not in self._needs:
            return []
        self.projected -= self._needs.pop(row.id)
        return self.enter(row)

    def leave(self, row: Row, *, worth_keeping: bool) -> tuple[int | None, int | None]:
        """The row runs no more; (id of the entry that its state shall become, cap of its tokens), or Nones."""
        self.projected -= self._needs.pop(row.id, 0)
        # Whether the last token was fed too, the backend says with what it kept.
        tokens = (*row.request.shape.prompt_ids, *row.token_ids)
        if self._settings.deterministic:
            tokens = tokens[: self._on_boundary(row.prompt_tokens - 1)]
        if not worth_keeping or not self._wanted(row, tokens):
            return None, None
        return self._pend(tokens), len(tokens)

    def find_prefix(self, row: Row) -> tuple[int | None, int]:
        """(entry, tokens) that spare the beginning of the row's prompt."""
        if not self.caches(row):
            return None, 0
        found = self.prefixes.take(row.request.shape.prompt_ids, self._allowed)
        return (None, 0) if found is None else (found[0].id, found[1])

    def caches(self, row: Row) -> bool:
        """Whether the row may leave entries and start from them."""
        return row.request.cache_prompt and self.prefixes.ceiling > 0

    def known(self, row: Row) -> int:
        """How many tokens `find_prefix` would spare the row now."""
        found = self.prefixes.best(row.request.shape.prompt_ids, self._allowed)
        return 0 if found is None else found[1]

    def reusable(self, tokens: int) -> int:
        """Of a beginning of so many tokens, those that one row may take from another's entry."""
        return self._on_boundary(tokens) if self._settings.deterministic else tokens

    def has_room(self, tokens: int) -> bool:
        """Whether an entry of so many tokens would have room beside the rows that run now."""
        return self._settings.cost.of(tokens) <= min(self.prefixes.ceiling, self.budget - self.projected)

    def _allowed(self, entry: Entry, tokens: int) -> int:
        """How many of so many tokens a row may take from an entry."""
        if self._settings.deterministic:
            tokens = self._on_boundary(tokens)
        if tokens < self._settings.cost.start <= len(entry.tokens):
            return 0  # it has been quantised since: a row of so few tokens would not be
        return tokens

    def snapshot(self, row: Row, part: ev.PrefillPart) -> ev.Keep | None:
        """Keep the row's state here, if another prompt is likely to go on from it."""
        tokens = part.stop - 1 if part.last else part.stop
        prompt = row.request.shape.prompt_ids
        if tokens > len(prompt) or not self._at_cut(row, tokens, last=part.last):
            return None
        if not self._wanted(row, prompt[:tokens]):
            return None
        return ev.Keep(row.id, self._pend(prompt[:tokens]), tokens)

    def kept(self, event: ev.Kept) -> list[int]:
        """A state was kept (or could not be); the entries that must go for it."""
        tokens = self._pending.pop(event.entry_id, ())[: event.tokens]
        if len(tokens) < MIN_REUSE:
            return [event.entry_id] if event.tokens else []
        entry = Entry(event.entry_id, tokens, event.nbytes, self._settings.trimmable)
        return self.prefixes.put(entry, self.budget - self.projected)

    def set_budget(self, nbytes: int) -> list[int]:
        """Another budget; running rows stay, entries may have to go."""
        self.budget = nbytes
        return self.prefixes.shrink(self.budget - self.projected)

    def _at_cut(self, row: Row, tokens: int, *, last: bool) -> bool:
        if tokens in row.stops:
            return True
        if self._settings.deterministic:
            # Chunks end nowhere else: the nearest before each place where another prompt may part from this one.
            return tokens in map(self._on_boundary, (*row.request.boundaries, row.prompt_tokens - 1))
        if not self._settings.trimmable and tokens in row.request.boundaries:
            return True
        return last and tokens >= KEEP_PROMPT_FROM

    def _on_boundary(self, tokens: int) -> int:
        chunk = self._settings.chunk or 1
        return tokens // chunk * chunk

    def _wanted(self, row: Row, tokens: tuple[int, ...]) -> bool:
        return self.caches(row) and len(tokens) >= MIN_REUSE and not self.prefixes.covers(tokens)

    def _pend(self, tokens: tuple[int, ...]) -> int:
        entry_id = self.prefixes.new_id()
        self._pending[entry_id] = tokens
        return entry_id


def without_twins(row: Row, others: Sequence[Row]) -> Request:
    """The row's request without boundaries at which one of the others will have the same state kept.

    Rows that begin alike (with a template's own system message) and are read at once need no more than one of them
    to stop there: the others may share a forward.
    """
    prompt = row.request.shape.prompt_ids

    def is_kept_by(other: Row, at: int) -> bool:
        request = other.request
        if at not in request.boundaries or other.prefilled >= at or not request.cache_prompt:
            return False
        return request.shape.prompt_ids[:at] == prompt[:at]

    own = tuple(at for at in row.request.boundaries if not any(is_kept_by(other, at) for other in others))
    return row.request if own == row.request.boundaries else replace(row.request, boundaries=own)

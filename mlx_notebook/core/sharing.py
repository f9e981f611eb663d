"""Rows that share a beginning read it once: who waits for whose prompt to be read that far.

While a row's prompt is being read, it can leave an entry in the prompt cache on its way, at the place where a waiting
row's prompt parts from its own. The waiting row is not opened until then, where that spares it enough. It waits for a
row in prefill only, and for nothing that has already been passed: whatever becomes of that row (read, failed,
cancelled) or of the entry (not kept), the next turn opens the waiting one, or finds it another that still reads.

Places that lie close together become one, the first of them: two tokens that happen to be the same are worth neither
a forward of their own nor an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.prefix import common
from mlx_notebook.core.ring import Kind

if TYPE_CHECKING:
    from mlx_notebook.core.memory import Memory
    from mlx_notebook.core.ring import Ring
    from mlx_notebook.core.rows import Row
    from mlx_notebook.core.scheduler_settings import SchedulerSettings

SLACK = 32
"""Places of a prompt no further apart than this share an entry."""


class Awaited(NamedTuple):
    """The row that reads, how many of its tokens the waiting row's prompt begins with, and where it leaves an entry."""

    reader: Row
    tokens: int
    stop: int


class Sharing:
    """Rows in prefill by how their prompts begin, and the rows that wait for them.

    Attributes:
        changes: counts what could let a waiting row go.
    """

    def __init__(self, settings: SchedulerSettings, memory: Memory, ring: Ring) -> None:
        self.changes = 0
        self._least = settings.worth_waiting
        # Who is in a static batch is settled when it begins: nobody could join it later.
        self._off = settings.policy is BuiltIn.STATIC
        self._memory = memory
        self._ring = ring
        self._readers: dict[tuple[int, ...], list[Row]] = {}
        self._told: dict[int, tuple[int, int]] = {}
        self._known: dict[int, tuple[int, int]] = {}

    def reads(self, row: Row) -> None:
        """The row's prompt is being read from now on. One that is read again, after a failed step, leads nobody."""
        self._forget(row)
        if self._shares(row) and not row.rewinds:
            self._readers.setdefault(self._key(row), []).append(row)

    def advanced(self, row: Row) -> None:
        """Some of the row's prompt was read."""
        self.changes += any(at <= row.prefilled for at in row.stops)

    def left(self, row: Row) -> None:
        """The row reads no more, or waits no more."""
        self._forget(row)
        readers = self._readers.get(key := self._key(row), [])
        if row in readers:
            readers.remove(row)
            self.changes += bool(row.stops)
            if not readers:
                del self._readers[key]

    def holds(self, row: Row, at_ns: int) -> bool:
        """Whether the row, which could be opened, waits for another; that one will stop where it is to."""
        found = self.awaited(row)
        told = (0, 0) if found is None else (found.reader.id, found.stop)
        if told != self._told.get(row.id, (0, 0)):
            self._told[row.id] = told
            self._ring.record(at_ns, Kind.SHARE, row.id, a=told[0], b=told[1])
        if found is not None:
            _ask(found)
        return found is not None

    def reader_for(self, row: Row) -> int:
        """Whom the row waited for when it was last asked: its id, 0 for nobody."""
        return self._told.get(row.id, (0, 0))[0]

    def awaited(self, row: Row) -> Awaited | None:
        """What the row waits for: of all that would spare it enough, the one that spares most."""
        if row.opened or not self._shares(row):
            return None
        readers = self._readers.get(self._key(row))
        if readers is None:
            return None
        known = self._tokens_known(row)
        found = [one for reader in readers if (one := self._from(reader, row, known)) is not None]
        return max(found, key=lambda one: one.stop, default=None)

    def _from(self, reader: Row, row: Row, known: int) -> Awaited | None:
        """What this reader could leave for the row, which has `known` tokens in the cache already."""
        mine, theirs = row.request.shape.prompt_ids, reader.request.shape.prompt_ids
        least, most = known + self._least, min(len(mine), len(theirs)) - 1
        # Most part soon after what is known: that is seen first.
        if most < least or mine[known:least] != theirs[known:least] or mine[:known] != theirs[:known]:
            return None
        shared = most if mine[:most] == theirs[:most] else common(mine, theirs, least, most)
        tokens = self._memory.reusable(shared)
        stop = _stop(reader, tokens)
        if stop <= reader.prefilled or stop - known < self._least or not self._memory.has_room(stop):
            return None
        return Awaited(reader, tokens, stop)

    def _tokens_known(self, row: Row) -> int:
        """As `Memory.known` says; looked up once for each change of the cache, since rows are asked again and again."""
        version, tokens = self._known.get(row.id, (-1, 0))
        if version != self._memory.prefixes.changes:
            tokens = self._memory.known(row)
            self._known[row.id] = self._memory.prefixes.changes, tokens
        return tokens

    def _forget(self, row: Row) -> None:
        self._told.pop(row.id, None)
        self._known.pop(row.id, None)

    def _shares(self, row: Row) -> bool:
        return not self._off and self._memory.caches(row) and row.prompt_tokens > self._least

    def _key(self, row: Row) -> tuple[int, ...]:
        return row.request.shape.prompt_ids[: self._least]


def _stop(reader: Row, tokens: int) -> int:
    """Where the reader stops for a row that shares so many tokens: at a place that it has just before, or there."""
    near = [at for at in (*reader.request.boundaries, *reader.stops) if tokens - SLACK <= at <= tokens]
    return max(near, default=tokens)


def _ask(awaited: Awaited) -> None:
    """Have the reader stop there; its other places just behind move to this one, if nobody loses much by it."""
    stops, stop, furthest = awaited.reader.stops, awaited.stop, awaited.tokens
    for at in [at for at, tokens in stops.items() if stop < at and tokens - stop <= SLACK]:
        furthest = max(furthest, stops.pop(at))
    stops[stop] = max(furthest, stops.get(stop, 0))

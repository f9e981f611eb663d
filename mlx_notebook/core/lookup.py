"""What every question about one recording needs, worked out once: who ran when, what held the engine.

Without it each request's answer would look through all the others, and a whole run's would take the square of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlx_notebook.core.recording import Recording, RequestTrace

COLD_FACTOR = 3
"""A step is cold if it took so many times as long as others like it, and COLD_NS longer."""

COLD_NS = 20_000_000

FOR_EVER = 1 << 62


class Pairs:
    """Pairs of numbers with an id. `where` finds those with a small first and a large second, and looks at no others.

    A tree over the pairs in order of their first numbers holds the largest second number below each branch.
    """

    def __init__(self, items: Iterable[tuple[int, int, int]]) -> None:
        self._items = sorted(items)
        self._firsts = [first for first, _, _ in self._items]
        self._leaves = 1 << max(0, len(self._items) - 1).bit_length()
        self._most = [-1] * (2 * self._leaves)
        for place, (_, second, _) in enumerate(self._items, start=self._leaves):
            self._most[place] = second
        for branch in range(self._leaves - 1, 0, -1):
            self._most[branch] = max(self._most[2 * branch], self._most[2 * branch + 1])

    def where(self, below: int, above: int) -> list[tuple[int, int, int]]:
        """(first, second, id) of those with `first < below` and `second > above`, in order of the first."""
        stop = bisect_left(self._firsts, below)
        found = []
        branches = [(1, 0, self._leaves)]
        while branches:
            branch, begin, end = branches.pop()
            if begin >= stop or self._most[branch] <= above:
                continue
            if end - begin == 1:
                found.append(self._items[begin])
            else:
                middle = (begin + end) // 2
                branches += [(2 * branch + 1, middle, end), (2 * branch, begin, middle)]
        return found


class Lookup:
    """Of a recording as it was at `clock`; each part is made when it is first asked for."""

    def __init__(self, recording: Recording) -> None:
        self.clock = recording.clock
        self._recording = recording

    # ------------------------------------------------------------ the requests

    @cached_property
    def place(self) -> dict[int, int]:
        """Each request's place in the order of submission."""
        return {row_id: place for place, row_id in enumerate(self._recording.requests)}

    def in_order(self, ids: Iterable[int]) -> tuple[int, ...]:
        """These requests in order of submission, each once."""
        return tuple(sorted(set(ids), key=self.place.__getitem__))

    def ran_between(self, start: int, end: int) -> list[int]:
        """Requests that had a place in the batch at some time from `start` till before `end`."""
        return [row_id for _, _, row_id in self._running.where(end, start)]

    def went_first(self, heard: int, until: int) -> list[int]:
        """Requests that were heard after `heard` and admitted before `until`."""
        return [row_id for _, _, row_id in self._entered.where(until, heard)]

    def stood_before(self, row: RequestTrace, at: int) -> list[int]:
        """Requests that waited at that time and were admitted before this one (or with it, and were heard before)."""
        admits, submits, heards, ids = self._line
        mine = row.admit_ns if row.admit_ns >= 0 else FOR_EVER
        begin, end = bisect_right(admits, at), bisect_left(admits, mine)
        before = [one for one, asked in zip(ids[begin:end], submits[begin:end], strict=True) if asked <= at]
        together = range(max(begin, end), bisect_right(admits, mine))
        return before + [ids[i] for i in together if submits[i] <= at and heards[i] < row.heard_ns]

    @cached_property
    def _running(self) -> Pairs:
        return Pairs((row.admit_ns, row.over_ns(FOR_EVER), row.id) for row in self._admitted)

    @cached_property
    def _entered(self) -> Pairs:
        return Pairs((row.admit_ns, row.heard_ns, row.id) for row in self._admitted)

    @cached_property
    def _line(self) -> tuple[list[int], list[int], list[int], list[int]]:
        asked = sorted((one for one in self._admitted if one.submit_ns >= 0), key=lambda one: one.admit_ns)
        return (
            [one.admit_ns for one in asked],
            [one.submit_ns for one in asked],
            [one.heard_ns for one in asked],
            [one.id for one in asked],
        )

    @cached_property
    def _admitted(self) -> list[RequestTrace]:
        return [row for row in self._recording.requests.values() if row.admit_ns >= 0]

    # ------------------------------------------------------------ what held the engine

    def changes_of_cause(self, after: int, before: int) -> list[int]:
        """Places in `waits`, between these two, of the records with another cause than the one before."""
        changes = self._changes
        return changes[bisect_right(changes, after) : bisect_left(changes, before)]

    @cached_property
    def _changes(self) -> list[int]:
        causes = self._recording.waits["cause"]
        return [0, *(place for place in range(1, len(causes)) if causes[place] != causes[place - 1])]

    @cached_property
    def fences(self) -> Pairs:
        """Stretches in which somebody had asked for the device, and held back who came later."""
        open_at: dict[int, int] = {}
        stretches: list[tuple[int, int]] = []
        held = 0
        for at, place, value in self._recording.controls_of("lease"):
            if value == 1:
                held = place
            elif value == 2:
                open_at.setdefault(place, at)
            elif value == 3 and place in open_at:
                stretches.append((open_at.pop(place), at))
            elif value == 0:
                gone = [held] if held in open_at else list(open_at) if not held else []
                stretches += [(open_at.pop(one), at) for one in gone]
                held = 0
        return _pairs([*stretches, *((begin, FOR_EVER) for begin in open_at.values())])

    @cached_property
    def rests(self) -> tuple[tuple[str, Pairs], ...]:
        """What may hold an engine that computes nothing, the first that applies counts: (code, stretches)."""
        return (("paused", self._paused), ("device-wait", self._away), ("slow-motion", self._slow))

    @cached_property
    def _paused(self) -> Pairs:
        of = self._recording.controls_of
        opens = [(at, True) for at, _, _ in (*of("pause"), *of("step"))]
        return _pairs(_stretches(sorted([*opens, *((at, False) for at, _, _ in of("resume"))])))

    @cached_property
    def _slow(self) -> Pairs:
        found: list[tuple[int, int]] = []
        since = -1
        for at, _, delay in self._recording.controls_of("pace"):
            if since >= 0:
                found.append((since, at))
            since = at if delay else -1
        return _pairs([*found, (since, FOR_EVER)] if since >= 0 else found)

    @cached_property
    def _away(self) -> Pairs:
        found: list[tuple[int, int]] = []
        gone = -1
        for at, _, value in self._recording.controls_of("lease"):
            if value == 0:
                gone = at
            elif value == 1 and gone >= 0:
                found.append((gone, at))
                gone = -1
        return _pairs([*found, (gone, FOR_EVER)] if gone >= 0 else found)

    # ------------------------------------------------------------ the steps

    @cached_property
    def cold(self) -> frozenset[int]:
        """Numbers of steps that were the first of their number of rows and far slower than the others like them.

        Chunks of prompts are not judged: they differ in length and place, and each is like few others.
        """
        steps = self._recording.steps
        spent: dict[int, list[int]] = {}
        firsts: dict[int, int] = {}
        for number, rows, start, end in zip(steps["step"], steps["rows"], steps["start"], steps["end"], strict=True):
            if rows not in firsts:
                firsts[rows] = number
            spent.setdefault(rows, []).append(end - start)
        usual_of_all = median([ns for some in spent.values() for ns in some]) if spent else 0
        cold = []
        for rows, (first, *others) in spent.items():
            usual = median(others) if len(others) >= 3 else usual_of_all
            if first > COLD_FACTOR * usual and first - usual > COLD_NS:
                cold.append(firsts[rows])
        return frozenset(cold)


def lookup_of(recording: Recording) -> Lookup:
    """The recording's, made anew once it has grown."""
    known = recording.lookup
    if known is None or known.clock != recording.clock:
        known = recording.lookup = Lookup(recording)
    return known


def _pairs(stretches: Iterable[tuple[int, int]]) -> Pairs:
    return Pairs((begin, end, 0) for begin, end in stretches)


def _stretches(marks: Iterable[tuple[int, bool]]) -> list[tuple[int, int]]:
    """From each opening mark to the next closing one."""
    found: list[tuple[int, int]] = []
    since = -1
    for at, opening in marks:
        if opening and since < 0:
            since = at
        elif not opening and since >= 0:
            found.append((since, at))
            since = -1
    return [*found, (since, FOR_EVER)] if since >= 0 else found

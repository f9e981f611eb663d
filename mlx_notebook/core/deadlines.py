"""When live rows must be over, the earliest first: asked at every turn, so nobody walks all rows for it."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

SPARE = 64
"""Deadlines of rows that are over may stay in the heap; so many, or as many as there are live ones."""


class Deadlines:
    """Deadlines (ns) by row id."""

    def __init__(self) -> None:
        self._live: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def add(self, row_id: int, deadline_ns: int | None) -> None:
        """A row came; None where it has all the time."""
        if deadline_ns is not None:
            self._live[row_id] = deadline_ns
            heappush(self._heap, (deadline_ns, row_id))

    def remove(self, row_id: int) -> None:
        """A row is over."""
        if self._live.pop(row_id, None) is not None and len(self._heap) > 2 * len(self._live) + SPARE:
            self._heap = [(at_ns, live) for live, at_ns in self._live.items()]
            heapify(self._heap)

    @property
    def next_ns(self) -> int | None:
        """The earliest deadline of a live row."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heappop(heap)
        return heap[0][0] if heap else None

    def passed(self, at_ns: int) -> list[int]:
        """Ids of the live rows whose deadline has passed, the earliest first; each is told once."""
        late = []
        while (first := self.next_ns) is not None and first <= at_ns:
            late.append(heappop(self._heap)[1])
        return late

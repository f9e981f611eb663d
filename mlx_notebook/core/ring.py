"""A bounded log of what happened, in columns, with an index that only grows.

One writer (the engine thread), any number of readers: views ask for everything after the index they
have and get columns, not objects. Old records are overwritten; a reader that was too slow learns
from the first index it gets that it missed some. Columns are preallocated, so that recording costs
no allocation a step.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """What a record says; `a` and `b` depend on it.

    SUBMIT: a = prompt tokens, b = answer limit; `spent_ns` is how long ago it was asked for.
    ADMIT: a = cached tokens, b = slot.
    CHUNK: a = start, b = stop of the prompt positions computed; `spent_ns` is the forward's.
    TOKEN: a = token id, b = number of the token in its row; `spent_ns` is the user's own code's, where that was slow.
    STEP: a = rows in the step, b = queued rows; `spent_ns` is the step's.
    END: a = finish reason, b = finish detail (places in their enumerations).
    REWIND: the row starts again. POLICY: the policy failed.
    LEASE: a = 1 granted, 0 given back, 2 somebody waits behind us, 3 nobody does any more; b = our place in the line.
    WAIT: why the head of the line (`row`) waits from now on: a = WaitCause, b = what it says.
    MEMORY: from now on rows may take `a` bytes at most, and kept prefixes take `b`.
    CONTROL: a = Control, b = its value; `row` where it is about one.
    SHARE: the row, which could be opened, waits from now on until row `a` has read the `b` tokens with which both
    begin; it waits for nobody any more where a = 0.
    """

    SUBMIT = 1
    ADMIT = 2
    CHUNK = 3
    TOKEN = 4
    STEP = 5
    END = 6
    REWIND = 7
    LEASE = 8
    POLICY = 9
    WAIT = 10
    CONTROL = 11
    MEMORY = 12
    SHARE = 13


class WaitCause(IntEnum):
    """Why the row at the head of the line was not admitted; in brackets: what `b` of its record is.

    NONE: nobody waits. BATCH_FULL: every place is taken (rows running). BUDGET: it does not fit beside them
    (bytes missing). FENCE: somebody else asked for the device before it. ALONE: a row runs that runs alone (its id).
    EMPTY: it runs alone itself and waits until nobody runs (rows running). STATIC: the policy lets nobody
    join (rows running). DEVICE: the device is not ours. PAUSED: somebody paused the scheduler. SHARED: a row in
    prefill reads the beginning that both share (its id).
    """

    NONE = 0
    BATCH_FULL = 1
    BUDGET = 2
    FENCE = 3
    ALONE = 4
    EMPTY = 5
    STATIC = 6
    DEVICE = 7
    PAUSED = 8
    SHARED = 9


class Control(IntEnum):
    """What a person did; in brackets: `b`. STEP (so many), PACE (rest after each step, ns), PRIORITY, LIMIT (new)."""

    PAUSE = 1
    RESUME = 2
    STEP = 3
    PACE = 4
    PRIORITY = 5
    LIMIT = 6


COLUMNS = ("at_ns", "kind", "row", "step", "a", "b", "spent_ns")


@dataclass(frozen=True, slots=True)
class Columns:
    """Records `first` to `first + length - 1`, one array a column, oldest first; `missed` older ones are gone."""

    first: int
    missed: int
    columns: dict[str, array[int]]

    def __len__(self) -> int:
        return len(self.columns["kind"])


class Ring:
    """The log. `recorded` counts all records ever made.

    Args:
        capacity: how many are kept.
    """

    def __init__(self, capacity: int = 1 << 17) -> None:
        self.capacity = capacity
        self.recorded = 0
        self._columns = {name: array("q", bytes(8 * capacity)) for name in COLUMNS}
        self._at, self._kind, self._row, self._step, self._a, self._b, self._spent = self._columns.values()

    def record(  # noqa: PLR0917 - columns, in the order of COLUMNS
        self, at_ns: int, kind: Kind, row: int = 0, step: int = 0, a: int = 0, b: int = 0, spent_ns: int = 0
    ) -> None:
        """Write one record (engine thread only)."""
        place = self.recorded % self.capacity
        self._at[place] = at_ns
        self._kind[place] = kind
        self._row[place] = row
        self._step[place] = step
        self._a[place] = a
        self._b[place] = b
        self._spent[place] = spent_ns
        # Last, so that a reader never counts a record that is half written.
        self.recorded += 1

    def since(self, index: int) -> Columns:
        """Everything recorded from `index` on that is still there; never waits."""
        end = self.recorded
        # The writer may overwrite the oldest while we copy: leave it some distance.
        oldest = max(0, end - self.capacity + self.capacity // 16)
        first = min(max(index, oldest), end)
        return Columns(
            first,
            max(0, first - max(0, index)),
            {name: self._slice(column, first, end) for name, column in self._columns.items()},
        )

    def _slice(self, column: array[int], first: int, end: int) -> array[int]:
        start, stop = first % self.capacity, end % self.capacity
        if first == end:
            return array("q")
        return column[start:stop] if start < stop else column[start:] + column[:stop]

"""The waiting line: who may be admitted next, within bounds that no policy can leave.

Rows behind the fence (asked for after somebody else wanted the device) are not candidates. A row
that was passed over as often as is allowed goes before all others, and blocks them if it does
not fit: so nobody starves, neither behind a policy nor behind a full budget. Since no more than so many may pass,
nobody looks far behind a row that does not fit either: what a turn costs does not grow with the line.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from mlx_notebook.core.policy import BuiltIn, first_come, id_of, least_work
from mlx_notebook.core.sorted_rows import SortedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mlx_notebook.core.rows import Row

MAX_PASSED_OVER = 16
"""How often a waiting row may be passed over by rows that came later."""

LOOK_AHEAD = 4 * MAX_PASSED_OVER
"""How many candidates are asked in vain before the line counts as blocked."""


class WaitingLine:
    """Queued rows, kept in the default order (priority, then first come) and in the policy's.

    Args:
        policy: the order of candidates.

    Attributes:
        changes: counts whatever could make another row the next.
        looked: counts the rows that were looked at as candidates: what deciding has cost.
    """

    def __init__(self, policy: BuiltIn = BuiltIn.PRIORITY) -> None:
        self.changes = 0
        self.looked = 0
        self._by_id: dict[int, Row] = {}
        self._default = SortedRows(first_come)
        self._ordered = SortedRows(least_work) if policy is BuiltIn.SHORTEST else self._default
        self._by_age = SortedRows(_age)
        self._urgent = SortedRows(_age)
        own = () if self._ordered is self._default else (self._ordered,)
        self._orders = (self._default, self._by_age, *own)

    def __len__(self) -> int:
        return len(self._default)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._default)

    def add(self, row: Row) -> None:
        """Put a row where it belongs."""
        self.changes += 1
        self._by_id[row.id] = row
        for rows in self._orders:
            rows.add(row)
        if must_be_next(row):
            self._urgent.add(row)

    def remove(self, row: Row) -> bool:
        """Take a row out; False if it was not there."""
        if self._by_id.pop(row.id, None) is None:
            return False
        self.changes += 1
        for rows in (*self._orders, self._urgent):
            rows.remove(row)
        return True

    def moved(self, row: Row) -> None:
        """After a row's priority or limit changed; nothing happens if it does not wait."""
        if self.remove(row):
            self.add(row)

    def ids(self) -> list[int]:
        """The rows' ids in the default order; any thread may ask."""
        return [row.id for row in self._default.copy()]

    def named(self, chosen: Sequence[object]) -> list[Row]:
        """A user policy's answer as rows: unknown ids are ignored, so is a second naming."""
        ids = dict.fromkeys(map(id_of, chosen))
        return [self._by_id[row_id] for row_id in ids if row_id is not None and row_id in self._by_id]

    def candidates(self, named: Sequence[Row] | None = None, fence: int | None = None) -> Iterator[Row]:
        """Rows that may be admitted, best first.

        Args:
            named: what a user's policy named, if there is one; the others follow in the default order.
            fence: rows from this sequence number on may not; None for no fence.
        """
        oldest = next(iter(self._by_age), None)
        if oldest is None or (fence is not None and oldest.seq >= fence):
            return
        before = set() if named is None else {row.id for row in named}
        rest = self._ordered if named is None else self._default
        for row in self._urgent:
            self.looked += 1
            if fence is None or row.seq < fence:
                yield row
        for row, is_rest in chain(((row, False) for row in named or ()), ((row, True) for row in rest)):
            self.looked += 1
            waits = row.id in self._by_id and not must_be_next(row)
            if waits and (fence is None or row.seq < fence) and not (is_rest and row.id in before):
                yield row

    def head(self, named: Sequence[Row] | None = None, fence: int | None = None) -> Row | None:
        """The first candidate."""
        return next(self.candidates(named, fence), None)

    def admit(
        self,
        candidates: Iterable[Row],
        fits: Callable[[Row], bool],
        holds_back: Callable[[Row], bool] = lambda _row: False,
    ) -> Row | None:
        """Take the first candidate that fits out of the line; those it passes over remember it.

        A candidate for which `holds_back` is true is never passed over, whether it fits or not.
        """
        for asked, row in enumerate(candidates, 1):
            if fits(row):
                self.remove(row)
                self._pass_over(row)
                return row
            if must_be_next(row) or holds_back(row) or asked == LOOK_AHEAD:
                return None
        return None

    def _pass_over(self, admitted: Row) -> None:
        for row in self._by_age:
            if row.seq > admitted.seq:
                break
            row.passed_over += 1
            if row.passed_over == MAX_PASSED_OVER:
                self._urgent.add(row)


def _age(row: Row) -> tuple[int, int]:
    return row.seq, 0


def must_be_next(row: Row) -> bool:
    """Whether the row was passed over as often as is allowed."""
    return row.passed_over >= MAX_PASSED_OVER

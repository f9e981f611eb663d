"""The waiting line: who may be admitted next, within bounds that no policy can leave.

Rows behind the fence (asked for after somebody else wanted the device) are not candidates. A row
that was passed over as often as is allowed goes before all others, and blocks them if it does
not fit: so nobody starves, neither behind a policy nor behind a full budget.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from mlx_notebook.core.policy import BuiltIn, complete, first_come, order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mlx_notebook.core.rows import Row

MAX_PASSED_OVER = 16
"""How often a waiting row may be passed over by rows that came later."""


class WaitingLine:
    """Queued rows, kept in the default order (priority, then first come)."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def add(self, row: Row) -> None:
        """Put a row where it belongs."""
        insort(self._rows, row, key=first_come)

    def remove(self, row: Row) -> bool:
        """Take a row out; False if it was not there."""
        if row not in self._rows:
            return False
        self._rows.remove(row)
        return True

    def resort(self) -> None:
        """After a row's priority changed."""
        self._rows.sort(key=first_come)

    def ids(self) -> list[int]:
        """The rows' ids in the default order; any thread may ask."""
        return [row.id for row in list(self._rows)]

    def candidates(
        self, policy: BuiltIn, chosen: Sequence[object] | None = None, fence: int | None = None
    ) -> list[Row]:
        """Rows that may be admitted, best first.

        Args:
            policy: the order.
            chosen: a user policy's answer, if there is one; it goes before the order.
            fence: rows from this sequence number on may not; None for no fence.
        """
        ahead = [row for row in self._rows if fence is None or row.seq < fence]
        urgent = sorted((row for row in ahead if must_be_next(row)), key=lambda row: row.seq)
        if chosen is not None:
            rest = complete(chosen, ahead)
        else:
            rest = ahead if policy is not BuiltIn.SHORTEST else order(policy, ahead)
        return [*urgent, *(row for row in rest if not must_be_next(row))] if urgent else rest

    def admit(
        self,
        candidates: Iterable[Row],
        fits: Callable[[Row], bool],
        holds_back: Callable[[Row], bool] = lambda _row: False,
    ) -> Row | None:
        """Take the first candidate that fits out of the line; those it passes over remember it.

        A candidate for which `holds_back` is true is never passed over, whether it fits or not.
        """
        for row in candidates:
            if fits(row):
                self._rows.remove(row)
                for other in self._rows:
                    if other.seq < row.seq:
                        other.passed_over += 1
                return row
            if must_be_next(row) or holds_back(row):
                return None
        return None


def must_be_next(row: Row) -> bool:
    """Whether the row was passed over as often as is allowed."""
    return row.passed_over >= MAX_PASSED_OVER

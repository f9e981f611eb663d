"""Rows kept in the order of a key: put in and taken out by bisection, however many there are."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlx_notebook.core.rows import Row

    Key = tuple[int, int]


class SortedRows:
    """Rows by a key that no two of them share.

    A row is found by the key that it had when it was added: one whose key changes is taken out and added again.
    """

    def __init__(self, key: Callable[[Row], Key]) -> None:
        self._key = key
        self._rows: list[Row] = []
        self._keys: list[Key] = []
        self._key_of: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __contains__(self, row: Row) -> bool:
        return row.id in self._key_of

    def add(self, row: Row) -> None:
        """Put a row where it belongs."""
        key = self._key_of[row.id] = self._key(row)
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self._rows.insert(place, row)

    def remove(self, row: Row) -> bool:
        """Take a row out; False if it was not there."""
        key = self._key_of.pop(row.id, None)
        if key is None:
            return False
        place = bisect_left(self._keys, key)
        del self._keys[place], self._rows[place]
        return True

    def copy(self) -> list[Row]:
        """The rows as they stand now; any thread may ask."""
        return self._rows.copy()

"""Pages of the pool: which of them a row holds, and a row's columns in and out of them.

All layers share one numbering: page `p` of every layer belongs to the same row. A page holds BLOCK columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlx_notebook.core.projection import BLOCK

SCRATCH = 0
"""The page that is nobody's: idle places of a step write there."""


@dataclass(slots=True)
class Pages:
    """Free and used pages; growing doubles their number.

    Attributes:
        total: pages that exist.
        free: those that nobody holds.
    """

    total: int = 0
    free: list[int] = field(default_factory=list)

    def grow_to(self, wanted: int) -> bool:
        """Make at least so many pages exist; whether that changed anything."""
        if wanted <= self.total:
            return False
        size = max(wanted, 2 * self.total)
        self.free += range(max(self.total, SCRATCH + 1), size)
        self.total = size
        return True

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return max(0, self.total - 1 - len(self.free))

    def take(self, count: int) -> list[int]:
        """So many pages; `grow_to` must have made room."""
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Pages that nobody needs any more. What they hold stays finite, and is written before it is read."""
        self.free += pages


def pages_for(columns: int) -> int:
    """How many pages hold so many columns."""
    return -(-columns // BLOCK)

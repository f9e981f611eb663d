"""Pages of the pool: which of them a row holds, and a row's columns in and out of them.

All layers share one numbering: page `p` of every layer belongs to the same row. A page holds BLOCK columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlx_notebook.core.projection import BLOCK

SCRATCH = 0
"""The page that is nobody's: idle places of a step write there."""

STEP = 16
"""Pages that are added at least: growing copies all of them, and steps are compiled anew for each size."""


@dataclass(slots=True)
class Pages:
    """Free and used pages.

    Attributes:
        total: pages that exist.
        free: those that nobody holds.
    """

    total: int = 0
    free: list[int] = field(default_factory=list)

    def size_for(self, count: int) -> int:
        """How many pages there must be for so many to be free: as many as there are, or a quarter more at least."""
        exist = max(self.total, SCRATCH + 1)
        missing = count - len(self.free)
        return self.total if missing <= 0 else max(exist + missing, self.total + max(STEP, self.total // 4))

    def grow_to(self, size: int) -> None:
        """So many pages exist now."""
        self.free += range(max(self.total, SCRATCH + 1), size)
        self.total = size

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return max(0, self.total - 1 - len(self.free))

    def take(self, count: int) -> list[int]:
        """So many pages; there must be room."""
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give_back(self, pages: list[int]) -> None:
        """Pages that nobody needs any more. What they hold stays finite, and is written before it is read."""
        self.free += pages


def pages_for(columns: int) -> int:
    """How many pages hold so many columns."""
    return -(-columns // BLOCK)

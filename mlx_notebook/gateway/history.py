"""What happened, as NumPy columns: the ring of one gateway for whoever wants to compute with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlx_notebook.core.ring import Ring


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Records of a gateway's ring, oldest first; ask for more with `events(after=batch.next)`.

    Attributes:
        first: index of the first record here.
        next: index after the last one.
        missed: records asked for that were overwritten already.
        columns: name to int64 array, all of one length: `at_ns` (monotonic), `kind` (see
            `mlx_notebook.core.ring.Kind`), `row`, `step`, `a`, `b` (by kind), `spent_ns`.
    """

    first: int
    next: int
    missed: int
    columns: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return self.next - self.first

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        return self.columns[name]


def events_since(ring: Ring, after: int) -> EventBatch:
    """Everything recorded from index `after` on that is still there; never waits.

    Raises:
        TypeError, ValueError: `after` is no index.
    """
    import numpy as np

    from mlx_notebook.core.options import as_int

    taken = ring.since(as_int("after", after, 0, None, "a whole number from 0"))
    columns = {name: np.frombuffer(column, dtype=np.int64).copy() for name, column in taken.columns.items()}
    return EventBatch(taken.first, taken.first + len(taken), taken.missed, columns)

"""What a host (the notebook) may tell the gateway: which execution is running, and how to show things.

A plain script sets none of these. Imports point from the notebook to the gateway, so the notebook
fills these in when it is loaded and takes them back when it is unloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.gateway.frames.progress import Meter
    from mlx_notebook.gateway.handle import Handle


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of one cell: `cell` stays the same when the cell is run again, `run` does not."""

    cell: str
    run: str

    def follows(self, other: Execution) -> bool:
        """Whether this is another run of the same cell."""
        return self.cell == other.cell and self.run != other.run


@dataclass(slots=True)
class Hooks:
    """The host's callables; each None where there is no host.

    Attributes:
        execution: which cell run the calling thread belongs to.
        interrupted: told after an interrupt: rows cancelled by it, and rows that still run.
        show: displays a handle's view again.
        progress: makes what shows a long call's progress on the calling thread; None where nothing may be shown live.
    """

    execution: Callable[[], Execution | None] | None = None
    interrupted: Callable[[Sequence[Handle], Sequence[Handle]], None] | None = None
    show: Callable[[Handle], None] | None = None
    progress: Callable[[], Meter | None] | None = None


hooks = Hooks()


def current_execution() -> Execution | None:
    """The cell run that the calling thread belongs to; None outside a notebook."""
    return hooks.execution() if hooks.execution is not None else None

"""Which rows belong to which cell: running a cell again, interrupts, and failures that nobody saw.

Works on the handles that are not over, as the gateway keeps them; nothing is kept here but the failed
handles that the next magic has to mention.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.printing import numbers, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.hooks import Execution

_MOST_FAILURES = 50
_failed: deque[Handle] = deque(maxlen=_MOST_FAILURES)


def cancel_earlier_runs(execution: Execution) -> None:
    """Cancel what earlier runs of this cell left unfinished, and say so."""
    stale = [
        handle
        for handle in registry.live_handles()
        if handle.execution is not None
        and handle.execution.cell == execution.cell
        and handle.execution.run != execution.run
    ]
    if cancel(stale):
        say(f"This cell runs again: {numbers(stale)} of its last run cancelled.")


def cancel(handles: Sequence[Handle]) -> list[Handle]:
    """Ask for the end of each; those that were not over yet."""
    return [handle for handle in handles if handle.cancel()]


def say_interrupted(cancelled: Sequence[Handle], running: Sequence[Handle]) -> None:
    """After an interrupt: what it ended, and what goes on."""
    if cancelled:
        say(f"Interrupted: {numbers(cancelled)} cancelled.")
    say_running(running)


def say_running(running: Sequence[Handle]) -> None:
    """What goes on, and how to end that."""
    if running:
        one = len(running) == 1
        what = numbers(running)
        end = f"%mlxcancel {running[0].id}" if one else "%mlxcancel all"
        say(f"{what[0].upper()}{what[1:]} still {'runs' if one else 'run'} ({end} to end {'it' if one else 'them'}).")


# ---------------------------------------------------------------- failures


def remember_failure(handle: Handle) -> None:
    """A done-callback: called on the engine thread, it only notes the handle."""
    if handle.status is RowStatus.FAILED:
        _failed.append(handle)


def forget_failure(handle: Handle) -> None:
    """The user has seen this one."""
    if handle in _failed:
        _failed.remove(handle)


def mention_failures() -> None:
    """Say once which rows failed since the last magic."""
    while _failed:
        handle = _failed.popleft()
        say(f"Request {handle.id} failed meanwhile: {handle.progress().error} (%mlxshow {handle.id})")

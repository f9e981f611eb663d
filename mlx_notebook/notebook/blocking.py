"""Waiting for rows in the main thread, which prints what comes; an interrupt ends what the cell began."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlx_notebook.bell import Latch
from mlx_notebook.errors import Cancelled, MlxNotebookError
from mlx_notebook.gateway.waiting import interrupted, refuse_to_block
from mlx_notebook.notebook.cell_rows import forget_failure
from mlx_notebook.notebook.printing import in_one_line, write
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlx_notebook.gateway.handle import Handle

TICK_S = 0.075
"""Often enough to look live, seldom enough for front ends that drop floods of messages."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, an interrupt cancels what this execution submitted, and goes on to the shell as one line."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupted()
        raise in_one_line(interrupt) from None


def follow(handle: Handle, tick: Callable[[], None] | None = None) -> None:
    """Wait until the row is over, calling `tick` now and then and once at the end."""
    if not handle.done():
        refuse_to_block(f"waiting for request {handle.id}")
    over = Latch()
    handle.add_done_callback(lambda _handle: over.set())
    while not over.wait(TICK_S):
        if tick is not None:
            tick()
    if tick is not None:
        tick()


def print_text(handle: Handle) -> None:
    """Wait for the row, printing its text as it comes."""
    position = 0
    last = "\n"

    def tick() -> None:
        nonlocal position, last
        delta = handle.text_from(position)
        if delta:
            position += len(delta)
            write(printable(delta))
            last = delta[-1]

    try:
        follow(handle, tick)
    finally:
        if last != "\n":
            write("\n")


def raise_if_unfinished(handle: Handle) -> None:
    """For a row that is over: raise RowFailed, Cancelled or GatewayDead if that is how it ended."""
    error = handle.exception()
    if error is None:
        return
    forget_failure(handle)
    raise shown_briefly(error)


def shown_briefly(error: MlxNotebookError) -> MlxNotebookError:
    """The error without our frames; what the failing code's own traceback said stands above it."""
    text = "" if isinstance(error, Cancelled) else str(getattr(error, "traceback_text", ""))
    in_one_line(error)
    if text:
        (line,) = error._render_traceback_()  # type: ignore[attr-defined]
        error._render_traceback_ = lambda: [printable(text).rstrip(), line]  # type: ignore[attr-defined]
    return error

"""Printing in a cell: what we say and what rows say, and errors in one line.

Only the main thread prints, and only in a running cell: output of other threads lands in whichever
cell runs last, or nowhere.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.handle import Handle


def write(text: str) -> None:
    """Write to the cell's standard output at once, whatever characters the terminal knows."""
    _put(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """A line from us to the user. Not flushed: lines said in a row are one output."""
    _put(printable(text) + "\n")


def _put(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


AnyError = TypeVar("AnyError", bound=BaseException)


def in_one_line(error: AnyError) -> AnyError:
    """The same error; IPython will show its type and message instead of our frames."""
    line = f"{type(error).__name__}: {printable(str(error))}" if str(error) else type(error).__name__
    error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
    return error


def numbers(handles: Sequence[Handle]) -> str:
    """The handles by number: "request 3", "requests 3 and 4", "requests 1, 2 and 3"."""
    ids = [str(handle.id) for handle in sorted(handles, key=lambda handle: handle.id)]
    if len(ids) == 1:
        return f"request {ids[0]}"
    return f"requests {', '.join(ids[:-1])} and {ids[-1]}"

"""`%config MlxNotebook`, and what its answer means for one execution.

widget   a live view in the page; the cell returns at once
print    the cell blocks and the main thread prints the text as it comes (terminals)
batch    the cell blocks and leaves one finished output (nbconvert, papermill, nbval)
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from traitlets import Enum
from traitlets.config import Configurable

from mlx_notebook.notebook.execution import parent_message

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class Mode(StrEnum):
    """How answers are shown."""

    WIDGET = "widget"
    PRINT = "print"
    BATCH = "batch"


class MlxNotebook(Configurable):
    """Settings of the extension."""

    mode = Enum(
        ["auto", *map(str, Mode)],
        "auto",
        help="How answers are shown. widget: a live view, and the cell returns at once. "
        "print: the cell blocks and prints the text as it comes. batch: the cell blocks and leaves one finished "
        "output. auto: what suits the front end.",
    ).tag(config=True)


def mode_of(shell: InteractiveShell, settings: MlxNotebook) -> Mode:
    """How to show what the running execution asks for."""
    if settings.mode != "auto":
        return Mode(settings.mode)
    if getattr(shell, "kernel", None) is None:
        return Mode.PRINT
    # Tools that run a notebook without a reader are those that refuse to ask one for input.
    if (parent_message(shell).get("content") or {}).get("allow_stdin") is False:
        return Mode.BATCH
    return Mode.WIDGET

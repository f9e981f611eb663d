"""The live line of `map` and `compare` in a page: one output that updates itself and ends as the closing line.

No widget: the cell blocks and its own thread draws, a few times a second, so display updates do, in every front end.
"""

from __future__ import annotations

import uuid
from html import escape
from typing import TYPE_CHECKING

from mlx_notebook.gateway.frames.progress import Silent, Terminal
from mlx_notebook.notebook.settings import Mode

if TYPE_CHECKING:
    from mlx_notebook.gateway.frames.progress import Meter, State


def meter_of(mode: Mode) -> Meter:
    """What shows progress in this mode. A batch tool's output has to be the same each time, so nothing live there."""
    if mode is Mode.WIDGET:
        return PageMeter()
    return Terminal() if mode is Mode.PRINT else Silent()


class PageMeter:
    """A bar and a line in the running cell's output."""

    def __init__(self) -> None:
        self._display_id = f"mlx-notebook-{uuid.uuid4().hex}"
        self._shown = False

    def show(self, state: State) -> None:
        bar = f'<progress max="{state.total}" value="{state.done}" aria-label="rows done"></progress> '
        self._publish(str(state), bar + escape(str(state)))

    def close(self, line: str) -> None:
        self._publish(line, escape(line))

    def _publish(self, plain: str, html: str) -> None:
        from IPython.display import publish_display_data

        data = {"text/plain": plain, "text/html": f'<div class="mlx-notebook">{html}</div>'}
        publish_display_data(data, {}, transient={"display_id": self._display_id}, update=self._shown)
        self._shown = True

"""The timeline: every row of a run, step by step, tied to its text. `js/src/timeline.ts` is its twin."""

from __future__ import annotations

import traitlets

from mlx_notebook.notebook.run_view import RunView
from mlx_notebook.notebook.run_widget import STATIC, RunWidget


class TimelineWidget(RunWidget):
    """The widget of one timeline."""

    _esm = STATIC / "timeline.js"
    _css = STATIC / "timeline.css"


class Timeline(RunView):
    """A timeline of a run, live or loaded. `selected` holds the ids of up to two rows, the second to compare.

    `brush` holds the first and last step that are marked, or nothing.
    """

    view = "timeline"
    wants = ("requests", "titles", "steps", "chunks", "controls", "tokens", "texts")
    widget_class = TimelineWidget
    brush = traitlets.List(traitlets.Int())

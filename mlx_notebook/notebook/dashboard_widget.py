"""The dashboard: what a gateway's batch does now, and what can be done about it. `js/src/dashboard.ts` is its twin."""

from __future__ import annotations

from mlx_notebook.notebook.run_view import RunView
from mlx_notebook.notebook.run_widget import STATIC, RunWidget


class DashboardWidget(RunWidget):
    """The widget of one dashboard."""

    _esm = STATIC / "dashboard.js"
    _css = STATIC / "dashboard.css"


class Dashboard(RunView):
    """A live dashboard of a run; shown by being a cell's last value. `selected` holds the chosen row's id.

    Closing its last view resumes a gateway that was paused. It freezes into a picture and a table when
    its gateway closes.
    """

    view = "dashboard"
    wants = ("requests", "titles", "steps", "chunks", "controls")
    widget_class = DashboardWidget
    can_resume = True

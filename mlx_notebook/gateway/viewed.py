"""The part of a gateway that makes views of it. Views are fetched by name, not imported."""

from __future__ import annotations

import importlib
from typing import Any


class Viewed:
    """Inherited by Gateway."""

    def dashboard(self) -> Any:
        """A live dashboard: places, rows, memory; a row can be cancelled, moved up, extended; the scheduler paused.

        Show it by making it a cell's last value. It has `to_html(path=None)` and a `selected` trait (row ids).
        Closing it resumes a paused scheduler.
        """
        return _views().dashboard_of(self)

    def timeline(self, rows: Any = None, *, last: int | None = None) -> Any:
        """A timeline: steps across, rows down, each token tied to its word; live or of what has been.

        Args:
            rows: only these: handles or their numbers, one or many; None for all that the log holds.
            last: only the last so many requests.

        Show it by making it a cell's last value. It has `to_html(path=None)`, a `selected` trait (row ids) and a
        `brush` trait (first and last marked step).
        """
        return _views().timeline_of(self, rows, last)

    def stream(self, handles: Any) -> Any:
        """A live view of some handles' answers, one or many side by side, with `to_html(path=None)` and `selected`."""
        return _views().stream_of(handles)


def _views() -> Any:
    return importlib.import_module("mlx_notebook.notebook.views")

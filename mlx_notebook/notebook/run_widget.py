"""The widget behind the dashboard and the timeline: traits and a script. What fills it is in `run_view.py`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from mlx_notebook.notebook import frontend

if TYPE_CHECKING:
    from collections.abc import Mapping

STATIC = pathlib.Path(__file__).parent.parent / "static"


class RunWidget(anywidget.AnyWidget):
    """Only the publisher's thread sets `snapshot`; `selected` and `brush` are the page's and the user's."""

    snapshot = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    brush = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        frontend.let_comms_use_subshell(self)
        self.on_msg(self._hello)

    @staticmethod
    def _hello(_widget: object, content: Mapping[str, Any], _buffers: object) -> None:
        if content.get("kind") == "hello":
            frontend.said_hello()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.snapshot['title']!r})"

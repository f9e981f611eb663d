"""A stream view without a page: what leaves is recorded, and the page's messages come as its comm would bring them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.notebook.stream_widget import StreamView

WIDGET = "application/vnd.jupyter.widget-view+json"

if TYPE_CHECKING:
    from mlx_notebook.notebook.run_view import RunView
    from tests.notebook.fake_rows import FakeRow


class Wire:
    """Everything that leaves: comm messages and display updates, in order; and a clock to turn.

    `order` names all that left: messages by their kind, outputs as "display" or "update" of a "widget" or of "text".
    """

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.displays: list[tuple[dict[str, Any], dict[str, Any], str, bool]] = []
        self.order: list[str] = []
        self.followed = 0
        self.spent = 0
        self.now = 1000.0

    def publisher(self) -> Wire:
        return self

    def follow(self, _view: object) -> None:
        self.followed += 1

    def spend(self, messages: int = 1) -> None:
        self.spent += messages

    def monotonic(self) -> float:
        return self.now

    def custom(self) -> list[dict[str, Any]]:
        """Custom messages sent to the page."""
        return [
            data["content"] for kind, data in self.messages if kind == "comm_msg" and data.get("method") == "custom"
        ]

    def snapshots(self) -> list[dict[str, Any]]:
        """Values of the snapshot trait sent since the widget was made."""
        return [
            data["state"]["snapshot"]
            for kind, data in self.messages
            if "snapshot" in data.get("state", {}) and kind == "comm_msg"
        ]


def tell(to: StreamView | RunView, /, **content: Any) -> None:
    """A message of the page, as the comm would bring it."""
    to.widget._handle_msg({"content": {"data": {"method": "custom", "content": content}}, "buffers": []})


def shown(*rows: FakeRow, **options: Any) -> StreamView:
    """A view that a page answered and draws."""
    view = StreamView(rows, title="smollm2", **options)
    view.display()
    tell(view, kind="hello", page="p1")
    tell(view, kind="view", page="p1", view="v1", on=True)
    assert view.tick()
    return view

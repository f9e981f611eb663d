"""What front ends other than JupyterLab ask of messages and outputs, held by every view.

VS Code's widget manager (vscode-jupyter, src/webviews/webview-side/ipywidgets/kernel/manager.ts) makes a widget's
model when its comm opens, and renders it once a `display_data` or an `execute_result` with it has come: an
`update_display_data` alone would wait for ever. Its page can send no binary message. That no message of ours has
buffers is asserted by the `wire` of all tests here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.stream_widget import StreamView
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.notebook.fake_rows import FakeRow
from tests.notebook.fake_run import FakeFeed
from tests.notebook.streaming import WIDGET, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.notebook.streaming import Wire

    View = Dashboard | Timeline | StreamView
    Made = tuple[View, Callable[[], None]]


def stream() -> Made:
    row = FakeRow()
    return StreamView([row], title="m"), row.finish


def run(kind: type[Dashboard | Timeline]) -> Callable[[], Made]:
    def make() -> Made:
        feed = FakeFeed()
        return kind(feed), lambda: setattr(feed, "is_over", True)

    return make


VIEWS = pytest.mark.parametrize(
    "make", [stream, run(Dashboard), run(Timeline)], ids=["stream", "dashboard", "timeline"]
)


def outputs(wire: Wire) -> list[str]:
    return [one for one in wire.order if one != "comm_msg"]


@VIEWS
def test_a_widget_opens_before_it_is_displayed_and_closes_after_it_was_replaced(
    wire: Wire, make: Callable[[], Made]
) -> None:
    view, end = make()
    view.display()
    tell(view, kind="hello", page="1")
    tell(view, kind="view", page="1", view="1/1", on=True)
    view.tick()
    end()
    view.tick()
    tell(view, kind="gone", view="1/1")
    view.tick()
    opened = ["comm_open"] * wire.order.count("comm_open")
    closed = ["comm_close"] * len(opened)  # the widget, and the layout that came with it
    assert outputs(wire) == [*opened, "display widget", "update text", *closed]


@VIEWS
def test_an_update_brings_back_only_a_widget_that_was_displayed(
    wire: Wire, make: Callable[[], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend, "HELLO_S", -1.0)
    view, _ = make()
    view.display()
    view.tick()
    tell(view, kind="hello", page="1")
    view.tick()
    assert [one for one in outputs(wire) if one != "comm_open"] == ["display widget", "update text", "update widget"]


@VIEWS
def test_where_no_page_answers_nothing_is_ever_sent_to_one(wire: Wire, make: Callable[[], Made]) -> None:
    frontend.kept_silent()
    view, end = make()
    view.display()
    view.tick()
    end()
    view.tick()
    assert set(wire.order) <= {"display text", "update text"}


@VIEWS
def test_a_notebook_that_is_not_ipythons_gets_the_widget_as_a_bundle(wire: Wire, make: Callable[[], Made]) -> None:
    view, end = make()
    data, _ = view._repr_mimebundle_()
    assert data[WIDGET]["model_id"] == view.widget.model_id
    assert (wire.followed, wire.displays) == (0, [])
    tell(view, kind="hello", page="1")
    tell(view, kind="view", page="1", view="1/1", on=True)
    assert wire.followed == 2
    view.tick()
    assert "comm_msg" in wire.order
    end()
    view.tick()
    assert view.widget.snapshot["final"]
    assert wire.displays == []

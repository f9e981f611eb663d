"""The live view without a page: a comm that records, a display that records, and ticks by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.freeze import SELECTION_S
from mlx_notebook.notebook.stream_widget import SNAPSHOT_S, STATIC_TICK_S, StreamView
from tests.notebook.fake_rows import FakeRow
from tests.notebook.streaming import WIDGET, shown, tell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.notebook.streaming import Wire


def test_a_view_is_displayed_once_with_a_repr_that_never_changes(wire: Wire) -> None:
    view = StreamView([FakeRow()], title="smollm2")
    view.display()
    [(data, _, display_id, update)] = wire.displays
    assert WIDGET in data
    assert data["text/plain"] == repr(view) == "<live view of 1 row of smollm2>"
    assert not update
    assert display_id
    assert wire.followed == 1
    assert repr(StreamView([FakeRow(), FakeRow()], title="")) == "<live view of 2 rows>"
    assert repr(view.widget) == "StreamWidget(1 rows)"


def test_a_first_render_gets_the_whole_then_deltas_with_numbers(wire: Wire) -> None:
    row = FakeRow("Tell me about a fox")
    row.say("A")
    view = shown(row)
    [snapshot] = wire.snapshots()
    assert snapshot["seq"] == 0
    assert snapshot["rows"][0]["text"] == "A"
    assert snapshot["rows"][0]["prompt"] == "Tell me about a fox"
    row.say(" fox")
    assert view.tick()
    assert view.tick()  # nothing new, nothing sent
    row.say(" runs")
    assert view.tick()
    assert wire.custom() == [
        {"kind": "delta", "seq": 1, "rows": [{"i": 0, "add": " fox", "generated": 2}]},
        {"kind": "delta", "seq": 2, "rows": [{"i": 0, "add": " runs", "generated": 3}]},
    ]


def test_one_message_a_tick_carries_all_rows(wire: Wire) -> None:
    rows = [FakeRow() for _ in range(32)]
    view = shown(*rows)
    for row in rows:
        row.say("x")
    spent = wire.spent
    view.tick()
    [delta] = wire.custom()
    assert len(delta["rows"]) == 32
    assert wire.spent == spent + 1


def test_a_resync_brings_a_snapshot_even_if_nothing_changed(wire: Wire) -> None:
    view = shown(FakeRow())
    for _ in range(2):
        followed = wire.followed
        tell(view, kind="resync")
        assert wire.followed == followed + 1
        view.tick()
    counts = [snapshot["count"] for snapshot in wire.snapshots()]
    assert counts == [1, 2, 3]


def test_hidden_views_get_nothing_and_the_whole_when_they_come_back(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    tell(view, kind="visible", view="v1", on=False)
    row.say("unseen")
    view.tick()
    assert wire.custom() == []
    tell(view, kind="visible", view="v1", on=True)
    view.tick()
    assert wire.snapshots()[-1]["rows"][0]["text"] == "unseen"


def test_one_shown_view_of_two_is_enough(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    tell(view, kind="view", page="p1", view="v2", on=True)
    tell(view, kind="visible", view="v1", on=False)
    view.tick()
    row.say("x")
    view.tick()
    assert len(wire.custom()) == 1


def test_the_truth_is_synced_now_and_then_less_often_the_longer_it_is(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    wire.now += SNAPSHOT_S
    row.say("x" * 1_000_000)
    view.tick()
    assert len(wire.snapshots()) == 2
    wire.now += SNAPSHOT_S
    view.tick()
    assert len(wire.snapshots()) == 2
    wire.now += 1_000_000 / 50_000
    view.tick()
    assert len(wire.snapshots()) == 3


def test_cancel_reaches_the_rows_and_is_acknowledged_at_once(wire: Wire) -> None:
    rows = [FakeRow(), FakeRow(), FakeRow()]
    view = shown(*rows)
    tell(view, kind="cancel", ask=5, rows=[0, 2])
    assert [row.cancels for row in rows] == [1, 0, 1]
    assert wire.custom() == [{"kind": "ack", "ask": 5}]


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "cancel", "ask": 1, "rows": [99]},
        {"kind": "cancel"},
        {"kind": "view"},
        {},
        {"kind": "visible", "view": []},
    ],
)
def test_no_message_of_a_page_can_raise(wire: Wire, content: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    row = FakeRow()
    view = shown(row)
    tell(view, **content)
    row.say("x")
    assert view.tick()
    assert wire.custom()
    assert all("not understood" in record.message for record in caplog.records)


def test_the_end_freezes_the_display_and_closes_the_widget_once_the_page_has_it(wire: Wire) -> None:
    row, frozen = FakeRow(), []
    view = shown(row, metadata={"seed": 7}, on_frozen=lambda: frozen.append(True))
    row.say("A fox.")
    row.finish()
    assert not view.tick()
    assert wire.snapshots()[-1]["final"]
    (data, metadata, display_id, update) = wire.displays[-1]
    assert data["text/plain"] == "A fox."
    assert metadata == {"mlx_notebook": {"seed": 7}}
    assert update
    assert display_id == wire.displays[0][2]
    assert frozen == [True]
    assert view.widget.comm is not None  # the page still shows it
    followed = wire.followed
    tell(view, kind="gone", view="v1")
    assert wire.followed == followed + 1
    assert not view.tick()
    assert view.widget.comm is None
    assert [kind for kind, _ in wire.messages[-2:]] == ["comm_close", "comm_close"]  # and its layout
    assert len(wire.displays) == 2


def test_a_selection_holds_the_freeze_but_not_for_ever(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    tell(view, kind="selection", view="v1", active=True)
    row.finish()
    assert view.tick()
    assert view.tick()
    assert len(wire.displays) == 1
    tell(view, kind="selection", view="v1", active=False)
    assert not view.tick()
    assert len(wire.displays) == 2

    other = FakeRow()
    held = shown(other)
    tell(held, kind="selection", view="v1", active=True)
    other.finish()
    assert held.tick()
    wire.now += SELECTION_S
    assert not held.tick()


@pytest.mark.usefixtures("wire")
def test_a_reloaded_page_keeps_its_widget_since_no_update_reaches_it() -> None:
    row = FakeRow()
    view = shown(row)
    tell(view, kind="selection", view="v1", active=True)  # in the page that is about to go
    tell(view, kind="hello", page="p2")
    row.finish()
    assert not view.tick()
    tell(view, kind="gone", view="v1")
    tell(view, kind="view", page="p2", view="w1", on=True)
    assert not view.tick()
    assert view.widget.comm is not None
    tell(view, kind="gone", view="w1")  # the reader cleared the output
    assert not view.tick()
    assert view.widget.comm is None


@pytest.mark.usefixtures("wire")
def test_a_reload_whose_view_is_not_drawn_yet_keeps_the_widget_too() -> None:
    row = FakeRow()
    view = StreamView([row], title="m")
    view.display()
    tell(view, kind="hello", page="p1")
    tell(view, kind="hello", page="p2")
    row.finish()
    assert not view.tick()
    assert view.widget.comm is not None


def test_keep_leaves_the_widget_and_still_answers_a_page(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row, keep=True)
    row.say("kept")
    row.finish()
    assert not view.tick()
    assert len(wire.displays) == 1
    tell(view, kind="view", page="p2", view="w1", on=True)
    assert not view.tick()
    assert wire.snapshots()[-1]["rows"][0]["text"] == "kept"
    assert wire.snapshots()[-1]["final"]
    view.stop()
    assert len(wire.displays) == 1
    assert wire.snapshots()[-1]["final"]


def test_where_no_page_answers_the_display_is_updated_as_text(wire: Wire) -> None:
    row = FakeRow()
    view = StreamView([row], title="m")
    view.display()
    row.say("A")
    assert view.tick()
    assert len(wire.displays) == 1
    wire.now += frontend.HELLO_S + 0.1
    assert view.tick()
    assert frontend.state() == "no"
    assert wire.displays[-1][0]["text/plain"] == "A\n[answering, 1 token so far]"
    assert wire.displays[-1][3]
    row.say(" fox")
    assert view.tick()  # too soon for another update
    assert len(wire.displays) == 2
    wire.now += STATIC_TICK_S
    assert view.tick()
    assert len(wire.displays) == 3
    wire.now += STATIC_TICK_S
    assert view.tick()  # nothing new to show
    assert len(wire.displays) == 3
    row.finish()
    assert not view.tick()
    assert wire.displays[-1][0]["text/plain"] == "A fox"


def test_after_a_no_the_next_view_makes_no_widget(wire: Wire) -> None:
    frontend.kept_silent()
    row = FakeRow()
    view = StreamView([row], title="m")
    view.display()
    [(data, _, _, update)] = wire.displays
    assert WIDGET not in data
    assert not update
    assert wire.messages == []
    row.say("x")
    row.finish()
    assert not view.tick()
    assert wire.displays[-1][0]["text/plain"] == "x"
    assert wire.messages == []


def test_a_late_hello_brings_the_widget_back(wire: Wire) -> None:
    row = FakeRow()
    view = StreamView([row], title="m")
    view.display()
    wire.now += frontend.HELLO_S + 0.1
    view.tick()
    tell(view, kind="hello", page="p1")
    assert frontend.state() == "yes"
    assert view.tick()
    assert WIDGET in wire.displays[-1][0]
    tell(view, kind="view", page="p1", view="v1", on=True)
    assert view.tick()
    row.say("x")
    assert view.tick()
    assert wire.custom()[-1]["rows"] == [
        {"i": 0, "status": "decode", "generated": 1, "tps": 12.5, "first_s": 0.3, "seconds": None, "add": "x"}
    ]


def test_a_busy_page_that_answered_for_another_view_keeps_the_widget(wire: Wire) -> None:
    shown(FakeRow())
    view = StreamView([FakeRow()], title="m")
    view.display()
    wire.now += frontend.HELLO_S + 60
    assert view.tick()
    assert WIDGET in wire.displays[-1][0]


def test_a_short_run_freezes_without_waiting_for_a_page(wire: Wire) -> None:
    row = FakeRow()
    view = StreamView([row], title="m")
    view.display()
    row.say("quick")
    row.finish()
    assert not view.tick()
    assert wire.displays[-1][0]["text/plain"] == "quick"
    assert view.widget.comm is not None  # nobody can say yet whether the page has it
    tell(view, kind="hello", page="p1")
    assert not view.tick()
    assert view.widget.comm is None


def test_stop_freezes_what_there_is(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    row.say("half")
    view.stop()
    assert wire.displays[-1][0]["text/plain"] == "half\n[answering, 1 token so far]"
    view.stop()
    assert len(wire.displays) == 2


def test_text_that_cannot_be_sent_is_mended_on_every_way_out(wire: Wire) -> None:
    row = FakeRow("prompt \ud800")
    row.say("text \ud800")
    view = shown(row)
    row.say(" more \udfff")
    view.tick()
    row.finish()
    view.tick()
    for _, data in wire.messages:
        repr(data).encode("utf-8")
    for data, *_ in wire.displays:
        repr(data).encode("utf-8")


def test_figures_that_json_cannot_carry_are_left_out(wire: Wire) -> None:
    row = FakeRow()
    row.say("x", tps=float("inf"))
    view = shown(row)
    assert wire.snapshots()[-1]["rows"][0]["tps"] is None
    assert view.tick()


def test_to_html_is_a_whole_page_and_waits_for_nothing(wire: Wire, tmp_path: Path) -> None:
    row = FakeRow()
    row.say("A <b>fox</b> 🦊")
    view = StreamView([row], title="smollm2")
    page = view.to_html(tmp_path / "answer.html")
    assert (tmp_path / "answer.html").read_text(encoding="utf-8") == page
    assert "A &lt;b&gt;fox&lt;/b&gt; 🦊" in page
    assert wire.messages == []


def test_in_plain_python_there_is_no_widget(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "kernel_has_comms", lambda: False)
    StreamView([FakeRow()], title="m").display()
    assert WIDGET not in wire.displays[-1][0]
    assert not frontend.page_answers(0)
    assert frontend.state() == "unknown"


def test_asking_for_a_page_sends_a_question_and_hears_a_late_answer(wire: Wire) -> None:
    assert not frontend.page_answers(0)
    assert frontend.state() == "no"
    assert [kind for kind, _ in wire.messages].count("comm_open") >= 1
    widgets = [
        data for kind, data in wire.messages if kind == "comm_open" and data["state"].get("_model_name") == "AnyModel"
    ]
    assert widgets
    frontend.said_hello()
    assert frontend.page_answers(0)


@pytest.mark.usefixtures("wire")
def test_the_comm_shim_touches_only_comms_that_reroute() -> None:
    widget = StreamView([FakeRow()], title="m").widget
    assert not hasattr(widget.comm, "_reply_subshell_for")

    class Rerouting:
        _reply_subshell_for = staticmethod(lambda _data, _default: "main")

    stand_in: Any = SimpleNamespace(comm=Rerouting())
    frontend.let_comms_use_subshell(stand_in)
    assert stand_in.comm._reply_subshell_for({}, "theirs") == "theirs"

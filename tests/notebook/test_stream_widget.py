"""The live view without a page: a comm that records, a display that records, and ticks by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm

from mlx_notebook.notebook import frontend, stream_widget
from mlx_notebook.notebook.freeze import SELECTION_S
from mlx_notebook.notebook.stream_widget import SNAPSHOT_S, STATIC_TICK_S, StreamView
from tests.notebook.fake_rows import FakeRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDGET = "application/vnd.jupyter.widget-view+json"


class Wire:
    """Everything that leaves: comm messages and display updates, in order; and a clock to turn."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.displays: list[tuple[dict[str, Any], dict[str, Any], str, bool]] = []
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


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    wire = Wire()

    class RecordingComm(BaseComm):
        def publish_msg(
            self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
        ) -> None:
            del metadata, buffers, keys
            wire.messages.append((msg_type, data or {}))

    def publish(data: Any, metadata: Any, *, transient: Any, update: bool) -> None:
        wire.displays.append((data, metadata, transient["display_id"], update))

    monkeypatch.setattr(comm, "create_comm", RecordingComm)
    monkeypatch.setattr("IPython.display.publish_display_data", publish)
    monkeypatch.setattr(stream_widget, "publisher", wire.publisher)
    monkeypatch.setattr(stream_widget, "time", SimpleNamespace(monotonic=wire.monotonic))
    monkeypatch.setattr("mlx_notebook.notebook.freeze.time", SimpleNamespace(monotonic=wire.monotonic))
    monkeypatch.setattr(frontend, "kernel_has_comms", lambda: True)
    frontend.forget()
    yield wire
    frontend.forget()


def tell(to: StreamView, /, **content: Any) -> None:
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
    assert wire.displays[-1][0]["text/plain"] == "A\n[answering, 1 tokens so far]"
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
    assert wire.displays[-1][0]["text/plain"] == "half\n[answering, 1 tokens so far]"
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


# ---------------------------------------------------------------- token by token


class TracedRow(FakeRow):
    """A row whose text can be had token by token: each `say` is one, and the last may still get more."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str, tps: float | None = 12.5) -> None:
        self.said.append(text)
        super().say(text, tps)

    def pieces(self, after: int = 0) -> list[str]:
        return self.said[after:]

    def logprobs_so_far(self, after: int = 0, stop: int | None = None) -> list[Any]:
        return [SimpleNamespace(logprob=-0.5 * n) for n in range(len(self.said))][after:stop]


def tokens_of(wire: Wire) -> list[tuple[int, list[str]]]:
    """(from, texts) of all that was told token by token."""
    told = [row["tok"] for message in wire.custom() for row in message.get("rows", []) if "tok" in row]
    assert all(len(one["texts"]) == len(one["chances"]) for one in told)
    return [(one["from"], one["texts"]) for one in told]


def in_the_page(wire: Wire) -> list[str]:
    """What a page that adds up the deltas holds; it knows no gap."""
    held: list[str] = []
    for begin, texts in tokens_of(wire):
        assert begin <= len(held)
        held[begin:] = texts
    return held


def test_tokens_come_from_the_first_on_and_the_last_is_held_back(wire: Wire) -> None:
    row = TracedRow()
    view = shown(row)
    row.say("A")
    row.say(" fox")
    view.tick()
    assert tokens_of(wire) == []
    tell(view, kind="tokens", row=0, on=True)
    view.tick()
    assert tokens_of(wire) == [(0, ["A"])]
    row.say(" ran")
    view.tick()
    assert tokens_of(wire) == [(0, ["A"]), (1, [" fox"])]
    chances = [row["tok"]["chances"] for message in wire.custom() for row in message["rows"] if "tok" in row]
    assert chances == [[1.0], [0.6065]]


@pytest.mark.parametrize("keep", [True, False])
def test_the_last_token_comes_before_the_last_snapshot(wire: Wire, keep: bool) -> None:
    row = TracedRow()
    view = shown(row, keep=keep)
    tell(view, kind="tokens", row=0, on=True)
    row.say("A")
    row.say(" fox")
    view.tick()
    row.finish()
    view.tick()
    assert in_the_page(wire) == ["A", " fox"]
    kinds = ["tok" if data.get("method") == "custom" else "snapshot" for _, data in wire.messages]
    assert kinds[-1] == "snapshot"
    assert wire.snapshots()[-1]["seq"] == wire.custom()[-1]["seq"]


def test_tokens_off_in_one_view_does_not_stop_another(wire: Wire) -> None:
    row = TracedRow()
    view = shown(row)
    tell(view, kind="view", page="p1", view="v2", on=True)
    for one in ("v1", "v2"):
        tell(view, kind="tokens", row=0, on=True, view=one)
    row.say("A")
    row.say(" fox")
    view.tick()
    tell(view, kind="tokens", row=0, on=False, view="v1")
    row.say(" ran")
    view.tick()
    assert in_the_page(wire) == ["A", " fox"]
    tell(view, kind="gone", view="v2")
    row.say(" away")
    view.tick()
    assert in_the_page(wire) == ["A", " fox"]
    assert not view._cursors[0].followed


def test_a_page_that_does_not_say_which_view_stops_stops_no_other(wire: Wire) -> None:
    row = TracedRow()
    view = shown(row)
    tell(view, kind="view", page="p1", view="v2", on=True)
    tell(view, kind="tokens", row=0, on=True)
    tell(view, kind="tokens", row=0, on=False)
    view.tick()
    assert view._cursors[0].followed
    tell(view, kind="gone", view="v2")
    tell(view, kind="tokens", row=0, on=False)
    view.tick()
    assert not view._cursors[0].followed


def test_after_a_resync_tokens_begin_anew(wire: Wire) -> None:
    row = TracedRow()
    view = shown(row, keep=True)
    tell(view, kind="tokens", row=0, on=True)
    for word in ("A", " fox", " ran"):
        row.say(word)
    view.tick()
    tell(view, kind="resync")
    view.tick()  # the snapshot
    view.tick()
    assert tokens_of(wire) == [(0, ["A", " fox"])] * 2
    row.finish()
    view.tick()
    tell(view, kind="resync")  # the page missed the end
    view.tick()
    assert tokens_of(wire)[-1] == (0, ["A", " fox", " ran"])


def test_asking_again_begins_anew(wire: Wire) -> None:
    row = TracedRow()
    view = shown(row, keep=True)
    row.say("A")
    row.finish()
    for _ in range(2):
        tell(view, kind="tokens", row=0, on=True, view="v1")
        view.tick()
    assert tokens_of(wire) == [(0, ["A"])] * 2

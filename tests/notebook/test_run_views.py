"""Dashboard and timeline without a page: what is sent and when, what a page may ask, files and pictures."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import WouldDeadlock
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.run_page import as_script_data
from mlx_notebook.notebook.run_picture import frozen_run, png, rows_of
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.notebook.fake_run import FakeFeed, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m</script><!-- \ud800 $x^2$"


class QuietPublisher:
    """Nobody ticks the views of these tests but the tests."""

    def follow(self, _view: object) -> None: ...

    def spend(self, _messages: int = 1) -> None: ...


@pytest.fixture(autouse=True)
def _fresh_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    frontend.forget()
    monkeypatch.setattr("mlx_notebook.notebook.run_view.publisher", QuietPublisher)
    yield
    frontend.forget()


class Sent:
    """A view with its widget's messages caught."""

    def __init__(self, view: Dashboard | Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view = view
        self.messages: list[dict[str, Any]] = []
        monkeypatch.setattr(view.widget, "send", self.messages.append)

    def page_says(self, **content: Any) -> None:
        self.view._on_message(None, content, None)

    def kinds(self) -> list[str]:
        return [message["kind"] for message in self.messages]


@pytest.fixture
def feed() -> FakeFeed:
    return FakeFeed(simulate(40))


@pytest.fixture
def sent(feed: FakeFeed, monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(Dashboard(feed), monkeypatch)


def open_page(sent: Sent) -> None:
    sent.page_says(kind="hello", page="1", buffers=False)
    sent.page_says(kind="view", page="1", view="1/1", on=True)


def ticked(sent: Sent) -> None:
    """As the publisher does: until nothing more is to come (a live view: ten times)."""
    for _ in range(10):
        if not sent.view.tick():
            return


def test_a_new_view_gets_the_history_and_then_what_is_new(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    assert sent.view.tick()
    feed.more.append({"now": 7})
    assert sent.view.tick()
    history, delta = sent.messages
    assert (history["kind"], history["part"], history["parts"]) == ("history", 0, 1)
    assert history["requests"]["id"] == feed.body["requests"]["id"]
    assert (delta["kind"], delta["seq"], delta["now"]) == ("delta", history["seq"] + 1, 7)


def test_a_hidden_view_is_sent_nothing_and_the_history_when_it_is_seen_again(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    sent.view.tick()
    sent.page_says(kind="visible", view="1/1", on=False)
    feed.more.append({"now": 7})
    sent.view.tick()
    assert sent.kinds() == ["history"]
    sent.page_says(kind="visible", view="1/1", on=True)
    sent.view.tick()
    assert sent.kinds() == ["history", "history"]


class ListeningFeed(FakeFeed):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(simulate(40))
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in {"over", "figures", "history", "news", "whole"}:
            self.calls.append(name)
        return super().__getattribute__(name)


def test_a_hidden_or_closed_view_asks_for_nothing_but_whether_the_run_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed = ListeningFeed()
    sent = Sent(Dashboard(feed), monkeypatch)
    open_page(sent)
    sent.view.tick()
    sent.page_says(kind="visible", view="1/1", on=False)
    feed.calls.clear()
    assert [sent.view.tick() for _ in range(20)] == [True] * 20
    assert feed.calls == ["over"] * 20
    sent.page_says(kind="gone", view="1/1")
    monkeypatch.setattr("mlx_notebook.notebook.run_view.GONE_S", 0.0)
    feed.calls.clear()
    assert not sent.view.tick()  # the publisher lets go of it
    assert feed.calls == ["over"]


def test_a_page_that_missed_something_gets_everything(sent: Sent) -> None:
    open_page(sent)
    sent.view.tick()
    sent.page_says(kind="resync", buffers=False)
    sent.view.tick()
    assert sent.kinds() == ["history", "history"]


def test_closing_the_last_view_lets_the_scheduler_go_on(
    sent: Sent, feed: FakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(sent)
    sent.view.tick()
    sent.page_says(kind="gone", view="1/1")
    assert sent.view.tick()  # a page that reloads comes back at once
    assert (feed.opened, feed.resumed) == (1, 0)
    monkeypatch.setattr("mlx_notebook.notebook.run_view.GONE_S", 0.0)
    assert not sent.view.tick()
    assert feed.resumed == 1


@pytest.mark.parametrize("goodbye", [True, False], ids=["with a goodbye", "without a word"])
def test_closing_the_tab_of_a_reloaded_page_lets_the_scheduler_go_on(
    sent: Sent, feed: FakeFeed, monkeypatch: pytest.MonkeyPatch, goodbye: bool
) -> None:
    open_page(sent)
    sent.view.tick()
    if goodbye:
        sent.page_says(kind="gone", view="1/1")
        assert sent.view.tick()
    sent.page_says(kind="hello", page="2", buffers=False)
    assert sent.view.tick()
    sent.page_says(kind="view", page="2", view="2/1", on=True)
    monkeypatch.setattr("mlx_notebook.notebook.run_view.GONE_S", 0.0)
    assert sent.view.tick()  # the dashboard came back: the pause is held on
    assert (feed.opened, feed.resumed) == (1, 0)
    sent.page_says(kind="gone", view="2/1")
    assert not sent.view.tick()
    assert feed.resumed == 1


def test_a_page_that_was_reloaded_without_its_dashboard_holds_nothing(
    sent: Sent, feed: FakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(sent)
    sent.view.tick()
    sent.page_says(kind="hello", page="2", buffers=False)
    monkeypatch.setattr("mlx_notebook.notebook.run_view.GONE_S", 0.0)
    assert not sent.view.tick()
    assert feed.resumed == 1


def test_another_tab_of_the_same_notebook_counts_as_soon_as_it_is_heard_again(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    sent.page_says(kind="hello", page="2", buffers=False)
    sent.page_says(kind="view", page="2", view="2/1", on=True)
    sent.page_says(kind="visible", view="1/1", on=True)
    sent.page_says(kind="gone", view="2/1")
    assert sent.view._views.count == 1
    feed.more.append({"now": 7})
    sent.view.tick()
    assert "history" in sent.kinds()


def test_a_second_tab_does_not_take_the_place_of_one_that_says_it_is_there(
    sent: Sent, feed: FakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(sent)
    sent.view.tick()
    assert "who" not in sent.kinds()
    sent.page_says(kind="hello", page="2", buffers=False)
    assert sent.kinds()[-1] == "who"
    sent.page_says(kind="here", view="1/1")
    sent.page_says(kind="view", page="2", view="2/1", on=True)
    sent.page_says(kind="gone", view="2/1")
    monkeypatch.setattr("mlx_notebook.notebook.run_view.GONE_S", 0.0)
    assert sent.view.tick()
    assert feed.resumed == 0


def test_a_timeline_has_no_button_to_resume_and_holds_no_pause(feed: FakeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(Timeline(feed), monkeypatch)
    open_page(sent)
    sent.view.tick()
    sent.view.close()
    assert (feed.opened, feed.resumed) == (0, 0)


def test_who_paused_is_not_left_waiting_because_a_timeline_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway.from_backend(ScriptedBackend()) as gw:
        timeline = Sent(gw.timeline(), monkeypatch)
        open_page(timeline)
        timeline.view.tick()
        gw.pause()
        handle = gw.submit("abc", max_tokens=2)
        with pytest.raises(WouldDeadlock):
            handle.result()
        dashboard = Sent(gw.dashboard(), monkeypatch)
        open_page(dashboard)
        dashboard.view.tick()
        dashboard.view.close()  # the last dashboard; the timeline is still open
        assert handle.result().generated_tokens == 2


def test_a_question_is_acknowledged_at_once_and_answered(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    sent.page_says(kind="ask", ask=4, do="cancel", rows=[5])
    sent.page_says(kind="ask", ask=5, do="extend", row=5, tokens=64)
    assert [one["do"] for one in feed.asked] == ["cancel", "extend"]
    assert sent.kinds() == ["ack", "answer", "ack", "answer"]
    assert sent.messages[1] == {"kind": "answer", "ask": 4, "ok": True, "value": None, "error": ""}
    refused = sent.messages[3]
    assert not refused["ok"]
    assert "memory budget" in refused["error"]


def test_nonsense_of_a_page_is_logged_and_nothing_more(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    sent.page_says(kind="ask")
    sent.page_says(kind="view")
    assert len(caplog.records) == 2


def test_the_end_of_the_run_is_the_last_word(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    sent.view.tick()
    feed.is_over = True
    sent.view.tick()
    assert sent.view.widget.snapshot["final"]


def test_a_page_that_comes_after_the_end_gets_the_history(sent: Sent, feed: FakeFeed) -> None:
    open_page(sent)
    sent.view.tick()
    feed.is_over = True
    sent.view.tick()
    told = len(sent.messages)
    sent.page_says(kind="hello", page="2", buffers=False)
    sent.page_says(kind="view", page="2", view="2/1", on=True)
    ticked(sent)
    [history] = [message for message in sent.messages[told:] if message["kind"] != "who"]
    assert history["kind"] == "history"
    assert history["requests"]["id"] == feed.body["requests"]["id"]
    assert history["seq"] == sent.view.widget.snapshot["seq"]


def test_a_history_that_is_under_way_at_the_end_is_told_to_its_end(
    sent: Sent, feed: FakeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "history", lambda: [{"now": 1}, {"now": 2}, {"now": 3}])
    open_page(sent)
    sent.view.tick()
    feed.is_over = True
    feed.more.append({"now": 7})
    ticked(sent)
    assert [(one["kind"], one["now"]) for one in sent.messages] == [
        ("history", 1), ("history", 2), ("history", 3), ("delta", 7)
    ]  # fmt: skip
    assert sent.view.widget.snapshot["final"]


def test_a_page_that_says_hello_late_gets_the_live_view_in_place_of_the_picture(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[set[str]] = []
    monkeypatch.setattr(frontend, "HELLO_S", 0.0)
    monkeypatch.setattr(frontend, "kernel_has_comms", lambda: True)
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data, _about, **_more: shown.append(set(data)))
    widget = "application/vnd.jupyter.widget-view+json"
    sent.view.display()
    sent.view.tick()
    assert ["image/png" in data for data in shown] == [False, True]
    open_page(sent)
    frontend.said_hello()
    ticked(sent)
    assert [widget in data for data in shown] == [True, False, True]
    assert sent.kinds()[0] == "history"
    sent.view.close()
    ticked(sent)
    assert "image/png" in shown[-1]


def test_selected_is_one_trait_of_view_and_widget(feed: FakeFeed) -> None:
    view = Timeline(feed)
    view.selected = [3]
    assert view.widget.selected == [3]
    view.widget.brush = [4, 9]
    assert view.brush == [4, 9]


def test_reprs_say_the_same_in_every_run(feed: FakeFeed) -> None:
    assert repr(Dashboard(feed)) == "<dashboard of smollm2>"
    assert repr(Timeline(feed).widget) == "TimelineWidget('smollm2')"


def hostile_feed() -> FakeFeed:
    body = simulate(20)
    body["titles"]["title"][0] = HOSTILE
    body["texts"]["text"][0] = HOSTILE
    return FakeFeed(body, title=HOSTILE)


@pytest.mark.parametrize("view_class", [Dashboard, Timeline])
def test_a_file_of_a_hostile_run_holds_text_and_no_markup_of_it(view_class: type, tmp_path: Any) -> None:
    path = tmp_path / "run.html"
    page = view_class(hostile_feed()).to_html(path)
    assert path.read_text(encoding="utf-8") == page
    outside_script = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<img src=x" not in page
    assert "onerror=alert(1)>" not in outside_script
    assert len(re.findall(r"</script", page)) == 2
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    data = re.search(r'id="mlx-data">(.*?)</script>', page, flags=re.DOTALL)
    assert data is not None
    state = json.loads(data[1])
    assert state["snapshot"]["body"]["titles"]["title"][0] == HOSTILE.replace("\ud800", "?")
    assert set(state["snapshot"]["body"]["why"]) == {str(row) for row in state["snapshot"]["body"]["requests"]["id"]}


def test_a_file_opens_with_what_the_reader_had_chosen(feed: FakeFeed) -> None:
    view = Timeline(feed)
    view.selected, view.brush = [3, 1], [4, 9]
    data = re.search(r'id="mlx-data">(.*?)</script>', view.to_html(), flags=re.DOTALL)
    assert data is not None
    state = json.loads(data[1])
    assert (state["selected"], state["brush"]) == ([3, 1], [4, 9])


def test_script_data_cannot_end_its_element() -> None:
    assert "<" not in as_script_data(["</script>", "<!--", "a < b"])
    assert json.loads(as_script_data(["</script>\u2028"])) == ["</script>\u2028"]


def test_the_frozen_output_has_a_picture_a_table_and_no_times(feed: FakeFeed) -> None:
    bundle, metadata = frozen_run(feed.whole(), title=feed.title, view="dashboard", selected=[1])
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    states = "1 queued, 1 reading prompt, 3 writing, 3 finished, 1 cancelled"
    assert bundle["text/plain"] == f"dashboard of smollm2: 9 requests: {states}"
    table = re.sub(r"<img[^>]*>", "", bundle["text/html"])
    assert " ms" not in table
    assert "The tide is the slow breath" in table
    assert metadata == {"mlx_notebook": {"view": "dashboard", "title": "smollm2"}}


def test_a_hostile_run_is_frozen_as_text() -> None:
    feed = hostile_feed()
    bundle, _ = frozen_run(feed.whole(), title=feed.title, view="timeline", selected=[1])
    assert "<img src=x" not in bundle["text/html"]
    assert bundle["text/html"].count("&lt;img") >= 3
    assert bundle["text/plain"].isprintable()


def test_a_run_without_requests_freezes_too() -> None:
    bundle, _ = frozen_run({}, title="empty", view="dashboard")
    assert bundle["text/plain"] == "dashboard of empty: 0 requests"
    assert "image/png" not in bundle


def test_the_picture_is_the_same_each_time(feed: FakeFeed) -> None:
    first = png(feed.whole(), "smollm2")
    assert first.startswith(b"\x89PNG")
    assert first == png(feed.whole(), "smollm2")
    assert [row["id"] for row in rows_of(feed.whole())] == sorted(feed.body["requests"]["id"])

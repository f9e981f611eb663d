"""What goes over the wire: deltas add up to the history, nobody asks and it costs nothing, actions reach the engine."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.errors import MlxNotebookError, OverContext
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.run_cursor import ALL, parts_of
from mlx_notebook.notebook.run_wire import GatewayFeed, TraceFeed, gateway_feed, told, trace_feed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.gateway.handles import Handles

Body = dict[str, Any]
PATIENCE_S = 60
HOSTILE = ["<script>", "\x1b[2J", "\u202e", "\ud800", "ok "]
APPENDED = ("steps", "chunks", "waits", "controls", "tokens", "texts")


class Page:
    """What a page makes of the messages: tables by appending, requests by id, text by row."""

    def __init__(self) -> None:
        self.requests: dict[int, dict[str, Any]] = {}
        self.titles: dict[int, str] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in APPENDED}

    def take(self, body: Body) -> None:
        json.dumps(body, allow_nan=False).encode()  # it can be sent
        for row in rows_of(body.get("requests", {})):
            self.requests[row["id"]] = row
        for row in rows_of(body.get("titles", {})):
            self.titles[row["id"]] = row["title"]
        for name in APPENDED:
            self.tables[name] += rows_of(body.get(name, {}))

    def text(self, row_id: int) -> str:
        return "".join(one["text"] for one in self.tables["texts"] if one["row"] == row_id)

    def words(self) -> dict[tuple[int, int], str]:
        """Text by row and token."""
        found: dict[tuple[int, int], str] = {}
        for one in self.tables["texts"]:
            place = one["row"], one["n"]
            found[place] = found.get(place, "") + one["text"]
        return found


def rows_of(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


@pytest.fixture
def gw() -> Iterator[Gateway]:
    can = Capabilities(vocab_size=0x110000, context_length=300, max_rows=2, continuous=True, kv_bytes_per_token=10)
    with Gateway.from_backend(ScriptedBackend(capabilities=can, script=scripted_texts(HOSTILE))) as gateway:
        yield gateway


def run(gw: Gateway, *, rows: int = 4, tokens: int = 7) -> Handles:
    handles: Handles = gw.submit([f"prompt {place}\nsecond line" for place in range(rows)], max_tokens=tokens)
    return handles


def follow(feed: GatewayFeed, page: Page, gw: Gateway) -> None:
    """As the publisher: tick till all is over, and once more."""
    while gw.busy:
        page.take(feed.news())
    page.take(feed.news())


def test_deltas_add_up_to_the_history(gw: Gateway) -> None:
    feed, live = gateway_feed(gw), Page()
    for part in feed.history():
        live.take(part)
    handles = run(gw)
    follow(feed, live, gw)
    assert feed.news() == {}
    late = Page()
    for part in gateway_feed(gw).history():
        late.take(part)
    for row in (*live.requests.values(), *late.requests.values()):
        row.pop("waiting")
    assert live.requests == late.requests
    assert live.titles == late.titles == {handle.id: f"prompt {place}" for place, handle in enumerate(handles)}
    for name in ("steps", "chunks", "waits", "controls", "tokens"):
        assert live.tables[name] == late.tables[name], name
    assert live.words() == late.words()
    for handle in handles:
        assert live.text(handle.id) == handle.text_so_far.replace("\ud800", "?")
        assert live.requests[handle.id]["status"] == "finished"
        assert live.requests[handle.id]["note"] == "cut at max_tokens (7)"


def test_tables_say_what_the_frames_say(gw: Gateway) -> None:
    run(gw).results()
    page = Page()
    page.take(gateway_feed(gw).whole())
    frame = gw.requests()
    began = page.requests[int(frame.index[0])]["submit"]
    for row_id, row in page.requests.items():
        assert (row["admit"] - began) / 1e6 == pytest.approx(
            frame.admitted_s[row_id] - frame.submitted_s.iloc[0], abs=2e-6
        )
        assert row["slot"] == frame.slot[row_id]
    assert [one["step"] for one in page.tables["steps"]] == gw.steps().index.tolist()
    assert len(page.tables["tokens"]) == len(gw.tokens())
    assert {one["cause"] for one in page.tables["waits"]} <= {"batch-full", "none"}


def test_nobody_asks_and_nothing_is_sorted(gw: Gateway) -> None:
    feed = gateway_feed(gw)
    clock = gw.engine.recorder.recording.clock
    run(gw).results()
    assert gw.engine.recorder.recording.clock == clock == 0
    assert feed.news()["requests"]["id"]


def test_views_share_one_recorder(gw: Gateway) -> None:
    first, second = gateway_feed(gw), gateway_feed(gw, ("requests", "steps"))
    run(gw).results()
    first.news()
    clock = gw.engine.recorder.recording.clock
    body = second.news()
    assert gw.engine.recorder.recording.clock == clock
    assert "tokens" not in body
    assert "texts" not in body
    assert len(body["steps"]["step"]) == len(gw.steps())


def test_some_rows_only(gw: Gateway) -> None:
    handles = run(gw)
    handles.results()
    page = Page()
    page.take(gateway_feed(gw, rows=[handles[1].id]).whole())
    assert set(page.requests) == {one["row"] for one in page.tables["tokens"]} == {handles[1].id}
    last = Page()
    feed = gateway_feed(gw, last=2)
    last.take(feed.whole())
    assert set(last.requests) == {handle.id for handle in handles[2:]}
    another = gw.submit("one more", max_tokens=2)
    another.result()
    last.take(feed.whole())
    assert another.id in last.requests


def test_what_a_row_waits_for_is_told_when_it_changes(gw: Gateway) -> None:
    feed = gateway_feed(gw)
    gw.pause()
    handles = run(gw, rows=4)
    gw.pause()
    page = Page()
    page.take(feed.news())
    assert page.requests[handles[3].id]["waiting"].startswith("paused")
    gw.step(2)
    page.take(feed.news())
    gw.pause()
    assert {row["status"] for row in page.requests.values()} == {"decode", "queued"}
    assert [one["what"] for one in page.tables["controls"]].count("step") == 1
    gw.resume()
    handles.results()
    page.take(feed.news())
    assert {row["waiting"] for row in page.requests.values()} == {""}


def test_a_history_in_parts_loses_nothing(gw: Gateway) -> None:
    run(gw, rows=6, tokens=9).results()
    body = gateway_feed(gw).whole()
    parts = parts_of(body, entries=10)
    assert len(parts) > 10
    one, many = Page(), Page()
    one.take(body)
    for part in parts:
        assert sum(len(next(iter(table.values()))) for table in part.values() if isinstance(table, dict)) <= 10
        many.take(part)
    assert many.requests == one.requests
    assert many.tables == one.tables


def test_figures(gw: Gateway) -> None:
    feed = gateway_feed(gw)
    gw.slow_motion(0.01)
    gw.pause()
    handles = run(gw)
    figures = feed.figures()
    assert figures["paused"] is True
    assert figures["delay_ms"] == 10
    assert figures["places"] == 2
    assert figures["queued"] == 4
    gw.slow_motion(0)
    gw.resume()
    handles.results()
    assert feed.figures()["steps"] == len(gw.steps())
    gw.close()
    assert feed.over()
    assert feed.figures()["model"] == "scripted"


def test_a_feed_does_not_keep_a_gateway() -> None:
    import gc

    gateway = Gateway.from_backend(ScriptedBackend())
    feed = gateway_feed(gateway)
    engine = gateway.engine
    del gateway
    gc.collect()
    assert engine.join(PATIENCE_S)
    assert feed.over()
    with pytest.raises(ValueError, match="gone"):
        feed.ask({"do": "pause"})


# ---------------------------------------------------------------- what a page asks


def test_actions_reach_the_engine(gw: Gateway) -> None:
    feed = gateway_feed(gw)
    feed.ask({"do": "pause"})
    handles = run(gw, tokens=5)
    gw.engine.pausing.watch(feed)
    feed.ask({"do": "step", "steps": 2})
    gw.step(1)  # waits, so what was asked before is done
    assert gw.paused
    assert feed.ask({"do": "cancel", "rows": [handles[0].id]}) == 1
    assert feed.ask({"do": "extend", "row": handles[1].id, "tokens": 3}) == 8
    assert feed.ask({"do": "reprioritize", "row": handles[3].id, "priority": 4}) is None
    with pytest.raises(ValueError, match="waits no more"):
        feed.ask({"do": "reprioritize", "row": handles[1].id, "priority": 4})
    with pytest.raises(OverContext):
        feed.ask({"do": "extend", "row": handles[1].id, "tokens": 1000})
    feed.ask({"do": "pace", "ms": 1})
    feed.ask({"do": "resume"})
    gw.wait_idle(PATIENCE_S)
    assert handles[0].cancelled()
    assert handles[1].result().generated_tokens == 8
    assert gw.requests().priority[handles[3].id] == 4


@pytest.mark.parametrize(
    "asked",
    [
        {"do": "explode"},
        {},
        {"do": "step", "steps": 0},
        {"do": "pace", "ms": -1},
        {"do": "pace", "ms": "fast"},
        {"do": "cancel", "rows": ["x"]},
        {"do": "extend", "row": 10**9, "tokens": 1},
        {"do": "why", "row": 10**9},
        {"do": "token", "row": 10**9, "n": 1},
    ],
)
def test_what_a_page_should_not_ask(gw: Gateway, asked: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError, MlxNotebookError)):
        gateway_feed(gw).ask(asked)


def test_why_and_when(gw: Gateway) -> None:
    handles = run(gw)
    handles.results()
    feed = gateway_feed(gw)
    told: Any = feed.ask({"do": "why", "row": handles[3].id})
    assert [one["code"] for one in told] == [one.code for one in handles[3].explain()]
    page = Page()
    page.take(feed.whole())
    at = page.requests[handles[3].id]["admit"] - 1
    moment: Any = feed.ask({"do": "why", "row": handles[3].id, "at": at})
    assert [one["code"] for one in moment] == ["queue-batch-full"]
    assert set(feed.whole(why=True)["why"]) == {str(handle.id) for handle in handles}


def test_the_answers_of_a_whole_run_hold_up_no_other_view(gw: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    run(gw).results()
    lock, free = gw.engine.recorder.lock, []

    def somebody_else() -> None:
        taken = lock.acquire(blocking=False)
        free.append(taken)
        if taken:
            lock.release()

    def looked(reasons: Any) -> list[dict[str, Any]]:
        other = threading.Thread(target=somebody_else)
        other.start()
        other.join()
        return told(reasons)

    monkeypatch.setattr("mlx_notebook.notebook.run_wire.told", looked)
    assert len(gateway_feed(gw).whole(why=True)["why"]) == 4
    assert free == [True] * 4


def test_what_is_no_longer_kept_is_said(gw: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_notebook.gateway.registry.KEPT_HANDLES", 10)
    before = run(gw, rows=2)
    before.results()  # only what is over is let go
    after = run(gw, rows=12)
    after.results()
    gone = before[0].id
    while (
        registry.handle(gone) is not None
    ):  # each submit lets a few go, and those of other tests before it stand first
        gw.submit("one more", max_tokens=1).result()
    page = Page()
    page.take(gateway_feed(gw).whole())
    recorded = Page()
    trace = gw.trace(text=True)
    recorded.take(trace_feed(trace).whole())
    assert page.titles[gone] == recorded.titles[gone] == "text no longer kept"
    assert page.titles[after[-1].id] == "prompt 11"
    assert trace.requests().loc[gone, ["prompt", "text"]].tolist() == ["text no longer kept"] * 2
    names = [event["args"].get("name") for event in trace.to_chrome()["traceEvents"] if event["ph"] == "M"]
    assert f"request {gone}: text no longer kept" in names
    assert gw.trace().title_of(gone) == ""


def test_one_token(gw: Gateway) -> None:
    handles = run(gw)
    handles.results()
    told: Any = gateway_feed(gw).ask({"do": "token", "row": handles[0].id, "n": 2})
    assert told["text"] == HOSTILE[1]
    assert told["token_id"] == ord(HOSTILE[1][0])
    assert told["shared"] == [handles[1].id]
    assert told["ms"] > 0


def test_asking_from_another_thread_while_it_runs(gw: Gateway) -> None:
    feed, page = gateway_feed(gw), Page()
    handles = run(gw, tokens=60)
    answers: list[object] = []
    asking = threading.Thread(
        target=lambda: answers.extend(feed.ask({"do": "why", "row": handles[0].id}) for _ in range(20))
    )
    asking.start()
    follow(feed, page, gw)
    asking.join()
    assert len(answers) == 20
    assert len(page.tables["tokens"]) == 240


# ---------------------------------------------------------------- traces


def test_a_trace_says_the_same_as_its_gateway(gw: Gateway) -> None:
    handles = run(gw)
    handles.results()
    gw.wait_idle()
    live, recorded = Page(), Page()
    live.take(gateway_feed(gw).whole())
    feed = trace_feed(gw.trace(text=True))
    for part in feed.history():
        recorded.take(part)
    assert recorded.titles == live.titles
    assert recorded.words() == live.words()
    for name in ("steps", "tokens", "chunks", "controls", "waits"):
        assert len(recorded.tables[name]) == len(live.tables[name])
    first = handles[0].id
    times = ("submit", "admit", "first", "end")
    assert {name: recorded.requests[first][name] - recorded.requests[first]["submit"] for name in times} == (
        pytest.approx({name: live.requests[first][name] - live.requests[first]["submit"] for name in times}, abs=1)
    )
    assert feed.news() == {}
    assert not feed.over()
    assert not feed.live


def test_a_trace_without_text_has_no_words(gw: Gateway) -> None:
    run(gw).results()
    body = trace_feed(gw.trace()).whole()
    assert "texts" not in body
    assert set(body["titles"]["title"]) == {""}


def test_a_trace_cannot_be_acted_on(gw: Gateway) -> None:
    run(gw).results()
    feed = TraceFeed(gw.trace(), ALL)
    assert feed.ask({"do": "why", "row": gw.requests().index[0]})
    for what in ("pause", "cancel", "extend"):
        with pytest.raises(ValueError, match="a recorded run"):
            feed.ask({"do": what})

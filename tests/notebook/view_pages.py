"""Pages of the views in each of their states, for pictures: made-up runs and rows, as if a kernel listened or had gone.

Each page is a view's own one-file page, with its model within reach as `mlx`: `mlx.heard` are the model's listeners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.results import TokenLogprob
from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.run_page import run_page
from mlx_notebook.notebook.static_html import frozen_bundle, standalone_page
from mlx_notebook.notebook.stream_wire import RowCursor
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.notebook.fake_rows import FakeRow
from tests.notebook.fake_run import FakeFeed, simulate

if TYPE_CHECKING:
    from mlx_notebook.notebook.run_view import RunView

ASLEEP = '"live":false,"final":true'
"""What a saved page says of itself."""

MISSED = 48_213
FOX = "A fox is a small, clever animal with red fur and a bushy tail. It lives in"


def run(turns: int = 45, **figures: Any) -> FakeFeed:
    """A run of so many turns, from the scripted simulation."""
    feed = FakeFeed(simulate(turns))
    feed.changed.update(figures)
    return feed


def failed_run() -> FakeFeed:
    """A run with a row that failed."""
    feed = run(78, tokens_per_s=0.0, kv_bytes=0, kv_projected_bytes=0)
    table = feed.body["requests"]
    table["status"][6], table["note"][6] = "failed", "failed: ValueError: my_processor returned logits of shape (3,)"
    return feed


def empty_run() -> FakeFeed:
    """A gateway that nobody has asked anything."""
    nothing = {"active": 0, "tokens_per_s": 0.0, "kv_bytes": 0, "kv_projected_bytes": 0, "steps": 0}
    feed = FakeFeed({"requests": {"id": [], "status": []}, "now": 0})
    feed.changed.update(nothing, cache_hits=0, cache_misses=0, cache_tokens_reused=0)
    return feed


def overwritten_run() -> FakeFeed:
    """A long run of whose beginning the log knows nothing any more."""
    feed = run(70, missed=MISSED)
    body, first_step = feed.body, 30
    begin = body["steps"]["start"][first_step - 1]
    for name in ("steps", "chunks", "tokens"):
        steps = body[name]["step"]
        keep = [i for i, step in enumerate(steps) if step >= first_step]
        body[name] = {column: [values[i] for i in keep] for column, values in body[name].items()}
    ends = body["requests"]["end"]
    keep = [i for i, end in enumerate(ends) if end < 0 or end > begin]
    body["requests"] = {column: [values[i] for i in keep] for column, values in body["requests"].items()}
    known = set(body["requests"]["id"])
    for name, key in (("titles", "id"), ("texts", "row")):
        keep = [i for i, row in enumerate(body[name][key]) if row in known]
        body[name] = {column: [values[i] for i in keep] for column, values in body[name].items()}
    return feed


def recorded_run() -> FakeFeed:
    """A run from a file that was saved without its texts."""
    feed = failed_run()
    feed.live = False
    feed.body = {**feed.body, "texts": {"row": [], "n": [], "text": []}}
    feed.body["titles"] = {**feed.body["titles"], "title": [""] * len(feed.body["titles"]["id"])}
    return feed


def live(view: RunView) -> str:
    """A page whose widget believes that a kernel listens."""
    return _reachable(view.to_html().replace(ASLEEP, '"live":true,"final":false'))


def recorded(view: RunView) -> str:
    """A page of a run that was loaded from a file: the kernel can be asked why, and nothing else."""
    return _reachable(view.to_html().replace(ASLEEP, '"live":false,"final":false'))


def saved(view: RunView) -> str:
    """The page that `to_html()` writes."""
    return _reachable(view.to_html())


def dashboard(feed: FakeFeed) -> str:
    """A live dashboard."""
    return live(Dashboard(feed))


def timeline(feed: FakeFeed) -> str:
    """A live timeline."""
    return live(Timeline(feed))


# ---------------------------------------------------------------- streams


def stream(*rows: FakeRow, title: str = "smollm2", final: bool = False) -> str:
    """A live stream of these rows."""
    told = []
    for row in rows:
        cursor = RowCursor(row, row.prompt_text)
        cursor.follow_tokens(True, "")
        whole = cursor.whole()
        tokens = cursor.news().get("tok", {"texts": [], "chances": []})
        told.append({**whole, "tokens": {"texts": tokens["texts"], "chances": tokens["chances"]}})
    snapshot = {"seq": 0, "count": 0, "title": title, "rows": told}
    page = run_page("stream", snapshot, {}, static="")
    return _reachable(page if final else page.replace('"final":true', '"final":false'))


def frozen_stream(*rows: FakeRow) -> str:
    """What stays of a stream, as `to_html()` writes it."""
    return standalone_page(frozen_bundle(rows, title="smollm2", metadata={})[0]["text/html"], title="smollm2")


class SurprisingRow(FakeRow):
    """A row whose tokens were as expected, or less so, in turn."""

    def logprobs_so_far(self, after: int = 0, /) -> list[TokenLogprob]:
        chances = (-0.02, -0.4, -0.05, -1.1, -2.0, -0.6)
        return [TokenLogprob(n, chances[n % len(chances)]) for n in range(len(self.pieces()))][after:]


def said(row: FakeRow, text: str) -> FakeRow:
    """The row, having said the text a word at a time."""
    for word in text.split():
        row.say(f" {word}" if row.text_so_far else word)
    return row


def one_row() -> FakeRow:
    """A row in the middle of its answer."""
    return said(SurprisingRow("Tell me about a fox, and say where it lives, what it eats, and whom it fears"), FOX)


def waiting_row() -> FakeRow:
    """A row that waits for a place."""
    row = FakeRow("Translate: guten Morgen")
    row.wait_for("all 4 places are taken; rows 2 and 3 are before it")
    return row


def reading_row() -> FakeRow:
    """A row whose prompt is being read."""
    row = FakeRow("Summarise: a long report about the tides of the northern seas")
    row.read(1920, 2900)
    return row


def paused_row() -> FakeRow:
    """A row of a gateway that somebody paused."""
    row = one_row()
    row.be(paused=True)
    return row


def thinking_row() -> FakeRow:
    """A row whose model still thinks."""
    row = FakeRow("How many r are in strawberry?")
    row.say("")
    row.be(generated_tokens=148, thinking="thinking, 512 characters so far")
    return row


def many_rows() -> list[FakeRow]:
    """A row in each state."""
    rows = [one_row(), reading_row(), waiting_row(), FakeRow("Name three rivers"), FakeRow("Write a haiku")]
    rows += [FakeRow("What is 7 x 8?"), thinking_row()]
    said(rows[3], "The Nile, the Danube and the Amazon are three rivers that")
    rows[3].finish("max_tokens")
    said(rows[4], "Autumn moonlight")
    rows[4].end_cancelled()
    said(rows[5], "7 x")
    rows[5].fail("ValueError: my_processor returned logits of shape (3,), expected (1, 49152)")
    return rows


def done_rows() -> list[FakeRow]:
    """Rows that are over, of each ending."""
    return [row for row in many_rows() if row.done()]


def right_to_left_row() -> FakeRow:
    """An answer in a script that is written from right to left, with markup and marks in it."""
    row = FakeRow("ספר לי על שועל")
    for word in ("השועל", " הוא", " חיה", " <b>קטנה</b>", "\u202e abc \u202c", " ועוד."):
        row.say(word)
    return row


def _reachable(page: str) -> str:
    """The page with its model in reach of the one who takes the pictures."""
    made, found = "const made = mlxWidget();", page.count("const made = mlxWidget();")
    if found != 1:
        raise RuntimeError("the page's host is not the one that is known here: see notebook/run_page.py")
    return page.replace(made, f"window.mlx = {{ state, heard }};\n{made}")

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.notebook.static_html import (
    TITLE_CHARACTERS,
    clean_text,
    ending_note,
    frozen_bundle,
    prompt_title,
    running_note,
    standalone_page,
)
from tests.notebook.fake_rows import FakeProgress, FakeRow

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&amp; \x00 'quotes\" end"


class Seen(HTMLParser):
    """What a browser would make of it: the tags, and the text of each <pre>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.pres: list[str] = []
        self._in_pre = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "pre":
            self._in_pre = True
            self.pres.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_pre = self._in_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._in_pre:
            self.pres[-1] += data


def finished(text: str, prompt: str = "p", detail: str = "eos") -> FakeRow:
    row = FakeRow(prompt)
    row.say(text)
    row.finish(detail)
    return row


def test_one_row_is_its_text_and_nothing_else() -> None:
    data, metadata = frozen_bundle([finished("A fox.\n\n  It runs.")], title="smollm2", metadata={"seed": 7})
    assert data["text/plain"] == "A fox.\n\n  It runs."
    assert Seen(data["text/html"]).pres == ["A fox.\n\n  It runs."]
    assert metadata == {"mlx_notebook": {"seed": 7}}
    json.dumps([data, metadata])


def test_text_prompt_title_and_error_are_never_markup() -> None:
    rows = [finished(HOSTILE, HOSTILE), FakeRow(HOSTILE)]
    rows[1].fail(HOSTILE)
    data, _ = frozen_bundle(rows, title=HOSTILE, metadata={})
    seen = Seen(data["text/html"])
    assert set(seen.tags) <= {"div", "p", "b", "pre"}
    assert set(seen.attributes) <= {"class", "style", "aria-label"}
    assert seen.pres == [HOSTILE]
    assert HOSTILE.replace("\x00", "") in data["text/plain"]


def test_plain_text_moves_no_terminal() -> None:
    rows = [finished("red \x1b[31m\x9b2J\r\x07 text\n\ttab", "title \x1b]0;x\x07"), FakeRow("p")]
    rows[1].fail("bad \x1b[2J")
    data, _ = frozen_bundle(rows, title="m", metadata={})
    assert data["text/plain"] == "1. title ]0;x\nred [31m2J text\n\ttab\n\n2. p\n[failed: bad [2J]"
    assert Seen(data["text/html"]).pres[0].startswith("red \x1b[31m")  # a page shows it as text


def test_a_first_line_break_survives_the_html_parser() -> None:
    data, _ = frozen_bundle([finished("\nindented")], title="", metadata={})
    # A parser drops the line break that comes first in <pre>.
    assert "><" not in data["text/html"].split("indented")[0][-3:]
    assert ">\n\nindented</pre>" in data["text/html"]


def test_several_rows_are_numbered_under_what_the_user_typed() -> None:
    rows = [finished("Nile", "<|im_start|>Name a river"), finished("Alps", "<|im_start|>Name mountains")]
    data, _ = frozen_bundle(rows, title="m", metadata={}, prompts=["Name a river", "Name mountains"])
    assert data["text/plain"] == "1. Name a river\nNile\n\n2. Name mountains\nAlps"
    assert "1. Name a river" in data["text/html"]


def test_rows_that_did_not_simply_end_say_so() -> None:
    failed, cancelled, late, cut, full, empty = (FakeRow() for _ in range(6))
    failed.fail("ValueError: bad <shape>")
    cancelled.say("half")
    cancelled.end_cancelled()
    late.end_cancelled("deadline")
    cut.say("a")
    cut.say("b")
    cut.finish("max_tokens")
    full.finish("context")
    empty.finish()
    notes = [ending_note(row.progress()) for row in (failed, cancelled, late, cut, full, empty)]
    assert notes == [
        "failed: ValueError: bad <shape>",
        "cancelled",
        "cancelled: its deadline passed",
        "cut at max_tokens=2",
        "cut: the model's context was full",
        "",
    ]
    data, _ = frozen_bundle([cancelled], title="m", metadata={})
    assert data["text/plain"] == "half\n[cancelled]"
    data, _ = frozen_bundle([cut], title="m", metadata={})
    assert data["text/plain"] == "ab"
    assert "cut at max_tokens=2" in data["text/html"]


def test_rows_that_run_say_what_they_do() -> None:
    row = FakeRow()
    assert running_note(row.progress()) == "waiting"
    row.wait_for("row 1 runs")
    assert running_note(row.progress()) == "waiting: row 1 runs"
    row.read(1280, 2900)
    assert running_note(row.progress()) == "reading the prompt, 1,280 of 2,900 tokens"
    row.say("x")
    assert frozen_bundle([row], title="", metadata={})[0]["text/plain"] == "x\n[answering, 1 token so far]"


def test_rows_of_a_paused_gateway_say_so() -> None:
    running = FakeProgress(status=RowStatus.DECODE, generated_tokens=3, paused=True)
    reading = FakeProgress(status=RowStatus.PREFILL, prefilled=2, paused=True)
    assert running_note(running) == "paused, answering, 3 tokens so far"
    assert running_note(reading) == "paused, reading the prompt, 2 of 8 tokens"


def test_saved_text_carries_no_timings_and_no_ids() -> None:
    first = frozen_bundle([finished("same")], title="m", metadata={"seed": 1})
    assert first == frozen_bundle([finished("same")], title="m", metadata={"seed": 1})


@pytest.mark.parametrize("text", ["plain", "ünïcode 漢字 🦊", "lone \ud800 surrogate", "\udfff", "\ud83e\udd8a"])
def test_what_comes_out_can_be_sent(text: str) -> None:
    clean_text(text).encode("utf-8")
    data, _ = frozen_bundle([finished(text, text)], title=text, metadata={})
    for value in data.values():
        value.encode("utf-8")


def test_clean_text_leaves_good_text_alone() -> None:
    text = "ünïcode 漢字 🦊\n\t\x00"
    assert clean_text(text) is text


def test_a_title_is_the_first_line_that_says_something() -> None:
    assert prompt_title("\n\n  Tell me \n about a fox") == "Tell me"
    assert prompt_title("") == ""
    long = prompt_title("word " * 100)
    assert len(long) <= TITLE_CHARACTERS
    assert long.endswith("word…")


def test_a_standalone_page_fetches_nothing() -> None:
    page = standalone_page("<div>x</div>", title="<script>")
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "http" not in page

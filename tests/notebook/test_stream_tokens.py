"""A stream's text token by token: from the first on, with the last, for each view, and anew after a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.notebook.fake_rows import FakeRow
from tests.notebook.streaming import shown, tell

if TYPE_CHECKING:
    from tests.notebook.streaming import Wire


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
    row = FakeRow()
    view = shown(row)
    row.say("A")
    row.say(" fox")
    view.tick()
    assert tokens_of(wire) == []
    tell(view, kind="tokens", row=0, on=True, view="v1")
    view.tick()
    assert tokens_of(wire) == [(0, ["A"])]
    row.say(" ran")
    view.tick()
    assert tokens_of(wire) == [(0, ["A"]), (1, [" fox"])]
    chances = [row["tok"]["chances"] for message in wire.custom() for row in message["rows"] if "tok" in row]
    assert chances == [[1.0], [0.6065]]


@pytest.mark.parametrize("keep", [True, False])
def test_the_last_token_comes_before_the_last_snapshot(wire: Wire, keep: bool) -> None:
    row = FakeRow()
    view = shown(row, keep=keep)
    tell(view, kind="tokens", row=0, on=True, view="v1")
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
    row = FakeRow()
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


def test_after_a_resync_tokens_begin_anew(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row, keep=True)
    tell(view, kind="tokens", row=0, on=True, view="v1")
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
    row = FakeRow()
    view = shown(row, keep=True)
    row.say("A")
    row.finish()
    for _ in range(2):
        tell(view, kind="tokens", row=0, on=True, view="v1")
        view.tick()
    assert tokens_of(wire) == [(0, ["A"])] * 2


def test_a_reader_may_ask_for_tokens_after_the_end_while_the_view_still_lives(wire: Wire) -> None:
    row = FakeRow()
    view = shown(row)
    row.say("A")
    row.say(" fox")
    row.finish()
    view.tick()  # frozen: but a page that was reloaded shows the view that it knows from the file
    told = len(wire.snapshots())
    tell(view, kind="tokens", row=0, on=True, view="v1")
    view.tick()
    assert tokens_of(wire) == [(0, ["A", " fox"])]
    tell(view, kind="resync")
    view.tick()
    assert len(wire.snapshots()) == told + 1
    assert tokens_of(wire)[1:] == [(0, ["A", " fox"])]

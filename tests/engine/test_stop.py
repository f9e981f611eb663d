"""Stop strings on text: the same end however the text was cut, nothing shown that belongs to one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_notebook.engine.stop import StopMatcher

alphabet = st.text(alphabet="ab.", max_size=30)
stop_strings = st.lists(st.text(alphabet="ab.", min_size=1, max_size=5), min_size=0, max_size=4)


def expected(text: str, stops: list[str]) -> str:
    starts = [text.find(stop) for stop in stops if stop in text]
    return text[: min(starts)] if starts else text


@given(alphabet, stop_strings, st.data())
@example("aab", ["ab"], None)
@example("abab.", ["abab.", "ba"], None)
def test_text_ends_before_the_earliest_stop_however_it_was_cut(
    text: str, stops: list[str], data: st.DataObject | None
) -> None:
    matcher = StopMatcher(stops)
    shown, at = "", 0
    while at < len(text) and not matcher.matched:
        size = data.draw(st.integers(1, 4)) if data is not None else 1
        shown += matcher.push(text[at : at + size])
        at += size
        # What is shown must be right whatever follows: it never has to be taken back.
        assert expected(text, stops).startswith(shown)
    shown += matcher.flush()
    assert shown == expected(text, stops)
    assert matcher.matched == any(stop in text for stop in stops)


@given(alphabet, stop_strings)
def test_only_what_could_begin_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if matcher.matched or any(stop in text for stop in stops):
        return
    held = text[len(shown) :]
    assert not held or any(stop.startswith(held) for stop in stops)


def test_after_a_match_nothing_is_shown() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("one EN") == "one "
    assert matcher.push("D two") == ""
    assert matcher.matched
    assert matcher.push("three") == ""
    assert matcher.flush() == ""


def test_an_earlier_start_is_waited_for() -> None:
    matcher = StopMatcher(["b", "abc"])
    assert matcher.push("xab") == "x"
    assert not matcher.matched
    assert matcher.push("c") == ""
    assert matcher.matched


def test_an_earlier_start_that_fails_gives_way_to_the_match() -> None:
    matcher = StopMatcher(["b", "abc"])
    matcher.push("xab")
    assert matcher.push("d") == "a"
    assert matcher.matched


@pytest.mark.parametrize("stop", ["\n", "\n\n", "```", "}", "漢字", "\U0001f98a"])
def test_stops_of_any_characters(stop: str) -> None:
    matcher = StopMatcher([stop])
    assert "".join(map(matcher.push, f"text{stop}more")) == "text"
    assert matcher.matched

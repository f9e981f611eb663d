"""Thinking apart from answering, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.thinking import ThinkingMarks, ThinkingSplitter

PARTS = ["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "<", "yes"]
MARKS = ThinkingMarks("<think>", "</think>", (1,), (2,))
CHANNEL = ThinkingMarks("<|channel>thought", "<channel|>", (5, 6), (7,))


def split(pieces: list[str], *, inside: bool = False, marks: ThinkingMarks = MARKS) -> tuple[str, str]:
    splitter = ThinkingSplitter(marks, inside=inside)
    parts = [splitter.push(piece) for piece in pieces]
    parts.append(splitter.flush())
    return "".join(p[0] for p in parts), "".join(p[1] for p in parts)


CASES = [
    ("plain answer", False, "", "plain answer"),
    ("  plain", False, "", "  plain"),
    ("<think>hm</think>yes", False, "hm", "yes"),
    ("\n<think>\nhm\n</think>\n\nyes\n", False, "\nhm\n", "yes\n"),
    ("hm\n</think>\n\nyes", True, "hm\n", "yes"),
    ("never ends", True, "never ends", ""),
    ("<think>never ends </thi", False, "never ends </thi", ""),
    ("<think>a</think> <think>b</think> c", False, "a\n\nb", "c"),
    ("so: <think>is a mark</think>", False, "", "so: <think>is a mark</think>"),
    ("<think>a</think>yes <think>no</think>", False, "a", "yes <think>no</think>"),
    ("<thing", False, "", "<thing"),
    ("<thin", False, "", "<thin"),
    ("<think></think>\n\n", False, "", ""),
    ("</think>yes", False, "", "</think>yes"),
    ("", False, "", ""),
]


@pytest.mark.parametrize(("text", "inside", "thinking", "answer"), CASES)
def test_what_is_thinking_and_what_is_answer(text: str, inside: bool, thinking: str, answer: str) -> None:
    assert split([text], inside=inside) == (thinking, answer)
    assert split(list(text), inside=inside) == (thinking, answer)


def test_marks_of_several_tokens() -> None:
    assert split(["<|chan", "nel>thought\nhm<chan", "nel|>yes"], marks=CHANNEL) == ("\nhm", "yes")


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", " ", "\n", "a", "<", "yes"]), max_size=14
    ),
    cuts=st.lists(st.integers(0, 60)),
    inside=st.booleans(),
)
def test_cutting_changes_nothing(parts: list[str], cuts: list[int], inside: bool) -> None:
    text = "".join(parts)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    thinking, answer = split(pieces, inside=inside)
    assert (thinking, answer) == split([text], inside=inside)
    assert set(thinking + answer) <= set(text) | {"\n"}
    if not inside and not text.lstrip().startswith("<think>"):
        assert (thinking, answer) == ("", text)


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "<"]), max_size=10), st.booleans())
def test_nothing_shown_is_ever_taken_back(parts: list[str], inside: bool) -> None:
    """What was given out as answer before a piece stays answer: the streamed text only grows."""
    splitter, shown = ThinkingSplitter(MARKS, inside=inside), ""
    for piece in parts:
        shown += splitter.push(piece)[1]
    whole = shown + splitter.flush()[1]
    assert whole == split(parts, inside=inside)[1]


@pytest.mark.parametrize(
    ("ids", "is_open"),
    [((), False), ((1,), True), ((1, 2), False), ((1, 2, 1, 9), True), ((2, 9), False), ((9, 9), False)],
)
def test_prompts_that_open_a_block(ids: tuple[int, ...], is_open: bool) -> None:
    assert MARKS.left_open_by(ids) is is_open


def test_prompts_and_marks_of_several_tokens() -> None:
    assert CHANNEL.left_open_by((5, 6, 9))
    assert not CHANNEL.left_open_by((5, 9, 6))
    assert not CHANNEL.left_open_by((5, 6, 7))

"""A model that thinks: its handle's text is the answer, and the thinking stands apart."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.core.thinking import ThinkingMarks
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.loading import ModelFacts, _marks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.handle import Handle

# The scripted encoder has a token a character: these stand in the prompt for marks.
MARKS = ThinkingMarks("<think>", "</think>", (ord("\u00ab"),), (ord("\u00bb"),))
PIECES = ["<thi", "nk>", "let me", " see", "</", "think>", "\n\n", "It is", " 4", "."]


def thinking(script: Callable[[int, int], str]) -> Gateway:
    return Gateway.from_backend(ScriptedBackend(script=script), facts=ModelFacts(thinking=MARKS))


def test_the_answer_is_the_text() -> None:
    with thinking(scripted_texts(PIECES)) as gateway:
        result = gateway.submit("2+2?", max_tokens=10).result(60)
    assert result.text == "It is 4."
    assert result.reasoning == "let me see"
    assert result.to_dict()["reasoning"] == "let me see"
    assert result.generated_tokens == 10


def test_deltas_are_the_answer_s() -> None:
    with thinking(scripted_texts(PIECES)) as gateway:
        handle = gateway.submit("2+2?", max_tokens=10)
        assert "".join(handle) == "It is 4."
        assert handle.reasoning == handle.reasoning_so_far == "let me see"


def test_the_prompt_may_have_opened_it() -> None:
    with thinking(scripted_texts(PIECES[2:])) as gateway:
        opened = gateway.submit("2+2?\u00ab", max_tokens=8).result(60)
        closed = gateway.submit("2+2?\u00ab\u00bb", max_tokens=8).result(60)
    assert (opened.reasoning, opened.text) == ("let me see", "It is 4.")
    assert (closed.reasoning, closed.text) == (None, "".join(PIECES[2:]))


def test_cut_while_thinking() -> None:
    with thinking(scripted_texts(PIECES)) as gateway:
        result = gateway.submit("2+2?", max_tokens=4).result(60)
    assert (result.reasoning, result.text, result.finish_reason) == ("let me see", "", "length")


def test_progress_says_that_it_thinks() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def script(_row: int, index: int) -> str:
        if index == 4:
            reached.set()
            go_on.wait(60)
        return PIECES[index]

    with thinking(script) as gateway:
        handle: Handle = gateway.submit("2+2?", max_tokens=10)
        assert reached.wait(60)
        assert handle.progress().thinking == "thinking, 10 characters so far"
        assert handle.text_so_far == ""
        assert handle.reasoning_so_far == "let me see"
        go_on.set()
        handle.result(60)
        assert handle.progress().thinking == ""


def test_a_model_without_marks_writes_text() -> None:
    with Gateway.from_backend(ScriptedBackend(script=scripted_texts(PIECES))) as gateway:
        result = gateway.submit("2+2?", max_tokens=10).result(60)
    assert result.reasoning is None
    assert result.text == "".join(PIECES)


def test_a_frame_has_the_thinking_beside_the_answer() -> None:
    with thinking(scripted_texts(PIECES)) as gateway:
        frame = gateway.map(["a", "b"], max_tokens=10)
    assert frame.reasoning.tolist() == ["let me see"] * 2
    assert frame.text.tolist() == ["It is 4."] * 2


@pytest.mark.parametrize("tokenizer", [SimpleNamespace(), SimpleNamespace(think_start=None, think_end=None), object()])
def test_tokenizers_without_marks(tokenizer: object) -> None:
    assert _marks_of(tokenizer) is None


def test_a_tokenizer_with_marks() -> None:
    wrapper = SimpleNamespace(
        think_start="<think>", think_end="</think>", think_start_tokens=(3,), think_end_tokens=(4,)
    )
    assert _marks_of(wrapper) == ThinkingMarks("<think>", "</think>", (3,), (4,))

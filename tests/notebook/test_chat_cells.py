"""Chats in cells: turns, reruns, `%mlxchat`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.gateway.chats import chats
from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Gate


@pytest.fixture(autouse=True)
def no_chat_left() -> Iterator[None]:
    yield
    for name in list(chats):
        chats.forget(name)


@pytest.fixture
def ready(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> InteractiveShell:
    scripted()
    return loaded


def turn(shell: InteractiveShell, text: str, cell: str, line: str = "--chat fox --view quiet --max-tokens 2") -> Any:
    shell.run_cell(f"%%mlxgen {line}\n{text}", store_history=True, cell_id=cell)
    return registry.last_handle()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SAID = {"role": "assistant", "content": "The fox"}


def test_a_turn_sees_those_before_it(ready: InteractiveShell) -> None:
    turn(ready, "one", "a")
    assert turn(ready, "two", "b").prompt_text == "one\nThe fox\ntwo"
    assert chats["fox"] == [user("one"), SAID, user("two"), SAID]


def test_running_a_cell_again_goes_back_and_says_so(
    ready: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, cell in (("one", "a"), ("two", "b"), ("three", "c")):
        turn(ready, text, cell)
    assert capsys.readouterr().out == ""
    turn(ready, "second", "b")
    assert capsys.readouterr().out == "Chat fox goes back to before this cell: this turn and 1 after it were dropped.\n"
    assert chats["fox"] == [user("one"), SAID, user("second"), SAID]
    turn(ready, "again", "b")
    assert "this turn was dropped" in capsys.readouterr().out


def test_a_refused_turn_changes_nothing(ready: InteractiveShell) -> None:
    turn(ready, "one", "a")
    turn(ready, "x", "a", "--chat fox --temperature -3")
    assert chats["fox"] == [user("one"), SAID]


def test_system(ready: InteractiveShell) -> None:
    handle = turn(ready, "one", "a", "--chat fox --view quiet --max-tokens 2 --system 'Be brief.'")
    assert handle.prompt_text == "Be brief.\none"
    assert chats["fox"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("option", ["--n 2", "--raw", "--with $x"])
def test_what_does_not_go_with_a_chat(ready: InteractiveShell, option: str) -> None:
    ready.user_ns["x"] = {}
    with pytest.raises(UsageError, match=f"leave out {option.split(maxsplit=1)[0]}"):
        ready.run_cell_magic("mlxgen", f"--chat fox {option}", "hi")
    with pytest.raises(UsageError, match="leave out --split"):
        ready.run_cell_magic("mlxgen", "--chat fox --split", "a\n---\nb")
    assert len(chats) == 0


def test_show_export_undo_reset(ready: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    turn(ready, "one", "a")
    turn(ready, "two", "b")

    def magic(line: str) -> str:
        capsys.readouterr()
        ready.run_line_magic("mlxchat", line)
        return capsys.readouterr().out

    assert magic("fox") == "user: one\nassistant: The fox\nuser: two\nassistant: The fox\n"
    assert magic("") == "fox: 2 turns\n"
    assert magic("fox --export told") == "told is the list of fox's 4 messages.\n"
    assert ready.user_ns["told"] == chats["fox"]
    assert magic("fox --undo") == "Chat fox: the last turn was dropped.\n"
    assert chats["fox"] == [user("one"), SAID]
    assert magic("fox --reset") == "Chat fox is empty: 1 turn dropped.\n"
    assert magic("fox --undo") == "Chat fox has no turn.\n"
    assert magic("fox") == "Chat fox has no finished turn.\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fix", "there is no chat 'fix'; there are: fox"),
        ("fox --reset --undo", "one of --reset, --undo and --export at a time"),
        ("--reset", "needs the name of a chat"),
        ("fox --export 2x", "--export takes the name of a variable"),
        ("fox --rest", "did you mean --reset?"),
    ],
)
def test_mistakes(ready: InteractiveShell, line: str, said: str) -> None:
    turn(ready, "one", "a")
    with pytest.raises(UsageError) as caught:
        ready.run_line_magic("mlxchat", line)
    assert said in str(caught.value)
    assert len(chats["fox"]) == 2


def test_names_complete(ready: InteractiveShell) -> None:
    from mlx_notebook.notebook.completion import complete

    turn(ready, "one", "a")
    assert complete("%mlxchat f", "f", {}) == ["fox"]
    assert complete("%%mlxgen --chat f", "f", {}) == ["fox"]


def test_a_running_turn_of_a_cell_that_runs_again_is_cancelled(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    scripted(gate.script)
    loaded.run_cell("%config MlxNotebook.mode = 'widget'")
    first = turn(loaded, "one", "a")
    assert gate.reached.wait(60)
    second = turn(loaded, "two", "b")
    assert second.progress().waiting == f"request {first.id} comes first"
    again = turn(loaded, "one again", "a")
    assert second.cancelled()
    gate.opened.set()
    assert again.result(60).text == "The fox"
    assert chats["fox"] == [user("one again"), SAID]

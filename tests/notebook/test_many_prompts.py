"""`%%mlxgen` with several rows: --split, --n, --fill, --with; what it returns, prints, shows and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import RowFailed
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.handles import Handles
from mlx_notebook.gateway.loading import ModelFacts
from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from tests.notebook.conftest import Displayed


def gen(shell: InteractiveShell, line: str, cell: str = "hello") -> Any:
    return shell.run_cell_magic("mlxgen", f"--view quiet --max-tokens 2 {line}", cell)


@pytest.fixture
def ready(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> InteractiveShell:
    scripted()
    return loaded


@pytest.fixture
def from_elsewhere(ready: InteractiveShell) -> Gateway:
    """A second gateway, whose model came from somewhere else."""
    del ready
    facts = ModelFacts(source="elsewhere", revision="abc")
    gateway = Gateway.from_backend(ScriptedBackend(script=lambda *_: "y"), facts=facts, name="other")
    registry.hold(gateway)
    return gateway


def test_split_gives_handles_in_order(ready: InteractiveShell) -> None:
    handles = gen(ready, "--split --into all", "one\n---\ntwo\n---\nthree")
    assert isinstance(handles, Handles)
    assert ready.user_ns["all"] is handles
    assert [handle.prompt_text for handle in handles] == ["one", "two", "three"]
    assert [handle.text for handle in handles] == ["The fox"] * 3


def test_a_separator_of_ones_own(ready: InteractiveShell) -> None:
    assert [h.prompt_text for h in gen(ready, "--split ===", "one\n===\ntwo")] == ["one", "two"]
    assert [h.prompt_text for h in gen(ready, "--split ---", "one\n---\ntwo")] == ["one", "two"]
    assert [h.prompt_text for h in gen(ready, "--split=--", "one\n--\ntwo")] == ["one", "two"]


def test_split_with_one_part_still_gives_handles(ready: InteractiveShell) -> None:
    assert isinstance(gen(ready, "--split", "one"), Handles)


def test_n_gives_samples_with_seeds_of_their_own(ready: InteractiveShell) -> None:
    handles = gen(ready, "--n 3 --seed 5")
    assert [handle.options["seed"] for handle in handles] == [5, 6, 7]
    assert len(gen(ready, "--n 2 --split", "a\n---\nb")) == 4


def test_n_of_one_is_one_handle(ready: InteractiveShell) -> None:
    assert gen(ready, "--n 1").text == "The fox"


def test_fill_puts_variables_in(ready: InteractiveShell) -> None:
    ready.user_ns.update(animal="hen", place="{{animal}}")
    assert gen(ready, "--fill", "A {{animal}} in {{ place }}").prompt_text == "A hen in {{animal}}"
    assert gen(ready, "", "A {{animal}}").prompt_text == "A {{animal}}"


def test_with_compares_settings_under_one_seed(ready: InteractiveShell) -> None:
    ready.user_ns.update(cold={"temperature": 0.1}, hot={"temperature": 2.0, "max_tokens": 3})
    handles = gen(ready, "--with $cold --with $hot --split", "a\n---\nb")
    assert [h.prompt_text for h in handles] == ["a", "a", "b", "b"]
    assert [h.options["temperature"] for h in handles] == [0.1, 2.0, 0.1, 2.0]
    assert [h.options["max_tokens"] for h in handles] == [2, 3, 2, 3]
    assert len({h.options["seed"] for h in handles}) == 1


def test_with_a_gateway(ready: InteractiveShell, scripted: Callable[..., Gateway]) -> None:
    ready.user_ns["other"] = scripted(lambda _row, _index: "x", name="other")
    ready.user_ns["same"] = {}
    handles = gen(ready, "--gateway toy --with $same --with $other")
    assert [h.text for h in handles] == ["The fox", "xx"]


MISTAKES: list[tuple[str, str, type[Exception], str]] = [
    ("--fill", "{{animla}}", UsageError, "did you mean {{animal}}?"),
    ("--with $number", "hi", UsageError, "--with takes a dictionary of options or a gateway, as $name, not int"),
    ("--with temperature=1", "hi", UsageError, "--with takes a dictionary of options or a gateway"),
    ("--with $wrong", "hi", TypeError, "did you mean 'temperature'?"),
    ("--with $fine --with $wrong", "hi", TypeError, "did you mean 'temperature'?"),
    ("--with $counted", "hi", UsageError, "n holds for all settings: --n 2"),
    ("--n 0", "hi", ValueError, "n=0 is out of range"),
    ("--n many", "hi", UsageError, "--n takes a whole number"),
    ("--split", "---\n---", UsageError, "there is no prompt"),
    ("--split --max-tokens 0", "a\n---\nb", UsageError, "--max-tokens was given twice"),
]


@pytest.mark.parametrize(("line", "cell", "kind", "said"), MISTAKES)
def test_mistakes_submit_nothing(
    ready: InteractiveShell, line: str, cell: str, kind: type[Exception], said: str
) -> None:
    ready.user_ns.update(animal="hen", number=3, wrong={"temprature": 1}, fine={"top_k": 2}, counted={"n": 2})
    before = registry.last_handle()
    with pytest.raises(kind) as caught:
        gen(ready, line, cell)
    assert said in str(caught.value)
    assert registry.last_handle() is before


def test_a_terminal_prints_them_one_after_the_other(
    ready: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    ready.run_cell("%%mlxgen --max-tokens 4 --split\none\n---\ntwo", store_history=True)
    assert capsys.readouterr().out.splitlines() == ["1. one", "The fox ran.", "2. two", "The fox ran."]
    assert isinstance(ready.user_ns["_"], Handles)


def test_a_batch_tool_gets_one_output_with_titles(ready: InteractiveShell, displayed: Displayed) -> None:
    ready.user_ns["cold"] = {"temperature": 0.1}
    ready.run_cell("%config MlxNotebook.mode = 'batch'")
    ready.run_cell("%%mlxgen --max-tokens 4 --seed 3 --with $cold --with $cold\nTell me.")
    (output,) = displayed.outputs
    plain = output["data"]["text/plain"]
    assert plain.splitlines()[0] == "1. temperature=0.1 \N{MIDDLE DOT} Tell me."
    assert plain.count("The fox ran.") == 2
    rows = output["metadata"]["mlx_notebook"]["rows"]
    assert [row["seed"] for row in rows] == [3, 3]
    assert rows[0]["options"]["temperature"] == 0.1


def test_each_row_of_a_comparison_says_which_model_it_is_of(
    ready: InteractiveShell, displayed: Displayed, from_elsewhere: Gateway
) -> None:
    ready.user_ns.update(as_it_is={}, other=from_elsewhere)
    ready.run_cell("%config MlxNotebook.mode = 'batch'")
    ready.run_cell("%%mlxgen --gateway toy --with $as_it_is --with $other\nTell me.")
    about = displayed.outputs[0]["metadata"]["mlx_notebook"]
    assert list(about) == ["rows"]
    of = [(row["model"], row["source"], row["revision"]) for row in about["rows"]]
    assert of == [("scripted", "scripted", None), ("scripted", "elsewhere", "abc")]
    assert all({"options", "seed"} < set(row) for row in about["rows"])


@pytest.mark.parametrize("show", ["%mlxshow $handle", "handle.show()"])
def test_shown_again_it_still_says_what_it_came_from(
    ready: InteractiveShell, displayed: Displayed, from_elsewhere: Gateway, show: str
) -> None:
    ready.user_ns["handle"] = from_elsewhere.submit("hi", seed=4, max_tokens=1)
    assert ready.user_ns["handle"].text == "y"
    from_elsewhere.close()
    ready.run_cell("%config MlxNotebook.mode = 'batch'")
    ready.run_cell(show)
    about = displayed.outputs[0]["metadata"]["mlx_notebook"]
    assert (about["model"], about["source"], about["revision"]) == ("scripted", "elsewhere", "abc")
    assert (about["seed"], about["options"]["max_tokens"]) == (4, 1)


def test_a_failing_row_is_raised_and_the_others_are_kept(
    loaded: InteractiveShell, scripted: Callable[..., Gateway]
) -> None:
    scripted()
    loaded.user_ns["boom"] = {"logits_processors": [lambda _ids, logits: logits], "deadline": 1e-9}
    loaded.user_ns["fine"] = {}
    result = loaded.run_cell("%%mlxgen --into both --view quiet --max-tokens 2 --with $boom --with $fine\nhi")
    assert "deadline" in str(result.error_in_exec)
    assert not isinstance(result.error_in_exec, RowFailed)
    assert loaded.user_ns["both"][1].text == "The fox"

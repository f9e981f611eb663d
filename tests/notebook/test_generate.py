"""`%%mlxgen`: what it submits, what it returns, and how it shows the answer in each mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.engine.backend import scripted_texts
from mlx_notebook.errors import GrammarError, QueueFull, RowFailed
from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.registry import registry
from mlx_notebook.models import catalog, hub
from mlx_notebook.notebook import find_gateway, loading

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Displayed, Gate


def run(shell: InteractiveShell, code: str) -> ExecutionResult:
    result: ExecutionResult = shell.run_cell(code, store_history=True)
    return result


def set_mode(shell: InteractiveShell, mode: str) -> None:
    run(shell, f"%config MlxNotebook.mode = '{mode}'")


def last_id() -> int:
    last = registry.last_handle()
    return 0 if last is None else last.id


# ---------------------------------------------------------------- what it submits and returns


def test_a_cell_in_a_terminal_blocks_and_prints_the_text(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    result = run(loaded, "%%mlxgen --max-tokens 4\nTell me about a fox.")
    assert capsys.readouterr().out == "The fox ran.\n"
    assert result.success
    handle: Any = result.result
    assert isinstance(handle, Handle)
    assert handle.status is RowStatus.FINISHED


def test_the_handle_is_bound_and_shown_nowhere_twice(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    number = loaded.execution_count
    run(loaded, "%%mlxgen --max-tokens 4 --into story\nhello")
    assert capsys.readouterr().out == "The fox ran.\n"
    story = loaded.user_ns["story"]
    assert story.text == "The fox ran."
    assert loaded.user_ns["_"] is story
    assert loaded.user_ns["Out"][number] is story


def test_called_from_python_it_returns_the_handle(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> None:
    scripted()
    handle = loaded.run_cell_magic("mlxgen", "--max-tokens 2 --view quiet", "hello")
    assert handle.text == "The fox"
    result = run(loaded, "x = get_ipython().run_cell_magic('mlxgen', '--view quiet --max-tokens 1', 'hi')")
    assert result.success
    assert loaded.user_ns["x"].text == "The"


@pytest.mark.parametrize(
    ("cell", "prompt"),
    [
        ("hello\n", "hello"),
        ("hello\n\n", "hello\n"),
        ("  two\n    lines  \n", "  two\n    lines  "),
        ("{name} {{x}} $name %time !ls", "{name} {{x}} $name %time !ls"),
        ("back\\slash \\n", "back\\slash \\n"),
        ("\ufeff\u202eodd \x1b[31m", "\ufeff\u202eodd \x1b[31m"),
    ],
)
def test_the_cells_text_is_the_prompt_as_it_stands(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], cell: str, prompt: str
) -> None:
    scripted()
    loaded.user_ns["name"] = "not me"
    handle = loaded.run_cell_magic("mlxgen", "--max-tokens 1 --view quiet", cell)
    assert handle.prompt_text == prompt


def test_the_line_is_not_expanded(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> None:
    scripted()
    loaded.user_ns.update(name="expanded", ends=["ran", "slept"])
    run(loaded, "%%mlxgen --view quiet --stop '{name}' --stop '$$name' --stop $ends --into h\nhello")
    assert loaded.user_ns["h"].options["stop"] == ["{name}", "$name", "ran", "slept"]


def test_options_reach_the_request(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> None:
    scripted()
    loaded.user_ns["bias"] = {70: 1.5}
    line = "--max-tokens 3 --temperature 0.5 --top-k 9 --seed 7 --logprobs 2 --logit-bias $bias --cache-prompt false"
    handle = loaded.run_cell_magic("mlxgen", f"{line} --view quiet", "hello")
    wanted = {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_k": 9,
        "seed": 7,
        "logprobs": 2,
        "logit_bias": {70: 1.5},
        "cache_prompt": False,
    }
    assert {name: handle.options[name] for name in wanted} == wanted


# ---------------------------------------------------------------- mistakes submit nothing


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("%%mlxgen --temprature 1\nhi", (UsageError, "did you mean --temperature?")),
        ("%%mlxgen --json-schema x\nhi", (GrammarError, "json_schema: the text is no JSON at line 1, column 1")),
        ("%%mlxgen --temperature 3000\nhi", (ValueError, "temperature=3000.0 is out of range: a number from 0 to 100")),
        ("%%mlxgen --max-tokens 0\nhi", (ValueError, "max_tokens=0 is out of range")),
        ("%%mlxgen --logit-bias 42\nhi", (TypeError, "logit_bias: a dictionary")),
        ("%%mlxgen --logit-bias '{-1: 2}'\nhi", (ValueError, "token ids run from 0")),
        ("%%mlxgen --temperature $none\nhi", (UsageError, "there is no variable 'none'")),
        ("%%mlxgen --gateway toi\nhi", (UsageError, "there is no gateway 'toi'; did you mean toy?")),
        ("%%mlxgen --gateway $number\nhi", (UsageError, "%%mlxgen --gateway takes a gateway or its name, not int")),
        ("%%mlxgen --raw\n   \n", (UsageError, "there is no prompt")),
        ("%%mlxgen\n", (UsageError, "cell body is empty")),
    ],
)
def test_a_mistake_is_one_line_and_submits_nothing(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    capsys: pytest.CaptureFixture[str],
    code: str,
    error: tuple[type[Exception], str],
) -> None:
    kind, said = error
    scripted()
    loaded.user_ns["number"] = 3
    before = last_id()
    result = run(loaded, code)
    assert type(result.error_in_exec) is kind
    out = capsys.readouterr()
    shown = (out.out + out.err).strip()
    assert said in shown
    assert "\n" not in shown
    assert last_id() == before


def test_a_full_queue_is_one_line(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = scripted(gate.script, max_queued=1)
    gateway.submit("running")
    gate.reached.wait()
    gateway.submit("waiting")
    result = run(loaded, "%%mlxgen\none too many")
    assert isinstance(result.error_in_exec, QueueFull)
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


# ---------------------------------------------------------------- which gateway


def test_the_named_gateway_or_the_object_answers(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> None:
    first = scripted(scripted_texts(["1"]), name="first")
    scripted(scripted_texts(["2"]), name="second")
    loaded.user_ns["gw"] = first

    def text(line: str) -> str:
        return str(loaded.run_cell_magic("mlxgen", f"--max-tokens 1 --view quiet {line}", "hi").text)

    assert [text(""), text("--gateway first"), text("--gateway $gw"), text("--gateway second")] == ["2", "1", "1", "2"]


def test_without_a_model_the_default_is_loaded_and_that_is_said(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda model, _options, _mode: scripted(name=model))
    result = run(loaded, "%%mlxgen --max-tokens 1\nhi")
    assert result.success
    assert capsys.readouterr().out.splitlines() == [
        "No model was loaded yet: smollm2, the default (%mlxload takes others).",
        "The",
    ]


def test_the_hubs_copy_of_the_default_is_as_good_as_its_wheel(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "wheel_gguf", lambda: None)
    monkeypatch.setattr(hub, "is_cached", lambda repo_id: repo_id == catalog.ALIASES["smollm2"])
    monkeypatch.setattr(loading, "load_model", lambda model, _options, _mode: scripted(name=model))
    assert run(loaded, "%%mlxgen --max-tokens 1\nhi").success


def test_nothing_is_downloaded_that_nobody_named(
    loaded: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find_gateway, "default_is_here", lambda: False)
    result = run(loaded, "%%mlxgen\nhi")
    assert type(result.error_in_exec) is UsageError
    assert "%mlxload smollm2 fetches it" in capsys.readouterr().err


# ---------------------------------------------------------------- modes


def test_in_a_page_the_cell_returns_at_once_with_a_live_view(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], displayed: Displayed, gate: Gate
) -> None:
    scripted(gate.script)
    set_mode(loaded, "widget")
    result = run(loaded, "%%mlxgen --max-tokens 4 --into story\nTell me.")
    assert result.success
    story = loaded.user_ns["story"]
    assert not story.done()
    assert len(displayed.outputs) == 1
    gate.opened.set()
    assert story.text == "The fox ran."


def test_wait_blocks_in_a_page_too(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], displayed: Displayed
) -> None:
    scripted()
    set_mode(loaded, "widget")
    assert run(loaded, "%%mlxgen --wait --max-tokens 4 --into story\nhi").success
    assert loaded.user_ns["story"].done()
    assert displayed.outputs


def test_quiet_shows_nothing_in_any_mode(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    displayed: Displayed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted()
    for mode in ("print", "batch", "widget"):
        set_mode(loaded, mode)
        assert run(loaded, "%%mlxgen --view quiet --max-tokens 4\nhi").success
    assert displayed.outputs == []
    assert capsys.readouterr().out == ""


def test_a_batch_tool_gets_one_finished_output_with_its_provenance(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    displayed: Displayed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted(scripted_texts(["<b>", "&", "\x1b[31m"]))
    set_mode(loaded, "batch")
    for _ in range(2):
        assert run(loaded, "%%mlxgen --max-tokens 3 --seed 7 --system 'be brief'\nhi").success
    assert capsys.readouterr().out == ""
    first, again = displayed.outputs
    assert first == again
    assert set(first["data"]) == {"text/plain", "text/html"}
    assert "&lt;b&gt;&amp;" in first["data"]["text/html"]
    assert first.get("transient") in (None, {})
    about = first["metadata"]["mlx_notebook"]
    assert about["model"] == "scripted"
    assert about["seed"] == 7
    assert about["options"]["system"] == "be brief"
    assert (about["source"], about["revision"]) == ("scripted", None)


def test_a_drawn_seed_is_saved_too(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], displayed: Displayed
) -> None:
    scripted()
    set_mode(loaded, "batch")
    assert run(loaded, "%%mlxgen --max-tokens 1 --into h\nhi").success
    assert displayed.outputs[0]["metadata"]["mlx_notebook"]["seed"] == loaded.user_ns["h"].options["seed"]


def test_the_table_view_is_one_line_a_row(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], displayed: Displayed
) -> None:
    scripted()
    set_mode(loaded, "batch")
    run(loaded, "%%mlxgen --view table --max-tokens 4\nTell <me>\nmore")
    (output,) = displayed.outputs
    heading, line = output["data"]["text/plain"].splitlines()
    assert heading.split() == ["prompt", "status", "tokens", "text"]
    assert line == "Tell <me>  cut at max_tokens=4       4  The fox ran."
    assert "Tell &lt;me&gt;" in output["data"]["text/html"]


def test_hostile_text_reaches_a_terminal_without_its_control_characters(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(scripted_texts(["\x1b", "]0;pwned\x07", "\r", "safe", "\x1b[2J", "\x9b31m"]))
    run(loaded, "%%mlxgen --max-tokens 6\nhi")
    assert capsys.readouterr().out == "]0;pwnedsafe[2J31m\n"
    run(loaded, "%%mlxgen --max-tokens 6 --view table\nhi \x1b[31m")
    assert not set(capsys.readouterr().out) & set("\x1b\x07\r\x9b")


# ---------------------------------------------------------------- failures


@pytest.fixture
def break_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows end with an error at their third token, as when a user's processor raises."""
    from mlx_notebook.core.events import RowOutcome
    from mlx_notebook.engine.backend import ScriptedBackend

    whole = ScriptedBackend._outcome

    def outcome(self: ScriptedBackend, row_id: int) -> RowOutcome:
        if self._counts[row_id] == 2:
            return RowOutcome(row_id, None, error=("ZeroDivisionError: division by zero", "  in the user's code\n"))
        return whole(self, row_id)

    monkeypatch.setattr(ScriptedBackend, "_outcome", outcome)


@pytest.mark.usefixtures("break_rows")
def test_a_failed_row_raises_in_a_blocking_cell(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    result = run(loaded, "%%mlxgen\nhi")
    assert isinstance(result.error_in_exec, RowFailed)
    assert str(result.error_in_exec.result) == "The fox"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The fox"
    assert lines[1] == "  in the user's code"
    assert lines[2].startswith("RowFailed: request ")
    assert lines[2].endswith("failed: ZeroDivisionError: division by zero")
    run(loaded, "%mlxstatus")
    assert "meanwhile" not in capsys.readouterr().out


@pytest.mark.usefixtures("break_rows", "displayed")
def test_a_failure_that_nobody_saw_is_mentioned_once(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted()
    set_mode(loaded, "widget")
    assert run(loaded, "%%mlxgen --into h\nhi").success
    handle = loaded.user_ns["h"]
    assert isinstance(handle.exception(), RowFailed)
    capsys.readouterr()
    run(loaded, "%mlxstatus")
    line = f"Request {handle.id} failed meanwhile: ZeroDivisionError: division by zero (%mlxshow {handle.id})"
    assert line in capsys.readouterr().out.splitlines()
    run(loaded, "%mlxstatus")
    assert "meanwhile" not in capsys.readouterr().out

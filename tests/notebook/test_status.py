"""`%mlxstatus`, `%mlxmodels`, `%mlxshow`, and tables in general."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.engine.backend import scripted_texts
from mlx_notebook.models.catalog import LocalModel
from mlx_notebook.notebook import status
from mlx_notebook.notebook.table_view import TableView, table_bundle, tabulate
from tests.notebook.fake_rows import FakeRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Displayed, Gate


def run(shell: InteractiveShell, code: str) -> ExecutionResult:
    result: ExecutionResult = shell.run_cell(code, store_history=True)
    return result


def test_status_without_a_model(loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(loaded, "%mlxstatus")
    assert capsys.readouterr().out == "No model is loaded: %mlxload smollm2\n"


def test_status_shows_gateways_rows_and_the_holder(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], displayed: Displayed, gate: Gate
) -> None:
    scripted(name="idle")
    gateway = scripted(gate.script, name="busy <b>")
    first = gateway.submit("first <script>")
    gate.reached.wait()
    second = gateway.submit("second\nline")
    run(loaded, "%config MlxNotebook.mode = 'batch'")
    run(loaded, "%mlxstatus")
    (output,) = displayed.outputs
    plain, html = output["data"]["text/plain"], output["data"]["text/html"]
    lines = plain.splitlines()
    assert lines[0].split("  ")[0] == "gateway"
    assert lines[1].startswith("idle ")
    assert lines[2].startswith("busy <b> (current)")
    row = {line.split()[0]: line for line in lines[4:] if line and line[0].isdigit()}
    assert "answering, 1 token so far" in row[str(first.id)]
    assert row[str(first.id)].endswith("first <script>")
    assert "waiting" in row[str(second.id)]
    assert row[str(second.id)].endswith("second")
    assert lines[-1].startswith("The device is held by busy <b> (rows) for ")
    assert "<script>" not in html
    assert "first &lt;script&gt;" in html
    gate.opened.set()


def test_models_with_their_size_and_whether_they_fit(
    loaded: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        LocalModel("smollm2", "wheel", Path("a.gguf"), 98_400_000, True),
        LocalModel("owner/big", "huggingface", Path("big"), 9_000_000_000, False),
    ]
    monkeypatch.setattr(status, "list_models", lambda: found)
    run(loaded, "%mlxmodels")
    assert capsys.readouterr().out.splitlines() == [
        "model      kind            size  fits",
        "smollm2    wheel        98.4 MB  yes",
        "owner/big  huggingface   9.0 GB  no",
    ]
    monkeypatch.setattr(status, "list_models", list)
    run(loaded, "%mlxmodels")
    assert "No model is on this machine. %mlxload smollm2 fetches" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line", ["%mlxstatus --verbose", "%mlxmodels all", "%mlxshow", "%mlxshow x", "%mlxshow 0", "%mlxshow $h"]
)
def test_mistakes_are_usage_errors(loaded: InteractiveShell, line: str) -> None:
    assert type(run(loaded, line).error_in_exec) is UsageError


# ---------------------------------------------------------------- %mlxshow


def test_show_a_finished_answer_again_in_each_mode(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    displayed: Displayed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handle = scripted().submit("hi", max_tokens=4)
    assert handle.text
    run(loaded, f"%mlxshow {handle.id}")
    assert capsys.readouterr().out == "The fox ran.\n"
    for mode in ("batch", "widget"):
        run(loaded, f"%config MlxNotebook.mode = '{mode}'")
        run(loaded, f"%mlxshow {handle.id}")
    loaded.user_ns["h"] = handle
    run(loaded, "h.show()")
    run(loaded, "%mlxshow $h")
    assert displayed.texts == ["The fox ran."] * 4
    assert capsys.readouterr().out == ""


def test_show_what_failed_or_was_cancelled_says_so(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = scripted(gate.script).submit("hi", max_tokens=4)
    gate.reached.wait()
    handle.cancel()
    gate.opened.set()
    assert handle.exception() is not None
    run(loaded, f"%mlxshow {handle.id}")
    assert capsys.readouterr().out.rstrip().endswith("[cancelled]")


def test_show_a_running_row_in_a_terminal_follows_it(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = scripted(gate.script).submit("hi", max_tokens=4)
    gate.reached.wait()
    gate.opened.set()
    run(loaded, f"%mlxshow {handle.id}")
    assert capsys.readouterr().out == "The fox ran.\n"


# ---------------------------------------------------------------- tables


def test_tables_are_aligned_and_escaped() -> None:
    table = tabulate(("name", "n"), [("a<b", "1"), ("line\nbreak\x1b", "200")], numbers={"n"})
    assert table["text/plain"].splitlines() == ["name          n", "a<b           1", "line break  200"]
    assert "a&lt;b" in table["text/html"]
    assert "\x1b" not in table["text/html"]


def test_a_table_view_updates_one_output_till_its_rows_are_over(loaded: InteractiveShell, displayed: Displayed) -> None:
    del loaded
    row = FakeRow()
    view = TableView([("Tell me\nmore", row)], metadata={"model": "toy"})
    view._publish(update=False)
    assert view.tick()
    row.say("The fox ran.")
    view._due = 0.0
    assert view.tick()
    row.finish()
    assert not view.tick()
    ids = {output["transient"]["display_id"] for output in displayed.outputs}
    assert len(ids) == 1
    assert [output["update"] for output in displayed.outputs] == [False, True, True]
    first, *_, last = displayed.texts
    assert "waiting" in first
    assert last.splitlines()[1].endswith("The fox ran.")
    assert displayed.outputs[-1]["metadata"]["mlx_notebook"] == {"model": "toy"}


def test_a_table_carries_nothing_that_changes_from_run_to_run(
    loaded: InteractiveShell, scripted: Callable[..., Gateway]
) -> None:
    del loaded
    gateway = scripted(scripted_texts(["one", " two"]))
    bundles: list[Any] = []
    for _ in range(2):
        handle = gateway.submit("hi", max_tokens=2)
        assert handle.text
        bundles.append(table_bundle([("hi", handle)], metadata={}))
    assert bundles[0] == bundles[1]

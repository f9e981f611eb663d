"""Which rows belong to which cell: interrupts, running a cell again, `%mlxcancel`."""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from tests.notebook.conftest import Gate


def run(shell: InteractiveShell, code: str, cell: str | None = None) -> ExecutionResult:
    result: ExecutionResult = shell.run_cell(code, store_history=True, cell_id=cell)
    return result


def handle_of(shell: InteractiveShell, name: str) -> Handle:
    handle: Handle = shell.user_ns[name]
    return handle


def interrupt_when_waiting(gateway: Gateway) -> threading.Thread:
    """Interrupts the main thread as soon as a request waits in the gateway's queue."""

    def watch() -> None:
        while not gateway.stats().queued_rows:
            threading.Event().wait(0.005)
        _thread.interrupt_main()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


@pytest.mark.usefixtures("displayed")
@pytest.mark.parametrize("mode", ["print", "batch", "widget"])
def test_an_interrupt_cancels_what_the_cell_submitted_and_nothing_else(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    gateway = scripted(gate.script)
    other = gateway.submit("runs on", max_tokens=4)
    gate.reached.wait()
    run(loaded, f"%config MlxNotebook.mode = '{mode}'")
    thread = interrupt_when_waiting(gateway)
    result = run(loaded, "%%mlxgen --wait --into mine\nhi")
    thread.join()
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    mine = handle_of(loaded, "mine")
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"Interrupted: request {mine.id} cancelled.",
        f"Request {other.id} still runs (%mlxcancel {other.id} to end it).",
        "KeyboardInterrupt",
    ]
    gate.opened.set()
    assert other.text == "The fox ran."
    assert mine.exception() is not None
    assert mine.status is RowStatus.CANCELLED


@pytest.mark.usefixtures("displayed")
def test_an_interrupt_while_reading_a_handle_says_what_runs_on(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway = scripted(gate.script)
    run(loaded, "%config MlxNotebook.mode = 'widget'")
    run(loaded, "%%mlxgen --into first --max-tokens 4\nhi", "a")
    gate.reached.wait()
    loaded.user_ns["gw"] = gateway
    thread = interrupt_when_waiting(gateway)
    result = run(loaded, "late = gw.submit('hi')\nlate.text", "b")
    thread.join()
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    first, late = handle_of(loaded, "first"), handle_of(loaded, "late")
    assert f"Interrupted: request {late.id} cancelled." in capsys.readouterr().out
    gate.opened.set()
    assert first.text == "The fox ran."
    assert late.exception() is not None


@pytest.mark.usefixtures("displayed")
def test_running_a_cell_again_cancels_its_unfinished_rows_and_says_so(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted(gate.script)
    run(loaded, "%config MlxNotebook.mode = 'widget'")
    run(loaded, "%%mlxgen --into neighbour --max-tokens 4\nhi", "another cell")
    run(loaded, "%%mlxgen --into old --max-tokens 4\nhi", "this cell")
    assert capsys.readouterr().out == ""
    run(loaded, "%%mlxgen --into new --max-tokens 4\nhi, edited", "this cell")
    old, new, neighbour = (handle_of(loaded, name) for name in ("old", "new", "neighbour"))
    assert capsys.readouterr().out == f"This cell runs again: request {old.id} of its last run cancelled.\n"
    gate.opened.set()
    assert [new.text, neighbour.text] == ["The fox ran."] * 2
    assert old.exception() is not None
    assert old.status is RowStatus.CANCELLED


@pytest.mark.usefixtures("displayed")
def test_a_refused_run_leaves_the_earlier_one_alone(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    scripted(gate.script)
    run(loaded, "%config MlxNotebook.mode = 'widget'")
    run(loaded, "%%mlxgen --into old --max-tokens 4\nhi", "this cell")
    assert not run(loaded, "%%mlxgen --max-tokens 0\nhi", "this cell").success
    gate.opened.set()
    assert handle_of(loaded, "old").text == "The fox ran."


@pytest.mark.usefixtures("displayed")
def test_several_rows_of_one_run_are_no_rerun(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    scripted(gate.script)
    run(loaded, "%config MlxNotebook.mode = 'widget'")
    code = "hs = [get_ipython().run_cell_magic('mlxgen', '--max-tokens 4', 'hi') for _ in range(3)]"
    run(loaded, code, "this cell")
    gate.opened.set()
    assert [handle.text for handle in loaded.user_ns["hs"]] == ["The fox ran."] * 3


@pytest.mark.usefixtures("displayed")
def test_equal_cells_without_an_id_are_different_cells(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    scripted(gate.script)
    run(loaded, "%config MlxNotebook.mode = 'widget'")
    run(loaded, "%%mlxgen --max-tokens 4\nhi")
    first = registry.last_handle()
    run(loaded, "%%mlxgen --max-tokens 4\nhi")
    second = registry.last_handle()
    gate.opened.set()
    assert first is not second
    assert first is not None
    assert first.text == "The fox ran."


# ---------------------------------------------------------------- %mlxcancel


def two_cells(shell: InteractiveShell) -> tuple[Handle, Handle, Handle]:
    """One row of a cell, two of the next, all unfinished."""
    run(shell, "%config MlxNotebook.mode = 'widget'")
    run(shell, "%%mlxgen --into a --max-tokens 4\nhi", "first")
    run(shell, "b, c = (get_ipython().run_cell_magic('mlxgen', '--max-tokens 4', 'hi') for _ in 'bc')", "second")
    return handle_of(shell, "a"), handle_of(shell, "b"), handle_of(shell, "c")


@pytest.mark.usefixtures("displayed")
def test_cancel_without_an_argument_means_the_latest_cells_rows(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(gate.script)
    a, b, c = two_cells(loaded)
    capsys.readouterr()
    run(loaded, "%mlxcancel")
    assert capsys.readouterr().out.splitlines() == [
        f"Cancelled requests {b.id} and {c.id}.",
        f"Request {a.id} still runs (%mlxcancel {a.id} to end it).",
    ]
    gate.opened.set()
    assert a.text == "The fox ran."
    assert b.exception() is not None
    assert c.exception() is not None
    run(loaded, "%mlxcancel")
    assert capsys.readouterr().out == "Nothing to cancel.\n"
    run(loaded, f"%mlxcancel {a.id}")
    assert capsys.readouterr().out == f"Nothing to cancel: request {a.id} is over already.\n"


@pytest.mark.usefixtures("displayed")
def test_cancel_one_and_all(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(gate.script)
    a, b, c = two_cells(loaded)
    capsys.readouterr()
    run(loaded, "%mlxcancel $b")
    assert f"Cancelled request {b.id}." in capsys.readouterr().out
    gate_closed = [handle for handle in (a, c) if not handle.done()]
    assert gate_closed == [a, c]
    run(loaded, "%mlxcancel all")
    gate.opened.set()
    assert all(handle.exception() is not None for handle in (a, b, c))


@pytest.mark.usefixtures("displayed")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%mlxcancel soon", "%mlxcancel takes the number of a request, not 'soon'"),
        ("%mlxcancel 999999", "there is no request 999999"),
        ("%mlxcancel 1 2", "takes only [ID|all]"),
    ],
)
def test_cancel_says_what_is_wrong(
    loaded: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    assert not run(loaded, line).success
    assert said in capsys.readouterr().err

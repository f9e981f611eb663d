"""A real kernel and a client that sends what a page sends: live cells, reruns, interrupts, completion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import start_new_kernel

from tests.tools.conftest import REPOSITORY, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.slow

SETUP = """
import threading
import mlx_notebook as mn
from mlx_notebook.engine.backend import scripted_texts
%load_ext mlx_notebook
gate, reached = threading.Event(), threading.Event()
def script(row, index):
    if index == 1:
        reached.set()
        gate.wait()
    return scripted_texts(["The", " fox", " ran", "."])(row, index)
gw = mn.Gateway.from_backend(mn.ScriptedBackend(script=script), name="toy")
"""

WATCH = """
reached.wait()
def watch():
    while not gw.stats().queued_rows:
        threading.Event().wait(0.01)
    open({file!r}, "w").close()
threading.Thread(target=watch).start()
"""


class Kernel:
    """One kernel, asked as a notebook's page asks."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def send(self, code: str, cell: str = "", *, stdin: bool = True) -> str:
        """Ask for a cell's execution; the number of the request."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": stdin,
            "stop_on_error": False,
        }
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell} if cell else {})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def reply(self, request: str) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=None)
            if message["parent_header"].get("msg_id") == request:
                content: dict[str, Any] = message["content"]
                return content

    def outputs(self, request: str) -> list[dict[str, Any]]:
        """What the cell wrote till it was idle, displays updated in place as a page does."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=None)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return found
            if kind in {"stream", "display_data", "error", "execute_result"}:
                found.append({"kind": kind, **content})

    def run(self, code: str, cell: str = "", *, stdin: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        request = self.send(code, cell, stdin=stdin)
        return self.reply(request), self.outputs(request)

    def value(self, expression: str) -> str:
        """What `print(expression)` says."""
        _, outputs = self.run(f"print({expression})")
        return "".join(output["text"] for output in outputs if output["kind"] == "stream").strip()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3", env=environment(), cwd=str(REPOSITORY))
    made = Kernel(manager, client)
    try:
        reply, outputs = made.run(SETUP)
        assert reply["status"] == "ok", outputs
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def test_a_cell_returns_at_once_and_a_batch_tools_cell_blocks(kernel: Kernel) -> None:
    reply, outputs = kernel.run("%%mlxgen --into live --max-tokens 4\nhi")
    assert reply["status"] == "ok"
    assert [output["kind"] for output in outputs] == ["display_data"]
    assert kernel.value("live.done()") == "False"
    kernel.run("gate.set()")
    assert kernel.value("live.text") == "The fox ran."
    _, outputs = kernel.run("%%mlxgen --max-tokens 4\nhi", stdin=False)
    (output,) = outputs
    assert output["data"]["text/plain"] == "The fox ran."
    assert "display_id" not in output["transient"]


def test_running_a_cell_again_cancels_its_last_run(kernel: Kernel) -> None:
    kernel.run("%%mlxgen --into other --max-tokens 4\nhi", "cell-1")
    kernel.run("%%mlxgen --into old --max-tokens 4\nhi", "cell-2")
    _, outputs = kernel.run("%%mlxgen --into new --max-tokens 4\nhi there", "cell-2")
    said = "".join(output["text"] for output in outputs if output["kind"] == "stream")
    assert said == f"This cell runs again: request {kernel.value('old.id')} of its last run cancelled.\n"
    kernel.run("gate.set()")
    assert kernel.value("[other.text, new.text]") == "['The fox ran.', 'The fox ran.']"
    assert kernel.value("old.exception()").endswith("was cancelled (asked for)")


@pytest.mark.parametrize("stdin", [True, False])
def test_an_interrupt_ends_a_blocking_cell_and_its_row_alone(kernel: Kernel, tmp_path: Path, *, stdin: bool) -> None:
    waits = tmp_path / "the row waits"
    kernel.run("%%mlxgen --into other --max-tokens 4\nhi", "cell-1")
    kernel.run(WATCH.format(file=str(waits)))
    request = kernel.send("%%mlxgen --wait --into mine --max-tokens 4\nhi", "cell-2", stdin=stdin)
    while not waits.exists():
        time.sleep(0.02)
    kernel.manager.interrupt_kernel()
    reply = kernel.reply(request)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    outputs = kernel.outputs(request)
    said = "".join(output["text"] for output in outputs if output["kind"] == "stream")
    mine, other = kernel.value("mine.id"), kernel.value("other.id")
    assert f"Interrupted: request {mine} cancelled." in said
    assert f"Request {other} still runs (%mlxcancel {other} to end it)." in said
    (error,) = (output for output in outputs if output["kind"] == "error")
    assert error["traceback"] == ["KeyboardInterrupt"]
    kernel.run("gate.set()")
    assert kernel.value("other.text") == "The fox ran."
    assert kernel.value("mine.exception() is not None and mine.cancelled()") == "True"


def test_completion_and_help_as_a_page_asks_for_them(kernel: Kernel) -> None:
    code = "%%mlxgen --tem\nthe prompt"
    reply = kernel.client.complete(code, cursor_pos=len("%%mlxgen --tem"), reply=True)["content"]
    assert reply["matches"] == ["--temperature"]
    assert code[reply["cursor_start"] : reply["cursor_end"]] == "--tem"
    found = kernel.client.inspect("%%mlxgen", cursor_pos=4, reply=True)["content"]
    assert found["found"]
    assert "--max-tokens N" in found["data"]["text/plain"]


def test_reloading_the_extension_and_shutting_down_with_rows_running(kernel: Kernel) -> None:
    kernel.run("%%mlxgen --into h --max-tokens 4\nhi")
    kernel.run("reached.wait(); h.add_done_callback(lambda _: gate.set())")
    reply, _ = kernel.run("%reload_ext mlx_notebook")
    assert reply["status"] == "ok"
    assert kernel.value("h.cancelled()") == "True"
    kernel.run("gate.clear(); reached.clear()")
    reply, _ = kernel.run('gw = mn.Gateway.from_backend(mn.ScriptedBackend(script=script), name="toy")')
    assert reply["status"] == "ok"
    kernel.run("%%mlxgen --max-tokens 4\nhi")

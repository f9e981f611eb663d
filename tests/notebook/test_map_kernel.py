"""`map` in a real kernel, asked as a page asks: a line that updates itself, the stop button, and going on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import start_new_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client.blocking.client import BlockingKernelClient
    from jupyter_client.manager import KernelManager

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*:RuntimeWarning:jupyter_client"),
]

CHECKOUT = Path(__file__).resolve().parent.parent.parent

SETUP = """
import threading
import mlx_notebook as mn
%load_ext mlx_notebook
gate = threading.Event()
def script(row, index):
    if row >= 7:
        gate.wait()
    return "ab"[index % 2]
gw = mn.Gateway.from_backend(mn.ScriptedBackend(script=script), name="toy")
prompts = [f"prompt {i}" for i in range(12)]
"""

Output = dict[str, Any]


class Page:
    """A kernel and a client that allows input, as a page does."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def run(self, code: str, *, interrupt_at: str | None = None) -> list[Output]:
        """Run a cell; its messages. Interrupts the kernel once a display says `interrupt_at`."""
        request = self.client.execute(code, allow_stdin=True)
        found: list[Output] = []
        while True:
            message = self.client.get_iopub_msg(timeout=None)
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return found
            found.append({"kind": kind, **content})
            if interrupt_at and interrupt_at in str(content.get("data", {}).get("text/plain")):
                interrupt_at = None
                self.manager.interrupt_kernel()

    def value(self, expression: str) -> str:
        return "".join(o["text"] for o in self.run(f"print({expression})") if o["kind"] == "stream").strip()


@pytest.fixture
def page() -> Iterator[Page]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    manager, client = start_new_kernel(kernel_name="python3", env=environment, cwd=str(CHECKOUT))
    made = Page(manager, client)
    try:
        assert not [output for output in made.run(SETUP) if output["kind"] == "error"]
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def displays(outputs: list[Output]) -> list[Output]:
    return [output for output in outputs if output["kind"] in ("display_data", "update_display_data")]


def test_stopped_in_a_page_and_gone_on_with(page: Page) -> None:
    outputs = page.run("frame = gw.map(prompts, max_tokens=2)", interrupt_at="6 of 12 rows")
    assert [o["ename"] for o in outputs if o["kind"] == "error"] == ["KeyboardInterrupt"]
    shown = displays(outputs)
    assert len({output["transient"]["display_id"] for output in shown}) == 1, "one output, updated in place"
    assert shown[-1]["data"]["text/plain"] == "stopped early: 0 complete, 6 cut at max_tokens, 6 not run"
    said = "".join(o["text"] for o in outputs if o["kind"] == "stream")
    assert "Interrupted: requests" in said
    assert page.value("gw.last_map.text.notna().sum()") == "6"

    page.run("gate.set()")
    shown = displays(page.run("frame = gw.map(prompts, max_tokens=2, resume=True)"))
    assert shown[-1]["data"]["text/plain"] == "0 complete, 12 cut at max_tokens"
    assert page.value("frame.text.tolist() == ['ab'] * 12") == "True"
    assert page.value("gw.wait_idle(60)") == "True"

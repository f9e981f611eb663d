"""A real kernel whose client shows no widgets: the live view turns into display updates by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import KernelManager

from tests.e2e.cells import SETUP
from tests.e2e.labkit import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jupyter_client.blocking.client import BlockingKernelClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    # The client's own sockets: it warns where a transport is not encrypted, and closes late.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*:RuntimeWarning:jupyter_client"),
]

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def client() -> Iterator[BlockingKernelClient]:
    manager = KernelManager()
    manager.start_kernel(cwd=str(REPOSITORY))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready()
    yield client
    client.stop_channels()
    manager.shutdown_kernel()


def run(client: BlockingKernelClient, code: str) -> list[dict[str, Any]]:
    """Run a cell to its end; its display messages' data, updates too."""
    asked = client.execute(code)
    seen = []
    while True:
        message = client.get_iopub_msg()
        if message["msg_type"] in ("display_data", "update_display_data"):
            seen.append(message["content"]["data"])
        idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
        if idle and message["parent_header"].get("msg_id") == asked:
            reply = client.get_shell_msg()
            assert reply["content"]["status"] == "ok", reply["content"]
            return seen


def next_update(client: BlockingKernelClient) -> dict[str, Any]:
    """The data of the next display update."""
    while (message := client.get_iopub_msg())["msg_type"] != "update_display_data":
        pass
    data: dict[str, Any] = message["content"]["data"]
    return data


def test_text_is_updated_in_place_and_the_next_view_makes_no_widget(client: BlockingKernelClient) -> None:
    run(client, SETUP)
    [shown] = run(client, "row = FakeRow(); view = show(row)")
    assert WIDGET in shown
    assert shown["text/plain"] == "<live view of 1 row of smollm2>"
    # Nobody said hello: the first update comes by itself.
    assert next_update(client)["text/plain"] == "[waiting]"
    run(client, "row.say('A <fox>')")
    while (update := next_update(client))["text/plain"] != "A <fox>\n[answering, 1 token so far]":
        pass
    assert "A &lt;fox&gt;" in update["text/html"]
    run(client, "row.finish()")
    while next_update(client)["text/plain"] != "A <fox>":
        pass
    shown, *_ = run(client, "assert frontend.state() == 'no'\nother = FakeRow(); view = show(other)")
    assert WIDGET not in shown

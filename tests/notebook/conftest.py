"""A bare IPython shell for each test, with the extension in it, and gateways that play a script."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook import extension, frontend, run_view, stream_widget
from tests.notebook.streaming import WIDGET, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORDS = ("The", " fox", " ran", ".", " It", " slept", ".", " End", " of", " story", "!")


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A shell without a kernel, as in a terminal; `get_ipython()` is it."""
    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    yield InteractiveShell.instance(config=config, colors="nocolor")
    InteractiveShell.clear_instance()


@pytest.fixture
def loaded(shell: InteractiveShell) -> Iterator[InteractiveShell]:
    """The shell after `%load_ext`; unloading closes whatever gateways a test made."""
    extension.load_ipython_extension(shell)
    yield shell
    extension.unload_ipython_extension(shell)


class Gate:
    """Scripted rows stop at their second token until the gate opens."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def script(self, row_id: int, index: int) -> str:
        if index == 1:
            self.reached.set()
            self.opened.wait()
        return scripted_texts(WORDS)(row_id, index)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def scripted() -> Callable[..., Gateway]:
    """Makes gateways over a script; the registry keeps them until the extension is unloaded."""

    def make(script: Callable[[int, int], str] | None = None, *, name: str = "toy", **settings: Any) -> Gateway:
        backend = ScriptedBackend(script=script or scripted_texts(WORDS))
        gateway = Gateway.from_backend(backend, name=name, **settings)
        registry.hold(gateway)
        return gateway

    return make


class Displayed:
    """What a shell displayed, as the front end would get it."""

    def __init__(self, publisher: CapturingDisplayPublisher) -> None:
        self._publisher = publisher

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return list(self._publisher.outputs)

    @property
    def texts(self) -> list[str]:
        return [output["data"]["text/plain"] for output in self.outputs]


@pytest.fixture
def displayed(loaded: InteractiveShell) -> Displayed:
    """Catches display messages instead of printing them."""
    publisher = CapturingDisplayPublisher()
    loaded.display_pub = publisher
    return Displayed(publisher)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """Stream views of the test speak to this instead of a page, and it has their clock."""
    wire = Wire()

    class RecordingComm(BaseComm):
        def publish_msg(
            self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
        ) -> None:
            del metadata, keys
            assert not buffers, "some front ends lose binary messages, and VS Code's page can send none"
            wire.messages.append((msg_type, data or {}))
            wire.order.append(msg_type)

    def publish(data: Any, metadata: Any, *, transient: Any, update: bool) -> None:
        wire.displays.append((data, metadata, transient["display_id"], update))
        wire.order.append(f"{'update' if update else 'display'} {'widget' if WIDGET in data else 'text'}")

    monkeypatch.setattr(comm, "create_comm", RecordingComm)
    monkeypatch.setattr("IPython.display.publish_display_data", publish)
    for module in (stream_widget, run_view):
        monkeypatch.setattr(module, "publisher", wire.publisher)
    monkeypatch.setattr(stream_widget, "time", SimpleNamespace(monotonic=wire.monotonic))
    monkeypatch.setattr("mlx_notebook.notebook.freeze.time", SimpleNamespace(monotonic=wire.monotonic))
    monkeypatch.setattr(frontend, "kernel_has_comms", lambda: True)
    frontend.forget()
    yield wire
    frontend.forget()

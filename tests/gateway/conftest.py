"""Gateways over scripted backends, closed whatever happens in the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import hooks
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import Stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def gateway_of() -> Iterator[Callable[..., Gateway]]:
    """`gateway_of(backend, **settings)`: a gateway over it; the backend runs free at the end of the test."""
    made: list[Gateway] = []
    backends: list[Any] = []

    def make(backend: Any = None, **settings: Any) -> Gateway:
        backend = ScriptedBackend() if backend is None else backend
        backends.append(backend)
        gateway = Gateway.from_backend(backend, **settings)
        made.append(gateway)
        return gateway

    yield make
    for backend in backends:
        if isinstance(backend, Stepped):
            backend.free()
    for gateway in made:
        gateway.close()
    made.clear()


@pytest.fixture(autouse=True)
def device_is_free() -> Iterator[None]:
    """Nobody stands in the line for the device after a test."""
    yield
    assert device_lease().holder is None
    assert device_lease().waiting == 0


@pytest.fixture(autouse=True)
def no_host() -> Iterator[None]:
    """No notebook is attached, unless the test attaches one."""
    before = hooks.execution, hooks.interrupted, hooks.show
    hooks.execution = hooks.interrupted = hooks.show = None
    yield
    hooks.execution, hooks.interrupted, hooks.show = before

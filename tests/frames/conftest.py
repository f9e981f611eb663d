"""Gateways that echo, and a meter that interrupts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import hooks
from tests.frames.echo import Echo, capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def echo() -> Iterator[Callable[..., Gateway]]:
    """Makes gateways; closes them at the end."""
    made = []

    def make(
        *, rows: int = 4, context: int = 200, script: Callable[[int, int], str] | None = None, **more: Any
    ) -> Gateway:
        backend = Echo(capabilities=capabilities(rows=rows, context=context))
        if script is not None:
            backend.script = script
        made.append(Gateway.from_backend(backend, **more))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


@pytest.fixture
def gw(echo: Callable[..., Gateway]) -> Gateway:
    return echo()


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    before = hooks.progress
    yield
    hooks.progress = before

"""Names without a gateway before them: the current gateway's, and what the process has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from mlx_notebook.errors import GatewayClosed
from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from mlx_notebook.core.results import Result
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle

    last: Handle | None


class Gateways(Mapping[str, "Gateway"]):
    """The open gateways by name, oldest first; a live view."""

    def __getitem__(self, name: str) -> Gateway:
        found = registry.gateways()
        if name not in found:
            raise KeyError(f"no gateway is called {name!r}; there are: {', '.join(found) or 'none'}")
        return found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(registry.gateways())

    def __len__(self) -> int:
        return len(registry.gateways())

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {gateway!r}" for name, gateway in self.items()) + "}"


gateways = Gateways()


def current() -> Gateway:
    """The gateway that was made or chosen last.

    Raises:
        GatewayClosed: there is none; the message says how to make one.
    """
    gateway = registry.current()
    if gateway is None:
        raise GatewayClosed(
            'no gateway is open: make one with mlx_notebook.Gateway("smollm2"), or run %mlxload smollm2 in a cell.'
        )
    return gateway


def submit(prompt: Any, /, **options: Any) -> Any:
    """`Gateway.submit` on the current gateway."""
    return current().submit(prompt, **options)


@overload
def generate(prompt: str, /, *, n: Literal[1] = 1, **options: Any) -> Result: ...


@overload
def generate(prompt: Any, /, **options: Any) -> Any: ...


def generate(prompt: Any, /, **options: Any) -> Any:
    """`Gateway.generate` on the current gateway."""
    return current().generate(prompt, **options)


def get(number: int) -> Handle:
    """The kept handle with this number.

    Raises:
        KeyError: none has it, or it was let go (the last few hundred finished ones are kept).
    """
    handle = registry.handle(number)
    if handle is None:
        raise KeyError(f"no request has the number {number!r}, or it is too long ago")
    return handle


def last_handle() -> Handle | None:
    """The handle submitted last, None before the first; public as `mlx_notebook.last`."""
    return registry.last_handle()

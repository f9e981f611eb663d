"""Wider steps are warmed up when nobody wants the device, and only then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]

CAN = Capabilities(vocab_size=0x110000, context_length=1000, continuous=True, max_rows=5)


@dataclass(slots=True)
class Warmed(ScriptedBackend):
    """Writes down who held the device at each warm-up."""

    holders: list[tuple[int, str | None]] = field(default_factory=list)
    waits: bool = False

    def warm(self, rows: int) -> bool:
        holder = device_lease().holder
        self.holders.append((rows, None if holder is None else holder.owner))
        if self.waits:
            wait_for(lambda: device_lease().waiting > 0)
        return True


def test_every_width_once_while_the_device_is_still_ours(gateway_of: Make) -> None:
    backend = Warmed(capabilities=CAN)
    gateway = gateway_of(backend, name="mine")
    for _ in range(2):
        assert gateway.generate("a", max_tokens=3).generated_tokens == 3
        wait_for(lambda: device_lease().holder is None)
        assert backend.holders == [(rows, "mine") for rows in (2, 3, 4, 5)]


def test_it_makes_way_for_whoever_waits(gateway_of: Make) -> None:
    backend = Warmed(capabilities=CAN, waits=True)
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=3)

    def waits() -> None:
        wait_for(lambda: bool(backend.holders))
        with gateway.lease():
            assert [rows for rows, _ in backend.holders] == [2]

    waiter = in_thread(waits)
    row.result()
    waiter.result()
    backend.waits = False
    gateway.generate("a", max_tokens=3)
    wait_for(lambda: [rows for rows, _ in backend.holders] == [2, 3, 4, 5])

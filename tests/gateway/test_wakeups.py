"""Readers are woken a few dozen times a second at most, however fast a row writes, and always at its end."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.bell import Bell
from mlx_notebook.core.events import Decode, StepDone, StepFailed
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway import loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

STEP_NS = 1_000_000
"""A step takes a millisecond of the test's own time, whatever it takes here."""


class Timed(ScriptedBackend):
    """Time passes only in its steps."""

    now_ns = 0

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        self.now_ns += STEP_NS
        done = super().decode(instruction)
        assert isinstance(done, StepDone)
        return replace(done, at_ns=self.now_ns, began_ns=self.now_ns - STEP_NS)


@pytest.mark.parametrize("tokens", [10, 400])
def test_wake_ups_are_coalesced(
    gateway_of: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    backend = Timed()
    backend.now_ns = time.monotonic_ns()
    rung: list[Bell] = []
    ring = Bell.ring

    def counted(bell: Bell) -> None:
        rung.append(bell)
        ring(bell)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic_ns=lambda: backend.now_ns))
    monkeypatch.setattr(Bell, "ring", counted)
    handle = gateway_of(backend).submit("a", max_tokens=tokens)
    assert handle.result().generated_tokens == tokens
    rings = sum(bell is handle._record.news for bell in rung)
    # 20 to 50 a second while it writes, and the end.
    assert 20 * tokens // 1000 <= rings - 1 <= 50 * tokens // 1000 + 1

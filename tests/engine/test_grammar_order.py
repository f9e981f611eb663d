"""In which order a step with held rows goes: free rows first, and the masks while the device computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.engine import decode, held
from mlx_notebook.engine.masks import MaskFiller
from tests.engine.driving import Told, prefill, step, with_backend
from tests.engine.shaping import compiled
from tests.engine.traffic import Coming, pair
from tests.small_models import random_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from mlx_notebook.engine.mlx_backend import MlxBackend

STEP = ["forward", "draw of the free", "read", "masks", "draw of the held"]


def record(patch: pytest.MonkeyPatch, seen: list[str], owner: Any, name: str, called: str) -> None:
    """Have every call noted before it is made."""
    original: Callable[..., Any] = getattr(owner, name)

    def noted(*args: Any, **how: Any) -> Any:
        seen.append(called)
        return original(*args, **how)

    patch.setattr(owner, name, noted)


def test_free_rows_are_drawn_before_anything_is_read_and_masks_are_filled_before_anything_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the forward and the masks the host waits once: for the tokens of the step before."""
    shape = compiled(regex="[a-z]{30}")
    options = {"temperature": 1.0, "repetition_penalty": 1.2}
    rows = [Coming(random_prompt(4 + at, seed=at), options=options, shape=shape if at % 2 else None) for at in range(6)]
    seen: list[str] = []

    def work(backend: MlxBackend) -> None:
        told = {at: Told() for at in range(len(rows))}
        for at, row in enumerate(rows):
            prefill(backend, row.asked(at, 12, None), told=told[at])
        step(backend, told)
        record(monkeypatch, seen, type(backend._store), "step", "forward")
        record(monkeypatch, seen, decode, "draw_rows", "draw of the free")
        record(monkeypatch, seen, decode, "read", "read")
        record(monkeypatch, seen, MaskFiller, "fill", "masks")
        record(monkeypatch, seen, held, "draw_rows", "draw of the held")
        record(monkeypatch, seen, mx, "eval", "wait")
        record(monkeypatch, seen, mx, "synchronize", "wait")
        for _ in range(4):
            step(backend, told)
        monkeypatch.undo()
        for at in told:
            backend.drop(at)

    with_backend(pair("llama"), work)
    assert seen == STEP * 4

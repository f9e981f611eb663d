"""Warm-up runs steps for nobody, each width once, only where the device builds something for a shape."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from tests.engine.driving import prefill, request, step, with_backend
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, check_alone, pair
from tests.small_models import KINDS, VOCAB, random_prompt

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

PROMPTS = [random_prompt(length, seed=length) for length in (5, 20)]


def test_on_the_cpu_there_is_nothing_to_warm() -> None:
    assert mx.default_device() == mx.cpu
    assert not with_backend(pair("llama"), lambda backend: any(backend.warm(rows) for rows in range(2, 9)))


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_each_width_once_and_no_row_is_touched(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        backend._builds = True  # as on a GPU
        told = {at: prefill(backend, request(at, one, max_tokens=8, logprobs=VOCAB)) for at, one in enumerate(PROMPTS)}
        step(backend, told)
        held = backend.held_bytes()
        assert [backend.warm(rows) for rows in (2, 2, 3, 4, 3)] == [True, False, True, True, False]
        assert backend.held_bytes() == held
        while not all(one.over for one in told.values()):
            step(backend, told)
        for at, one in told.items():
            check_alone(kind, Coming(PROMPTS[at]), one, 8)

    with_backend(pair(kind), work)


def test_a_warm_up_that_fails_is_logged_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    def work(backend: MlxBackend) -> list[bool]:
        def fails(rows: int) -> int:
            raise RuntimeError(f"no room for {rows}")

        backend._builds = True
        backend._store.warm = fails  # type: ignore[method-assign]
        return [backend.warm(2), backend.warm(2), backend.warm(3)]

    with caplog.at_level(logging.WARNING, "mlx_notebook"):
        assert with_backend(pair("llama"), work) == [True, False, True]
    assert "no room for 2" in caplog.text

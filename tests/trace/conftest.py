"""A run that has everything in it: two places, a queue, a cancel, a pause, slow code, hostile text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.gateway.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.trace.trace import Trace

WORDS = "the-secret-of-the-prompt"
HOSTILE = ["<script>alert(1)</script>", "\x1b[31m", "\u202e", "\ud800", "$x_1$"]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    can = Capabilities(vocab_size=0x110000, context_length=5000, max_rows=2, continuous=True, kv_bytes_per_token=100)
    backend = ScriptedBackend(capabilities=can, script=scripted_texts(HOSTILE), step_s=0.001)
    with Gateway.from_backend(backend, kv_budget=10_000_000) as made:
        first = made.submit("warm", max_tokens=2)
        first.result(PATIENCE_S)
        slow = made.submit(WORDS, max_tokens=6, on_token=lambda *_: time.sleep(0.004), stop=["never-" + WORDS])
        rows = [made.submit(f"{WORDS} {place}\n" * 20, max_tokens=4, priority=place % 2) for place in range(6)]
        made.step(2)
        rows[-1].cancel()
        made.resume()
        for handle in (slow, *rows):
            handle.exception(PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def trace(gateway: Gateway) -> Trace:
    return gateway.trace()


@pytest.fixture(scope="module")
def with_text(gateway: Gateway) -> Trace:
    return gateway.trace(text=True)

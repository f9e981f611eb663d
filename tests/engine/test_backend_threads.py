"""Backends of two models, each on its own thread, at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from tests.engine.driving import request, run_row, with_backend
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

PROMPT = random_prompt(11, seed=1)

pair = cache(small)


def tokens_of(backend: MlxBackend) -> list[int]:
    return run_row(backend, request(1, PROMPT, max_tokens=12)).tokens


def test_two_backends_on_two_threads_at_once() -> None:
    meet = threading.Barrier(2)

    def work(backend: MlxBackend) -> list[int]:
        meet.wait()
        return tokens_of(backend)

    kinds = ["llama", "gemma3_text"]
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda kind: with_backend(pair(kind), work), kinds))
    assert told == [with_backend(pair(kind), tokens_of) for kind in kinds]

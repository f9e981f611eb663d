"""A process whose engine thread closed its backend ends cleanly, even in the middle of an answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import threading
from tests.engine.driving import prefill, request, step
from tests.small_models import random_prompt, small
from mlx_notebook.engine.mlx_backend import MlxBackend

pair = small("llama")
started, stop = threading.Event(), threading.Event()

def engine():
    backend = MlxBackend(*pair)
    rows = {row_id: prefill(backend, request(row_id, random_prompt(9), max_tokens=100_000)) for row_id in (1, 2)}
    while not stop.is_set():
        step(backend, rows)
        started.set()
    backend.close()

thread = threading.Thread(target=engine, daemon=True)
thread.start()
started.wait()
stop.set()
thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("_time", range(5))
def test_exit_after_close(_time: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

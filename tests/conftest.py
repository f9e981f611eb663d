"""What every test shares: it leaves no thread behind."""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# Threads that live as long as the process by design, ours (one publisher) and other libraries'.
LONG_LIVED = ("mlx-notebook-publisher", "IPythonHistorySavingThread", "IOPub", "Heartbeat", "tqdm", "asyncio_")
# jupyter_core runs a coroutine for a caller without a loop on a thread named after the caller, kept until exit.
LONG_LIVED_ENDINGS = (" - runner",)
PATIENCE_S = 30.0


def left_behind(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that are alive, were not there before and are not meant to stay."""
    return [thread for thread in threading.enumerate() if thread not in before and not _is_meant_to_stay(thread)]


def _is_meant_to_stay(thread: threading.Thread) -> bool:
    by_name = thread.name.startswith(LONG_LIVED) or thread.name.endswith(LONG_LIVED_ENDINGS)
    return by_name or _is_tqdm_monitor(thread)


def _is_tqdm_monitor(thread: threading.Thread) -> bool:
    return type(thread).__name__ == "TMonitor"


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fails a test that leaves a thread running; one that is just ending is given time to."""
    before = set(threading.enumerate())
    yield
    if not left_behind(before):
        return
    gc.collect()  # a gateway that a test forgot closes itself
    give_up = time.monotonic() + PATIENCE_S
    while left := left_behind(before):
        if time.monotonic() > give_up:
            pytest.fail(f"threads left running: {[thread.name for thread in left]}")
        left[0].join(timeout=0.1)

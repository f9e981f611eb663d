"""What the main thread does while a model decodes elsewhere: it beats, or it spins. Clocks come from the caller."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from benchmarks.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BEAT_S = 0.002


def beat(
    until: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[float]:
    """Sleep BEAT_S over and over, as an event loop would; how late each waking was, in seconds."""
    late: list[float] = []
    before = clock()
    while not until():
        sleep(BEAT_S)
        now = clock()
        late.append(max(0.0, now - before - BEAT_S))
        before = now
    return late


def lateness(late: Sequence[float]) -> dict[str, float]:
    """Milliseconds late: the middle beat, the 99th percentile, the worst."""
    return {
        "late_p50_ms": 1e3 * quantile(late, 0.5),
        "late_p99_ms": 1e3 * quantile(late, 0.99),
        "late_max_ms": 1e3 * max(late),
    }


def spin(until: Callable[[], bool], *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Compute in pure Python till `until` holds; how many thousand turns of the loop a second."""
    began = clock()
    thousands = 0
    total = 0
    while not until():
        for turn in range(1_000):
            total += turn * turn % 7
        thousands += 1
    return thousands / (clock() - began)


class InThread:
    """Runs a function on a thread of its own and hands over its value, or raises what it raised."""

    def __init__(self, work: Callable[[], dict[str, float]]) -> None:
        self._work = work
        self._value: dict[str, float] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="peer")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the value is asked for
            self._error = error

    def done(self) -> bool:
        """Whether the work is over."""
        return not self._thread.is_alive()

    def result(self) -> dict[str, float]:
        """Wait for the value."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

"""How far a run is, told while it runs: a line in a terminal, whatever the host shows elsewhere, else nothing.

A tool that runs notebooks without a reader gets no live line: its outputs would differ from run to run.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from mlx_notebook.gateway.hooks import hooks

DRAW_S = 0.25
RATE_WINDOW_S = 8.0


@dataclass(frozen=True, slots=True)
class State:
    """A run at one moment. `left_s` is an estimate in seconds, None while there is nothing to base one on."""

    done: int
    total: int
    failed: int
    running: int
    tokens_per_s: float | None
    left_s: float | None

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total} rows"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.0f} tokens/s")
        if self.left_s is not None:
            parts.append(f"{_about(self.left_s)} left")
        return ", ".join(parts)


class Meter(Protocol):
    """Shows a run's progress on the caller's thread."""

    def show(self, state: State) -> None:
        """Draw; called a few times a second."""
        ...

    def close(self, line: str) -> None:
        """Put the closing line where the live one was."""
        ...


class Silent:
    """Shows nothing live; prints the closing line."""

    def show(self, state: State) -> None:
        """Nothing."""

    def close(self, line: str) -> None:
        print(line)  # noqa: T201 - the run's report, as the interface promises


class Terminal:
    """One line that is drawn over."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, state: State) -> None:
        line = str(state)
        sys.stdout.write("\r" + line.ljust(self._width))
        sys.stdout.flush()
        self._width = max(self._width, len(line))

    def close(self, line: str) -> None:
        if self._width:
            sys.stdout.write("\r" + " " * self._width + "\r")
        print(line)  # noqa: T201 - the run's report, as the interface promises


def meter_for(*, live: bool) -> Meter:
    """The meter for this execution."""
    if live and hooks.progress is not None:
        return hooks.progress() or Silent()
    isatty = getattr(sys.stdout, "isatty", None)
    return Terminal() if live and isatty is not None and isatty() else Silent()


class Pace:
    """Counts of a run, and how fast they grow.

    Args:
        total: samples in all.
        done: how many of them were there before this run began.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.failed = total, done, 0
        self._before = done
        self._began = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque()

    def state(self, tokens: int, running: int) -> State:
        """The run now; `tokens` is all that it has generated so far."""
        now = time.monotonic()
        self._marks.append((now, tokens))
        while now - self._marks[0][0] > RATE_WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        rate = (tokens - before) / (now - since) if now - since >= 1.0 else None
        finished = self.done - self._before
        left = (now - self._began) / finished * (self.total - self.done) if finished >= 3 else None
        return State(self.done, self.total, self.failed, running, rate, left)


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"

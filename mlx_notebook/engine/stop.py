"""Stop strings, matched on decoded text, with hold-back of what could still begin one.

The text ends before the earliest start of any stop string in it, however the model happened to
cut it into tokens. Nothing that could turn out to belong to a stop string is shown before it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class StopMatcher:
    """Watches one row's text. Linear in the text for each stop string (Knuth-Morris-Pratt).

    `matched` is set once a stop string is in the text and none that starts before it can still
    complete; from then on nothing is shown. Empty stop strings are a caller's error.
    """

    stops: Sequence[str]
    matched: bool = False
    _tables: list[list[int]] = field(init=False)
    _states: list[int] = field(init=False)
    _held: str = ""
    _read: int = 0
    _hit: int | None = None

    def __post_init__(self) -> None:
        self._tables = [_failure_table(stop) for stop in self.stops]
        self._states = [0] * len(self.stops)

    def push(self, text: str) -> str:
        """Take the next piece of text; give back what may be shown now."""
        if not self.stops:
            return text
        if self.matched:
            return ""
        for character in text:
            self._read += 1
            self._advance(character)
        self._held += text
        open_from = self._read - max(self._states)
        if self._hit is not None and self._hit <= open_from:
            self.matched = True
            return self._show_to(self._hit)
        return self._show_to(open_from)

    def flush(self) -> str:
        """No text will follow: give back what was held, up to a stop string in it if there is one."""
        if self._hit is not None:
            self.matched = True
            return self._show_to(self._hit)
        return self._show_to(self._read)

    def _advance(self, character: str) -> None:
        for which, stop in enumerate(self.stops):
            state, table = self._states[which], self._tables[which]
            while state and stop[state] != character:
                state = table[state - 1]
            state += stop[state] == character
            if state == len(stop):
                start = self._read - state
                self._hit = start if self._hit is None else min(self._hit, start)
                state = table[state - 1]
            self._states[which] = state

    def _show_to(self, position: int) -> str:
        count = position - (self._read - len(self._held))
        if count <= 0:
            return ""
        shown, self._held = self._held[:count], self._held[count:]
        return shown


def _failure_table(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper border."""
    table = [0] * len(stop)
    border = 0
    for at in range(1, len(stop)):
        while border and stop[border] != stop[at]:
            border = table[border - 1]
        border += stop[border] == stop[at]
        table[at] = border
    return table

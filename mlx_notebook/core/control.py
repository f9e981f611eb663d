"""What a person may do to the scheduler while it runs: pause, step, resume; and slots, the places in the batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Reins:
    """Whether the scheduler may compute.

    Attributes:
        paused: whether it was told to stop.
        steps: turns that it may compute all the same.
        delay_ns: how long its engine rests after each turn that computed something.
    """

    paused: bool = False
    steps: int = 0
    delay_ns: int = 0

    @property
    def held(self) -> bool:
        """Whether nothing may be computed now."""
        return self.paused and not self.steps

    def pause(self) -> None:
        """Stop after what is under way."""
        self.paused, self.steps = True, 0

    def resume(self) -> None:
        """Go on."""
        self.paused, self.steps = False, 0

    def allow(self, steps: int) -> None:
        """Pause, but for so many turns more."""
        self.paused = True
        self.steps += steps

    def computed(self) -> None:
        """One turn's work was given out."""
        if self.steps:
            self.steps -= 1


@dataclass(slots=True)
class Slots:
    """Places in the batch: a row that joins gets the lowest free one and keeps it, so that lanes hold still."""

    _free: list[int] = field(default_factory=list)
    _made: int = 0

    def take(self) -> int:
        """The lowest free place."""
        if self._free:
            return heappop(self._free)
        self._made += 1
        return self._made - 1

    def give(self, slot: int) -> None:
        """A row left its place; -1 is none."""
        if slot >= 0:
            heappush(self._free, slot)

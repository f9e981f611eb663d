"""What a chunk of prompt costs, by its size: learned from the chunks that were run.

A forward reads all weights whatever it computes, so that twice the tokens cost less than twice the time, and how much
less depends on the machine. So each size has a measured time of its own; one that was never run is guessed from its
neighbour, and tried one doubling at a time.
"""

from __future__ import annotations

from math import log2

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Chunk lengths: few shapes, so that few kernels are compiled."""

GROWTH = 1.5
"""Times the cost for twice the tokens, where nothing was measured: between all weights and all arithmetic."""

FEWEST = SIZES[0] * 3 // 4
"""Fewer tokens than this are no chunk of any size: what they take, mostly the weights' reading, says little of one."""

WEIGHT = 0.3
"""Of a new measurement in the running mean."""


class ChunkCosts:
    """Nanoseconds of a forward over so many prompt tokens, padding counted.

    Args:
        token_ns: a token's cost before anything was measured.
    """

    def __init__(self, token_ns: float) -> None:
        self._token_ns = token_ns
        self._seen: dict[int, float] = {}

    def learn(self, tokens: int, spent_ns: int) -> None:
        """A forward over this many tokens took so long."""
        if tokens < FEWEST or spent_ns <= 0:
            return
        size = min(SIZES, key=lambda one: abs(log2(tokens / one)))
        before = self._seen.get(size, float(spent_ns))
        cost = self._seen[size] = before + WEIGHT * (spent_ns - before)
        for other, known in self._seen.items():
            # More tokens never cost less, and never more in proportion: what a stall once made of a size is forgotten.
            most = cost * max(1.0, other / size)
            if known > most:
                self._seen[other] = known + WEIGHT * (most - known)

    def of(self, size: int) -> float:
        """The expected cost of one of SIZES."""
        if not self._seen:
            return size * self._token_ns
        if size in self._seen:
            return self._seen[size]
        smaller = [one for one in self._seen if one < size]
        near = max(smaller) if smaller else min(self._seen)
        return float(self._seen[near] * GROWTH ** log2(size / near))

    def largest_within(self, target_ns: float) -> int:
        """The largest size that is expected to take no longer; the smallest one at least."""
        most = 2 * max(self._seen) if self._seen else SIZES[-1]
        return max((size for size in SIZES if size <= most and self.of(size) <= target_ns), default=SIZES[0])

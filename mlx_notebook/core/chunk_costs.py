"""What a chunk of prompt costs, by its size: learned from the chunks that were run.

A forward reads all weights whatever it computes, so that twice the tokens cost less than twice the time, and how much
less depends on the machine. So each size has a measured time of its own; one that was never run is guessed from its
neighbour, and tried one doubling at a time. What attention takes grows with the columns that a chunk looks back at:
that comes on top, as so much for each pair of a token and a column.
"""

from __future__ import annotations

from math import log2

SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Chunk lengths: few shapes, so that few kernels are compiled."""

GROWTH = 1.5
"""Times the cost for twice the tokens, where nothing was measured: between all weights and all arithmetic."""

MORE = 1.1
"""Beyond what was measured, a doubling is taken to cost this much more than the one before it did."""

FEWEST = SIZES[0] * 3 // 4
"""Fewer tokens than this are no chunk of any size: what they take, mostly the weights' reading, says little of one."""

CRUMB = 1.2
"""Where even the smallest size takes too long, one that takes no more than this many times as long is as good."""

NEAR = 64
"""So few columns to look back at are learned nothing from but what the weights take."""

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
        self._excess = 0.0
        self._pairs = 0.0

    def learn(self, tokens: int, spent_ns: int, columns: int = 0) -> None:
        """A forward over this many tokens, with so many columns before each row's first, took so long."""
        if tokens < FEWEST or spent_ns <= 0:
            return
        size = min(SIZES, key=lambda one: abs(log2(tokens / one)))
        near = max(spent_ns / 2, spent_ns - self._looking_back(tokens, columns))
        if columns <= NEAR:
            self._learn_near(size, near)
            return
        if size not in self._seen:
            self._learn_near(size, min([near, *(known for other, known in self._seen.items() if other > size)]))
        excess = spent_ns - self._seen[size]
        if excess < 0:  # without the columns it would have been less still
            self._learn_near(size, spent_ns)
        # Sums, not a mean of quotients: a few columns say little of what one of them takes.
        self._excess += max(0.0, excess) - WEIGHT * self._excess
        self._pairs += tokens * columns - WEIGHT * self._pairs

    def _learn_near(self, size: int, spent_ns: float) -> None:
        before = self._seen.get(size, spent_ns)
        cost = self._seen[size] = before + WEIGHT * (spent_ns - before)
        for other, known in self._seen.items():
            # More tokens never cost less, and never more in proportion: what a stall once made of a size is forgotten.
            most = cost * max(1.0, other / size)
            if known > most:
                self._seen[other] = known + WEIGHT * (most - known)

    def of(self, size: int, columns: int = 0) -> float:
        """The expected cost of one of SIZES after so many columns."""
        return self._near(size) + self._looking_back(size, columns)

    def _looking_back(self, tokens: int, columns: int) -> float:
        return tokens * columns * self._excess / self._pairs if self._pairs else 0.0

    def _near(self, size: int) -> float:
        if not self._seen:
            return size * self._token_ns
        if size in self._seen:
            return self._seen[size]
        smaller = sorted(one for one in self._seen if one < size)
        larger = min((one for one in self._seen if one > size), default=None)
        near = smaller[-1] if smaller else min(self._seen)
        if smaller and larger is not None:
            share = (size - near) / (larger - near)
            return self._seen[near] + share * max(0.0, self._seen[larger] - self._seen[near])
        growth = GROWTH
        if len(smaller) > 1:  # where reading the weights, or planning a kernel, is nearly all, more tokens cost little
            growth = min(GROWTH, MORE * self._growth(smaller[-2], near))
        return float(self._seen[near] * growth ** log2(size / near))

    def _growth(self, size: int, larger: int) -> float:
        """Times the cost for a doubling, between two sizes that were measured."""
        return float(max(1.0, self._seen[larger] / self._seen[size]) ** (1 / log2(larger / size)))

    def largest_within(self, target_ns: float, columns: int = 0) -> int:
        """The largest size that is expected to take no longer, or hardly longer than the smallest does."""
        most = 2 * max(self._seen) if self._seen else SIZES[-1]
        within = max(target_ns, CRUMB * self.of(SIZES[0], columns))
        fitting = (size for size in SIZES if size <= most and self.of(size, columns) <= within)
        return max(fitting, default=SIZES[0])

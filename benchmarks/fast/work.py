"""How much is asked for, and the prompts: the same for every side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.batching import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GREEDY", "Timed", "Work", "checked", "log_spaced", "prompt", "shuffled"]

Timed = Callable[[], dict[str, float]]
"""A case: one sample, its measures by name."""

GREEDY: dict[str, Any] = {"temperature": 0.0, "cache_prompt": False}
"""How ours is asked where nothing is to be reused."""

FIRST_ID = 3
"""Of ids that are no specials."""


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of all tables; the command line changes them.

    Attributes:
        rounds: measured rounds.
        rows: rows or requests at once; None for the table's own.
        steps: decode steps a sample.
        prompt: tokens of a short prompt.
        answer: tokens of an answer.
        requests: in the tables of mixed lengths and of the shared prompt.
        shortest, longest: of the mixed lengths.
        grown: how far lengths double in the table of growth.
        joiner: tokens of the prompt that joins a full batch.
        shared: tokens of the prompt that requests share.
        load: how fast requests arrive, as a multiple of what the peer answers when all are there at once.
    """

    rounds: int = 5
    rows: tuple[int, ...] | None = None
    steps: int = 20
    prompt: int = 128
    answer: int = 96
    requests: int = 32
    shortest: int = 16
    longest: int = 4_000
    grown: int = 4_096
    joiner: int = 6_000
    shared: int = 2_000
    load: float = 2.0

    def rows_or(self, *own: int) -> tuple[int, ...]:
        """What was asked for, or the table's own."""
        return own if self.rows is None else self.rows


def prompt(number: int, length: int, vocab: int) -> list[int]:
    """Tokens that no other number's share from the first on: a prefix must not spare anybody work."""
    room = vocab - FIRST_ID
    return [(number * 7919 + at * 104_729) % room + FIRST_ID for at in range(length)]


def log_spaced(low: int, high: int, count: int) -> list[int]:
    """So many lengths from `low` to `high`, each the same factor above the one before."""
    if count == 1:
        return [low]
    return [round(low * (high / low) ** (at / (count - 1))) for at in range(count)]


def shuffled(lengths: Sequence[int], seed: int = 0) -> list[int]:
    """The same lengths in an order that helps nobody."""
    import random

    found = list(lengths)
    random.Random(seed).shuffle(found)
    return found

"""The probability of each choice, summed up from the distributions along a row's way.

At every step the distribution is that over the tokens which the grammar allows, so it is the model's own probability,
renormalised step by step. A token that was not taken gives its share to the one choice that it would have led to. One
that would have led to several leaves their shares open: those are split evenly, and how much that was is kept.

In order, the choices that begin alike stand side by side: what a token leads to is found by bisection, so that ten
thousand choices do not hold up the engine's thread.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

AFTER_ALL = b"\xff"
"""Stands in no UTF-8 text and is above every byte that does."""


class ChoiceOrder:
    """Choices as bytes, sorted; made once a grammar, for all its rows.

    Attributes:
        sorted: the choices in the order of their bytes.
        given: of each choice as it was given, its place in that order.
    """

    def __init__(self, choices: Sequence[str]) -> None:
        said = [choice.encode() for choice in choices]
        order = sorted(range(len(said)), key=said.__getitem__)
        self.sorted = [said[at] for at in order]
        self.given = np.argsort(order)

    def beginning(self, begins: bytes) -> tuple[int, int]:
        """The first place of the choices that begin so, and the one after the last."""
        first = bisect_left(self.sorted, begins)
        return first, bisect_left(self.sorted, begins + AFTER_ALL, first)

    def place(self, choice: bytes) -> int | None:
        """Where this very choice stands; None where it is none."""
        at = bisect_left(self.sorted, choice)
        return at if at < len(self.sorted) and self.sorted[at] == choice else None


class ChoiceTally:
    """Sums for one row.

    Args:
        choices: the texts, in order.
        bytes_of: what one token says.
        eos_ids: tokens that end the answer where it stands.
    """

    def __init__(self, choices: ChoiceOrder, bytes_of: Callable[[int], bytes], eos_ids: Iterable[int]) -> None:
        self._choices = choices
        self._bytes_of = bytes_of
        self._eos_ids = frozenset(eos_ids)
        self._shares = np.zeros(len(choices.sorted))
        self._undecided = 0.0
        self._reached = b""
        self._mass = 1.0

    def step(self, ids: Sequence[int], logprobs: Sequence[float], chosen: int) -> None:
        """One committed token: the allowed ids with their log-probabilities, and which of them came."""
        taken = 0.0
        for token_id, logprob in zip(ids, logprobs, strict=True):
            share = self._mass * math.exp(logprob)
            if token_id == chosen:
                taken = share
            else:
                self._give(share, *self._leads_to(token_id))
        self._mass = taken
        if chosen not in self._eos_ids:
            self._reached += self._bytes_of(chosen)

    def shares(self) -> tuple[float, ...]:
        """The probability of each choice for a row that is whole, as they were given, then how much is a guess."""
        shares = self._shares.copy()
        at = self._choices.place(self._reached)
        if at is None:
            raise ValueError(f"the answer {self._reached!r} is none of the choices")
        shares[at] += self._mass
        return (*shares[self._choices.given].tolist(), self._undecided)

    def _leads_to(self, token_id: int) -> tuple[int, int]:
        """Where the choices stand that a token goes on to: the first, and the one after the last."""
        if token_id in self._eos_ids:
            at = self._choices.place(self._reached)
            return (0, 0) if at is None else (at, at + 1)
        return self._choices.beginning(self._reached + self._bytes_of(token_id))

    def _give(self, share: float, first: int, stop: int) -> None:
        count = stop - first
        if count:
            self._shares[first:stop] += share / count
        if count > 1:
            self._undecided += share

"""The probability of each choice, summed up from the distributions along a row's way.

At every step the distribution is that over the tokens which the grammar allows, so it is the model's own probability,
renormalised step by step. A token that was not taken gives its share to the one choice that it would have led to. One
that would have led to several leaves their shares open: those are split evenly, and how much that was is kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ChoiceTally:
    """Sums for one row.

    Args:
        choices: the texts.
        bytes_of: what one token says.
        eos_ids: tokens that end the answer where it stands.
    """

    def __init__(self, choices: Sequence[str], bytes_of: Callable[[int], bytes], eos_ids: Iterable[int]) -> None:
        self._choices = [choice.encode() for choice in choices]
        self._bytes_of = bytes_of
        self._eos_ids = frozenset(eos_ids)
        self._shares = [0.0] * len(self._choices)
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
                self._give(share, self._leads_to(token_id))
        self._mass = taken
        if chosen not in self._eos_ids:
            self._reached += self._bytes_of(chosen)

    def shares(self) -> tuple[float, ...]:
        """The probability of each choice for a row that is whole, in order, then how much of that is a guess."""
        shares = list(self._shares)
        shares[self._choices.index(self._reached)] += self._mass
        return (*shares, self._undecided)

    def _leads_to(self, token_id: int) -> list[int]:
        if token_id in self._eos_ids:
            return [at for at, choice in enumerate(self._choices) if choice == self._reached]
        begins = self._reached + self._bytes_of(token_id)
        return [at for at, choice in enumerate(self._choices) if choice.startswith(begins)]

    def _give(self, share: float, to: Sequence[int]) -> None:
        for at in to:
            self._shares[at] += share / len(to)
        if len(to) > 1:
            self._undecided += share

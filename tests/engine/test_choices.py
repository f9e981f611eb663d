"""Sums over choices against the plain ones, which look at every choice for every token."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.engine.choices import ChoiceOrder, ChoiceTally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EOS = 0
ENOUGH = 50
"""Looks at a choice that one token may cost among ten thousand: several bisections, and no more."""

said = st.text(alphabet="ab\u00e9\U0001f600", min_size=1, max_size=5)
texts = st.lists(said, min_size=1, max_size=12, unique=True)


class Plain:
    """The sums as they are defined."""

    def __init__(self, choices: Sequence[str], bytes_of: Callable[[int], bytes]) -> None:
        self.choices, self.bytes_of = [choice.encode() for choice in choices], bytes_of
        self.shares, self.undecided, self.reached, self.mass = [0.0] * len(choices), 0.0, b"", 1.0

    def to(self, token_id: int) -> list[int]:
        begins = self.reached + self.bytes_of(token_id)
        ends = token_id == EOS
        return [at for at, c in enumerate(self.choices) if (c == self.reached if ends else c.startswith(begins))]

    def step(self, ids: Sequence[int], logprobs: Sequence[float], chosen: int) -> None:
        for token_id, logprob in zip(ids, logprobs, strict=True):
            share, to = self.mass * math.exp(logprob), self.to(token_id)
            if token_id != chosen:
                for at in to:
                    self.shares[at] += share / len(to)
                self.undecided += share * (len(to) > 1)
        self.mass *= math.exp(logprobs[list(ids).index(chosen)])
        self.reached += b"" if chosen == EOS else self.bytes_of(chosen)


def pieces_of(choices: Sequence[str]) -> list[bytes]:
    """A vocabulary: the end, every single byte, and every beginning of a choice."""
    beginnings = {choice.encode()[:size] for choice in choices for size in (2, 3, 4, 5)}
    return [b"", *(bytes([byte]) for byte in range(256)), *sorted(beginnings)]


@given(choices=texts, seed=st.integers(0, 2**16))
def test_the_sums_are_the_plain_ones_to_the_bit(choices: list[str], seed: int) -> None:
    pieces, pick = pieces_of(choices), random.Random(seed)
    plain, tally = Plain(choices, pieces.__getitem__), ChoiceTally(ChoiceOrder(choices), pieces.__getitem__, [EOS])
    while True:
        leads = [(token_id, to) for token_id in range(len(pieces)) if (to := plain.to(token_id))]
        ids = [token_id for token_id, _ in leads]
        weights = [pick.random() + 0.01 for _ in ids]
        logprobs = [math.log(weight / sum(weights)) for weight in weights]
        chosen = pick.choice(ids)
        for one in (plain, tally):
            one.step(ids, logprobs, chosen)
        if chosen == EOS or plain.to(EOS) == [at for at, c in enumerate(plain.choices) if c.startswith(plain.reached)]:
            break
    plain.shares[plain.choices.index(plain.reached)] += plain.mass
    assert tally.shares() == (*plain.shares, plain.undecided)


class Looked(bytes):
    """A choice that counts how often it is looked at."""

    looks = 0

    def __lt__(self, other: Any) -> bool:
        Looked.looks += 1
        return bytes.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Looked.looks += 1
        return bytes.__eq__(self, other)

    def startswith(self, *given: Any) -> bool:
        Looked.looks += 1
        return bytes.startswith(self, *given)

    __hash__ = bytes.__hash__


class Choice(str):
    """A choice whose bytes count their looks."""

    __slots__ = ()

    def encode(self, *_how: Any) -> bytes:
        return Looked(str.encode(self))


def test_ten_thousand_choices_are_not_looked_at_for_every_token() -> None:
    choices = [Choice(f"{name}{at}") for at in range(2500) for name in ("ant", "bee", "cat", "d")]
    pieces = pieces_of(choices)
    order = ChoiceOrder(choices)
    tally = ChoiceTally(order, pieces.__getitem__, [EOS])
    ids = [at for at, piece in enumerate(pieces) if piece[:1] in (b"a", b"b", b"c", b"d") and len(piece) <= 4]
    Looked.looks = 0
    tally.step(ids, [-math.log(len(ids))] * len(ids), pieces.index(b"ant1"))
    assert Looked.looks <= ENOUGH * len(ids)
    assert sum(tally._shares) + tally._mass == pytest.approx(1.0)

"""What tests of forced text share: single steps, the forwards that were run, and how two answers are compared."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine import forced
from mlx_notebook.engine.stores.rows import RowsStore
from tests.engine.shaping import compiled
from tests.engine.traffic import Coming, in_traffic, noise
from tests.small_models import random_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import mlx.core as mx

    from tests.engine.driving import Told

COUNT = 60
FORM = {
    "type": "object",
    "properties": {
        "long_name": {"enum": ["ab", "cd", "ef"]},
        "other_name": {"type": "integer", "minimum": 1, "maximum": 99},
        "last_name": {"type": "boolean"},
    },
    "required": ["long_name", "other_name", "last_name"],
}


def row(number: int = 0, **more: Any) -> Coming:
    """A row whose answer is mostly forced."""
    return Coming(random_prompt(9 + number, seed=number), shape=compiled(json_schema=FORM), **more)


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Meanwhile every token has a forward of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forced, "TOGETHER", 1)
        yield


@contextlib.contextmanager
def widths() -> Iterator[list[tuple[int, int]]]:
    """The shape of each step's tokens, as they come: rows, tokens of each."""
    seen: list[tuple[int, int]] = []
    original = RowsStore.step

    def step(self: RowsStore, places: Sequence[Any], tokens: mx.array) -> mx.array:
        seen.append((tokens.shape[0], tokens.shape[1]))
        return original(self, places, tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowsStore, "step", step)
        yield seen


def both_ways(kind: str, rows: Sequence[Coming], count: int = COUNT, **backend: Any) -> tuple[list[Told], list[Told]]:
    """The rows as they are, and one token a forward."""
    told = in_traffic(kind, rows, count, **backend)
    with one_by_one():
        return told, in_traffic(kind, rows, count, **backend)


def check_like(told: Told, expected: Told, bound: float) -> None:
    """All that was told of a row is the same; log-probabilities up to noise, those of forced tokens exactly."""
    assert told.error == expected.error
    assert [(o.token_id, o.text, o.finish) for o in told.outcomes] == [
        (o.token_id, o.text, o.finish) for o in expected.outcomes
    ]
    assert told.outcomes[-1].shares == pytest.approx(expected.outcomes[-1].shares, abs=bound)
    for mine, theirs in zip(told.logprobs, expected.logprobs, strict=True):
        if len(theirs.top) == 1:
            assert mine == theirs
        assert set(dict(mine.top)) == set(dict(theirs.top))
        assert mine.logprob == pytest.approx(theirs.logprob, abs=bound)
        assert dict(mine.top) == pytest.approx(dict(theirs.top), abs=bound)


def check_both_ways(kind: str, rows: Sequence[Coming], count: int = COUNT, **backend: Any) -> None:
    """Rows tell the same both ways."""
    for told, expected in zip(*both_ways(kind, rows, count, **backend), strict=True):
        check_like(told, expected, 4 * noise(kind))

"""Draws that fail for one row: told by its seed, from a token number on, and where it is drawn with others for all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.engine import decode, held
from mlx_notebook.engine.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BAD = 666
"""The seed of the row whose draws fail."""

OPTIONS: dict[str, Any] = {"seed": BAD, "temperature": 0.8, "repetition_penalty": 1.2, "xtc_probability": 0.5}
"""Such a row's way to its tokens goes through every part that can fail."""


def _not_computable(logits: mx.array) -> mx.array:
    """The same logits, of which MLX only finds when it is to compute them that it cannot: experts in half precision."""
    half = mx.ones((2, 8, 8), dtype=mx.bfloat16)
    product = mx.gather_mm(half, half, rhs_indices=mx.array([0, 1]), stream=mx.cpu)
    return logits + product[0, :1, :1]


def _in_penalties(patch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> None:
    adjust, calls = Sampler.adjust, [0]

    def failing(self: Sampler, tokens: mx.array, logits: mx.array) -> mx.array:
        if self.options.seed == BAD:
            calls[0] += 1
            if calls[0] > at:
                raise error()
        return adjust(self, tokens, logits)

    patch.setattr(Sampler, "adjust", failing)


def _in_way(patch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> None:
    way = Sampler.way

    def failing(self: Sampler, index: int) -> Any:
        if self.options.seed == BAD and index >= at:
            raise error()
        return way(self, index)

    patch.setattr(Sampler, "way", failing)


def _in_draw(patch: pytest.MonkeyPatch, spoil: Callable[[mx.array], mx.array], at: int) -> None:
    for module in (decode, held):
        draw_rows = module.draw_rows

        def failing(
            samplers: Sequence[Sampler], indices: Sequence[int], logits: mx.array, draw_rows: Any = draw_rows
        ) -> Any:
            if any(one.options.seed == BAD and index >= at for one, index in zip(samplers, indices, strict=True)):
                logits = spoil(logits)
            return draw_rows(samplers, indices, logits)

        patch.setattr(module, "draw_rows", failing)


@contextmanager
def failing_draws(where: str, at: int, error: Callable[[], BaseException]) -> Iterator[None]:
    """While inside, draws of a row with the seed `BAD` fail from token number `at` on.

    `where`: in its "penalties", its "way" to a token, in the "draw" with all others in it; or in the "computation"
    of that draw, whose error is MLX's own.
    """

    def raising(_logits: mx.array) -> mx.array:
        raise error()

    with pytest.MonkeyPatch.context() as patch:
        if where == "penalties":
            _in_penalties(patch, at, error)
        elif where == "way":
            _in_way(patch, at, error)
        else:
            _in_draw(patch, {"draw": raising, "computation": _not_computable}[where], at)
        yield

"""Log-probabilities of one step: of the tokens drawn and of the likeliest alternatives.

They are of the distribution after bias, penalties, processors and the grammar's mask, before temperature and filters:
what mlx-lm's `generate_step` yields, bit for bit for one row. What cannot be drawn at all is no alternative.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from mlx_notebook.core.results import TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Mapping


def normalise(logits: mx.array) -> mx.array:
    """Natural log-probabilities [R, V] of logits [R, V], in the logits' own type."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


class PendingLogprobs:
    """Log-probabilities of some rows of a step, still on the device, read once the tokens are."""

    __slots__ = ("_alternatives", "_chosen", "_rows", "_top_ids", "_top_values")

    def __init__(self, logprobs: mx.array, tokens: mx.array, alternatives: Mapping[int, int]) -> None:
        """Shapes: logprobs [A, V], tokens [A]; `alternatives` says for each of the A places in the step how many."""
        self._alternatives = alternatives
        self._rows = {place: row for row, place in enumerate(alternatives)}
        count = min(max(alternatives.values()), logprobs.shape[-1])
        self._chosen = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)
        self._top_ids: mx.array | None = None
        self._top_values: mx.array | None = None
        if count:
            whole = count == logprobs.shape[-1]
            top = mx.argsort(-logprobs, axis=-1) if whole else mx.argpartition(-logprobs, kth=count - 1, axis=-1)
            self._top_ids = top[:, :count]
            self._top_values = mx.take_along_axis(logprobs, self._top_ids, axis=-1)

    @property
    def arrays(self) -> list[mx.array]:
        """What must be evaluated before `read`."""
        return [array for array in (self._chosen, self._top_ids, self._top_values) if array is not None]

    def read(self, place: int, token_id: int) -> TokenLogprob | None:
        """Plain numbers, None for a row that did not ask; alternatives best first, equal ones by id."""
        row = self._rows.get(place)
        if row is None:
            return None
        top: list[tuple[int, float]] = []
        count = self._alternatives[place]
        if count and self._top_ids is not None and self._top_values is not None:
            ids = cast("list[int]", self._top_ids[row].tolist())
            values = cast("list[float]", self._top_values[row].tolist())
            possible = [pair for pair in zip(ids, values, strict=True) if pair[1] != -math.inf]
            top = sorted(possible, key=lambda pair: (-pair[1], pair[0]))[:count]
        return TokenLogprob(token_id, float(cast(float, self._chosen[row].item())), tuple(top))

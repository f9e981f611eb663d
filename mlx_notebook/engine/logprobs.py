"""Log-probabilities of one step: of the token drawn and of the likeliest alternatives.

They are of the distribution after bias, penalties and processors, before temperature and filters: what
mlx-lm's `generate_step` yields, bit for bit for one row.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlx_notebook.core.results import TokenLogprob


def normalise(logits: mx.array) -> mx.array:
    """Natural log-probabilities [1, V] of one row's logits [1, V], in the logits' own type."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


class PendingLogprobs:
    """Log-probabilities still on the device, read once the token is."""

    __slots__ = ("_chosen", "_top_ids", "_top_values")

    def __init__(self, logprobs: mx.array, token: mx.array, alternatives: int) -> None:
        """Shapes: logprobs [1, V], token [1]; `alternatives` likeliest tokens are kept besides."""
        count = min(alternatives, logprobs.shape[-1])
        self._chosen = mx.take_along_axis(logprobs, token[:, None], axis=-1)
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

    def read(self, token_id: int) -> TokenLogprob:
        """Plain numbers; alternatives best first, equal ones by id."""
        top: list[tuple[int, float]] = []
        if self._top_ids is not None and self._top_values is not None:
            ids = cast("list[int]", self._top_ids[0].tolist())
            values = cast("list[float]", self._top_values[0].tolist())
            top = list(zip(ids, values, strict=True))
            top.sort(key=lambda pair: (-pair[1], pair[0]))
        return TokenLogprob(token_id, float(cast(float, self._chosen.item())), tuple(top))

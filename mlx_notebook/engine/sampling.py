"""From one row's logits to its next token: stages, user processors, filters, the draw.

Everything stays on the device until the step is read. Greedy takes the likeliest of the raw logits;
nothing is normalised unless a filter or log-probabilities need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.engine import draws, filters
from mlx_notebook.engine.logprobs import PendingLogprobs, normalise
from mlx_notebook.engine.penalties import reach_of, stages_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlx_notebook.core.request import SamplingOptions


class Drawn:
    """A token that has been drawn, perhaps still being computed: [1] (uint32), and its log-probabilities."""

    __slots__ = ("logprobs", "token")

    def __init__(self, token: mx.array, logprobs: PendingLogprobs | None) -> None:
        self.token = token
        self.logprobs = logprobs

    @property
    def arrays(self) -> list[mx.array]:
        """What must be evaluated before the token can be read."""
        return [self.token, *(self.logprobs.arrays if self.logprobs else ())]


class Sampler:
    """One row's way from logits to tokens.

    Args:
        options: the row's sampling options, already checked against the model's vocabulary.
        spared: token ids that XTC never drops (end of sequence, newline).
    """

    def __init__(self, options: SamplingOptions, spared: Iterable[int]) -> None:
        self._options = options
        self._stages = stages_of(options)
        self._spared = tuple(sorted(set(spared)))
        self.reach = reach_of(options)
        self._filters = (
            0.0 < options.top_p < 1.0 or options.min_p > 0.0 or options.xtc_probability > 0.0 or options.top_k > 0
        )

    def adjust(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Bias and penalties on logits [1, V]; `tokens` [n] are the last ones, `reach` of them if there are."""
        for stage in self._stages:
            logits = stage(tokens, logits)
        return logits

    def draw(self, logits: mx.array, index: int) -> Drawn:
        """Draw output token number `index` (0, 1, ...) from adjusted logits [1, V]."""
        options = self._options
        filtering = self._filters and not options.greedy
        logprobs = normalise(logits) if filtering or options.logprobs is not None else None
        if options.greedy:
            token = mx.argmax(logits, axis=-1)
        else:
            # Without a filter the raw logits serve: what is drawn must not depend on asking for log-probabilities.
            kept = self.filtered(logprobs, index) if filtering and logprobs is not None else logits
            keys = draws.keys_of([draws.key_words(options.seed, index)])
            token = draws.draw_tokens(kept, keys, mx.array([options.temperature], dtype=mx.float32))
        if logprobs is None or options.logprobs is None:
            return Drawn(token, None)
        return Drawn(token, PendingLogprobs(logprobs, token, options.logprobs))

    def filtered(self, logprobs: mx.array, index: int) -> mx.array:
        """The filters in mlx-lm's order: top-p, min-p, XTC, top-k; -inf at what may not be drawn."""
        options = self._options
        if 0.0 < options.top_p < 1.0:
            logprobs = filters.keep_top_p(logprobs, options.top_p)
        if options.min_p > 0.0:
            logprobs = filters.keep_min_p(logprobs, options.min_p)
        if self._xtc_strikes(index):
            logprobs = filters.drop_top_choices(logprobs, options.xtc_threshold, self._spared)
        if options.top_k > 0:
            logprobs = filters.keep_top_k(logprobs, options.top_k)
        return logprobs

    def _xtc_strikes(self, index: int) -> bool:
        chance = self._options.xtc_probability
        return chance > 0.0 and draws.coin(self._options.seed, index, draws.XTC_COIN) < chance

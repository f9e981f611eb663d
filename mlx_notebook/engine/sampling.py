"""From logits to next tokens: stages, filters, the draw; for many rows in one operation where they ask for the same.

Everything stays on the device until the step is read. Greedy takes the likeliest of the raw logits;
nothing is normalised unless a filter or log-probabilities need it. What a row draws depends on its own logits,
seed and token number, never on who else is drawn for in the same operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import mlx.core as mx

from mlx_notebook.engine import draws, filters
from mlx_notebook.engine.logprobs import PendingLogprobs, normalise
from mlx_notebook.engine.penalties import reach_of, stages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mlx_notebook.core.request import SamplingOptions
    from mlx_notebook.core.results import TokenLogprob


class Way(NamedTuple):
    """How a row's next token is chosen; rows of one way are drawn together."""

    greedy: bool = False
    top_p: float = 1.0
    min_p: float = 0.0
    xtc: tuple[float, tuple[int, ...]] | None = None
    top_k: int = 0

    @property
    def filters(self) -> bool:
        """Whether any token may be excluded."""
        return self.top_p < 1.0 or self.min_p > 0.0 or self.xtc is not None or self.top_k > 0


class Sampler:
    """One row's way from logits to tokens.

    Args:
        options: the row's sampling options, already checked against the model's vocabulary.
        spared: token ids that XTC never drops (end of sequence, newline).

    Attributes:
        adjusts: whether bias or penalties change the logits.
    """

    def __init__(self, options: SamplingOptions, spared: Iterable[int]) -> None:
        self.options = options
        self.reach = reach_of(options)
        self._stages = stages_of(options)
        self._spared = tuple(sorted(set(spared)))
        top_p = options.top_p if 0.0 < options.top_p < 1.0 else 1.0
        self.adjusts = bool(self._stages)
        self._way = Way(True) if options.greedy else Way(False, top_p, options.min_p, None, options.top_k)
        # mlx-lm normalises wherever any filter is set, also while XTC's coin says no.
        self.normalises = not options.greedy and (self._way.filters or options.xtc_probability > 0.0)

    def adjust(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Bias and penalties on logits [1, V]; `tokens` [n] are the last ones, `reach` of them if there are."""
        for stage in self._stages:
            logits = stage(tokens, logits)
        return logits

    def way(self, index: int) -> Way:
        """How output token number `index` is chosen: XTC tosses a coin for each."""
        options = self.options
        if options.greedy or options.xtc_probability <= 0.0:
            return self._way
        strikes = draws.coin(options.seed, index, draws.XTC_COIN) < options.xtc_probability
        return self._way._replace(xtc=(options.xtc_threshold, self._spared)) if strikes else self._way

    def filtered(self, logprobs: mx.array, index: int) -> mx.array:
        """Log-probabilities [1, V] with -inf at what output token number `index` may not be."""
        return _filtered(self.way(index), logprobs)

    def draw(self, logits: mx.array, index: int) -> Drawn:
        """Draw output token number `index` (0, 1, ...) from adjusted logits [1, V]."""
        return draw_rows([self], [index], logits)[0]


class DrawnRows:
    """Tokens [R] (uint32) that were drawn together, perhaps still being computed, and their log-probabilities."""

    __slots__ = ("_ids", "_logprobs", "tokens")

    def __init__(self, tokens: mx.array, logprobs: PendingLogprobs | None) -> None:
        self.tokens = tokens
        self._logprobs = logprobs
        self._ids: list[int] | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """What must be evaluated before anything can be read."""
        return [self.tokens, *(self._logprobs.arrays if self._logprobs else ())]

    def read(self, place: int) -> tuple[int, TokenLogprob | None]:
        """Wait, and take one row's token off the device; the first to ask takes all."""
        if self._ids is None:
            self._ids = cast("list[int]", self.tokens.tolist())
        token_id = self._ids[place]
        return token_id, self._logprobs.read(place, token_id) if self._logprobs else None


class Drawn(NamedTuple):
    """One row's token among those drawn together."""

    together: DrawnRows
    place: int

    @property
    def token(self) -> mx.array:
        """The token, [1]."""
        return self.together.tokens[self.place : self.place + 1]

    @property
    def arrays(self) -> list[mx.array]:
        """What must be evaluated before the token can be read."""
        return self.together.arrays

    def read(self) -> tuple[int, TokenLogprob | None]:
        """Wait for the token and take it off the device."""
        return self.together.read(self.place)


def draw_rows(samplers: Sequence[Sampler], indices: Sequence[int], logits: mx.array) -> list[Drawn]:
    """One token a row from adjusted logits [R, V]; `indices[r]` is the number of row r's token."""
    if all(sampler.options.greedy for sampler in samplers):  # many batches, and nothing to find out about each row
        tokens = mx.argmax(logits, axis=-1)
    else:
        tokens = _tokens_by_way(samplers, indices, logits)
    together = DrawnRows(tokens, _logprobs_of(samplers, logits, tokens))
    return [Drawn(together, place) for place in range(len(samplers))]


def _tokens_by_way(samplers: Sequence[Sampler], indices: Sequence[int], logits: mx.array) -> mx.array:
    """Tokens [R]: one operation for all rows of one way."""
    groups: dict[tuple[Way, bool], list[int]] = {}
    for place, (sampler, index) in enumerate(zip(samplers, indices, strict=True)):
        groups.setdefault((sampler.way(index), sampler.normalises), []).append(place)
    parts = []
    for (way, normalises), places in groups.items():
        own = _rows_of(logits, places)
        parts.append(_choose(way, normalises, own, [samplers[p].options for p in places], [indices[p] for p in places]))
    if len(parts) == 1:
        return parts[0]
    order = [place for places in groups.values() for place in places]
    return mx.concatenate(parts)[mx.array(sorted(range(len(order)), key=order.__getitem__))]


def _choose(
    way: Way,
    normalises: bool,
    logits: mx.array,
    options: Sequence[SamplingOptions],
    indices: Sequence[int],
) -> mx.array:
    """Tokens [G] of rows of one way."""
    if way.greedy:
        return mx.argmax(logits, axis=-1)
    # Without a filter the raw logits serve: what is drawn must not depend on asking for log-probabilities.
    kept = _filtered(way, normalise(logits)) if normalises else logits
    keys = draws.keys_of([draws.key_words(o.seed, index) for o, index in zip(options, indices, strict=True)])
    return draws.draw_tokens(kept, keys, mx.array([o.temperature for o in options], dtype=mx.float32))


def _filtered(way: Way, logprobs: mx.array) -> mx.array:
    """The filters in mlx-lm's order: top-p, min-p, XTC, top-k; -inf at what may not be drawn."""
    if way.top_p < 1.0:
        logprobs = filters.keep_top_p(logprobs, way.top_p)
    if way.min_p > 0.0:
        logprobs = filters.keep_min_p(logprobs, way.min_p)
    if way.xtc is not None:
        logprobs = filters.drop_top_choices(logprobs, *way.xtc)
    if way.top_k > 0:
        logprobs = filters.keep_top_k(logprobs, way.top_k)
    return logprobs


def _logprobs_of(samplers: Sequence[Sampler], logits: mx.array, tokens: mx.array) -> PendingLogprobs | None:
    asked = {place: s.options.logprobs for place, s in enumerate(samplers) if s.options.logprobs is not None}
    if not asked:
        return None
    places = list(asked)
    return PendingLogprobs(normalise(_rows_of(logits, places)), _rows_of(tokens, places), asked)


def _rows_of(array: mx.array, places: list[int]) -> mx.array:
    if len(places) == array.shape[0]:
        return array
    first, last = places[0], places[-1]
    return array[first : last + 1] if last - first + 1 == len(places) else array[mx.array(places)]

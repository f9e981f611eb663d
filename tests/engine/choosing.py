"""What a row with a shape should have chosen: the model's own logits, changed by its options, among what may follow.

The logits come from one forward over the whole answer, bias and penalties from mlx-lm's own functions; the filters are
ours, which tests of their own hold equal to mlx-lm's. The order is the one that the engine promises: bias, penalties,
processors, the shape; then temperature and filters among what the shape leaves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import mlx.core as mx
import numpy as np

from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.engine import draws
from mlx_notebook.engine.logprobs import normalise
from mlx_notebook.engine.sampling import Sampler
from tests.engine.parity import mlx_lm_processors
from tests.engine.shaping import EOS, allowed_by, tokens
from tests.engine.traffic import noise, pair
from tests.small_models import VOCAB

if TYPE_CHECKING:
    import numpy.typing as npt

    from tests.engine.driving import Told
    from tests.engine.languages import Listed
    from tests.engine.traffic import Coming


class Second:
    """Another matcher of the library's."""

    def __init__(self, row: Coming) -> None:
        assert row.shape is not None
        self._matcher = row.shape.start()

    def allowed(self) -> set[int]:
        return allowed_by(self._matcher)

    def take(self, token_id: int) -> None:
        self._matcher.accept(token_id)

    def close(self) -> None:
        self._matcher.close()


def logits_of(kind: str, row: Coming, told: Told) -> list[npt.NDArray[np.float32]]:
    """What the model says before each token of the answer, [V] each, after bias, penalties and processors."""
    ids = mx.array([[*row.prompt, *told.tokens]])
    said = pair(kind)[0](ids)[0, len(row.prompt) - 1 : -1].astype(mx.float32)
    stages = [*mlx_lm_processors(row.options), *row.code().logits_processors]
    found = []
    for at, own in enumerate(said):
        logits = own[None] + 0
        for stage in stages:
            logits = stage(mx.array([*row.prompt, *told.tokens[:at]]), logits)
        found.append(np.array(logits[0].astype(mx.float32)))
    return found


def scores_of(row: Coming, number: int, logits: npt.NDArray[np.float32], ids: list[int]) -> npt.NDArray[np.float32]:
    """What is compared to draw output token `number` among `ids`: -inf at those that a filter takes out."""
    options = SamplingOptions(**row.options)
    if options.greedy:
        return logits[ids]
    newline = next(at for at, said in enumerate(tokens()) if said == b"\n")
    left = np.full_like(logits, -np.inf)
    left[ids] = logits[ids]
    kept = Sampler(options, (EOS, newline)).filtered(normalise(mx.array(left)[None]), number)
    gumbel = draws.gumbel_rows(draws.keys_of([draws.key_words(options.seed, number)]), VOCAB)
    scores: npt.NDArray[np.float32] = np.array(kept / options.temperature + gumbel)[0, ids]
    return scores


def check_choices(kind: str, row: Coming, told: Told, listed: Listed | None = None) -> None:
    """Each token is the likeliest (or the draw) of what may follow, and log-probabilities are over that alone."""
    bound = 4 * noise(kind)
    second = Second(row)
    for at, (token_id, logits) in enumerate(zip(told.tokens, logits_of(kind, row, told), strict=True)):
        allowed = second.allowed()
        assert token_id in allowed
        if listed is not None:
            listed.check(allowed)
            if token_id != EOS:
                listed.take(token_id)
        ids = sorted(allowed)
        scores = scores_of(row, at, logits, ids)
        slack = bound / (row.options.get("temperature") or 1.0)
        assert scores[ids.index(token_id)] >= scores.max() - slack, f"token {at}: not the best"
        normal = logits[ids] - np.logaddexp.reduce(logits[ids])
        top = dict(told.logprobs[at].top)
        assert set(top) == allowed
        assert max(abs(top[i] - value) for i, value in zip(ids, normal, strict=True)) <= bound
        second.take(token_id)
    second.close()


def check_end(row: Coming, told: Told, schema: Any, count: int, listed: Listed | None = None) -> bool:
    """It ended where its answer was whole, which is validated and said; else at its limit, or where it was taken away.

    Args:
        count: how many tokens it may have.
    """
    if told.finish in (("stop", "grammar"), ("stop", "eos")):
        jsonschema.validate(json.loads(told.text), schema)
        assert listed is None or listed.whole
        return True
    if row.leaves is None:
        assert told.finish == ("length", "max_tokens")
        assert len(told.tokens) == row.options.get("max_tokens", count)
        assert listed is None or not listed.satisfied
    return False

"""Log-probabilities: natural, of the raw distribution, plain numbers, alternatives best first."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.engine.logprobs import PendingLogprobs, normalise
from mlx_notebook.engine.sampling import Sampler

logit_rows = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60)


@settings(deadline=None, max_examples=60)
@given(logit_rows, st.integers(0, 70), st.data())
def test_against_numpy(values: list[float], alternatives: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(values) - 1))
    pending = PendingLogprobs(normalise(mx.array([values])), mx.array([token]), {0: alternatives})
    read = pending.read(0, token)
    assert read is not None
    wide = np.array(values, dtype=np.float64)
    expected = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    assert read.logprob == pytest.approx(expected[token], abs=1e-4)
    assert len(read.top) == min(alternatives, len(values))
    assert [value for _, value in read.top] == pytest.approx(sorted(expected, reverse=True)[: len(read.top)], abs=1e-4)
    assert len({token_id for token_id, _ in read.top}) == len(read.top)
    assert all(type(token_id) is int and type(value) is float for token_id, value in read.top)


def test_they_are_before_temperature_and_filters() -> None:
    logits = mx.array([[2.0, 1.0, 0.0]])
    options = SamplingOptions(temperature=5.0, top_k=1, logprobs=3)
    drawn = Sampler(options, ()).draw(logits, 0)
    _, read = drawn.read()
    assert read is not None
    total = math.log(sum(math.exp(value) for value in (2.0, 1.0, 0.0)))
    assert [value for _, value in read.top] == pytest.approx([2 - total, 1 - total, -total], abs=1e-5)


def test_greedy_computes_nothing_that_nobody_asked_for() -> None:
    drawn = Sampler(SamplingOptions(), ()).draw(mx.array([[0.0, 3.0, 1.0]]), 0)
    assert drawn.token.tolist() == [1]
    assert len(drawn.arrays) == 1
    assert drawn.arrays == [drawn.token]

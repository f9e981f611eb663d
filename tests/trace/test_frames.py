"""Frames of requests, steps and tokens, against the handles' own figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import mlx_notebook as mn
from mlx_notebook.trace.trace import About
from tests.trace.conftest import PATIENCE_S, WORDS

if TYPE_CHECKING:
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.trace.trace import Trace


def test_requests_are_as_their_handles_say(gateway: Gateway) -> None:
    frame = gateway.requests()
    assert len(frame) == 8
    for row_id, row in frame.iterrows():
        handle = mn.get(int(str(row_id)))
        error = handle.exception(PATIENCE_S)
        result = getattr(error, "result", None) if error else handle.result()
        assert result is not None
        assert row.finish_reason == result.finish_reason
        assert row.finish_detail == result.finish_detail
        assert row.generated_tokens == result.generated_tokens
        assert row.prompt_tokens == result.prompt_tokens
        assert row.queue_ms == pytest.approx(result.queue_ms)
        for name in ("prefill_ms", "decode_ms", "ttft_ms", "tpot_ms"):
            if getattr(result, name) is not None:
                assert row[name] == pytest.approx(getattr(result, name))


def test_every_token_is_in_its_step(trace: Trace) -> None:
    steps, tokens = trace.steps(), trace.tokens()
    assert steps.tokens.sum() == len(tokens) == trace.requests().generated_tokens.sum()
    assert (tokens.groupby("step").size() == steps.tokens[steps.tokens > 0]).all()
    assert (tokens.shared == tokens.step.map(steps.tokens)).all()
    assert (tokens.at_s.to_numpy() == steps.end_s.loc[tokens.step].to_numpy()).all()
    assert (steps.tokens <= steps.rows).all()


def test_numbers_and_gaps(trace: Trace) -> None:
    tokens = trace.tokens()
    for _, own in tokens.groupby("request"):
        assert own.n.tolist() == list(range(1, len(own) + 1))
        assert own.gap_ms.isna().sum() == 1
        assert own.gap_ms.dropna().sum() == pytest.approx((own.at_s.iloc[-1] - own.at_s.iloc[0]) * 1000)


def test_slow_code_is_measured(trace: Trace) -> None:
    tokens = trace.tokens()
    slow = tokens[tokens.user_ms > 0]
    assert slow.request.nunique() == 1
    assert (slow.user_ms >= 4).all()


def test_text_only_where_it_was_asked_for(gateway: Gateway) -> None:
    assert "text" not in gateway.tokens().columns
    assert "prompt" not in gateway.requests().columns
    with_text = gateway.trace(text=True)
    requests, tokens = with_text.requests(), with_text.tokens()
    for row_id, own in tokens.groupby("request"):
        handle = mn.get(int(str(row_id)))
        assert "".join(own.text) == requests.text[handle.id] == handle.text_so_far
        assert handle.prompt_text == requests.prompt[handle.id]
    assert requests.prompt.str.contains(WORDS).sum() == 7


def test_logprobs_where_they_were_asked_for(trace: Trace) -> None:
    assert "logprob" not in trace.tokens().columns
    (row_id, *_) = trace.recording.requests
    known = replace(trace, about={row_id: About(row_id, logprobs=(-0.5, -1.0))})
    own = known.tokens().query("request == @row_id")
    assert own.logprob.tolist() == [-0.5, -1.0]
    assert known.tokens().logprob.isna().sum() == len(trace.tokens()) - 2

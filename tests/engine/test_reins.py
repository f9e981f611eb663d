"""What people may do to a row of a real model: more tokens, at any moment; and slow code of theirs is timed."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest

from mlx_notebook.core.request import UserCode
from mlx_notebook.core.segments import SLOW_CODE_NS
from tests.engine.driving import Told, finish, prefill, request, step, with_backend
from tests.small_models import random_prompt, small

PROMPT = random_prompt(11, seed=1)
SLOW_S = 0.006

pair = cache(small)


def run(asked: Any, before: Any = None) -> Told:
    def work(backend: Any) -> Told:
        told = prefill(backend, asked)
        if before is not None:
            before(backend, told)
        return finish(backend, asked.id, told)

    return with_backend(pair("llama"), work)


@cache
def long() -> Told:
    return run(request(1, PROMPT, max_tokens=12))


@pytest.mark.parametrize("after", range(6))
def test_a_limit_raised_between_any_two_steps_gives_the_longer_answer(after: int) -> None:
    def raise_it(backend: Any, told: Told) -> None:
        for _ in range(after):
            step(backend, {1: told})
        assert not told.over
        backend.extend(1, 12)

    told = run(request(1, PROMPT, max_tokens=6), raise_it)
    assert told.tokens == long().tokens
    assert told.finish == long().finish == ("length", "max_tokens")


def test_rows_that_are_not_there_are_ignored() -> None:
    with_backend(pair("llama"), lambda backend: backend.extend(99, 5))


def test_slow_callbacks_are_timed_and_quick_ones_are_not() -> None:
    slow = UserCode(on_token=lambda *_: time.sleep(SLOW_S))
    told = run(request(1, PROMPT, max_tokens=3, code=slow))
    assert all(one.user_ns >= SLOW_S * 1e9 for one in told.outcomes)
    assert [one.user_ns for one in long().outcomes] == [0] * 12


def test_slow_processors_are_timed() -> None:
    def processor(_tokens: object, logits: object) -> object:
        time.sleep(SLOW_S)
        return logits

    told = run(request(1, PROMPT, max_tokens=4, code=UserCode(logits_processors=(processor,))))
    # The first draw comes before there is a token to tell of: its time is told with the first.
    assert told.outcomes[0].user_ns >= SLOW_CODE_NS
    assert told.tokens == long().tokens[:4]


def test_slow_code_that_raises_is_timed_too() -> None:
    def on_token(*_: object) -> None:
        time.sleep(SLOW_S)
        raise ValueError("no")

    told = run(request(1, PROMPT, max_tokens=4, code=UserCode(on_token=on_token)))
    assert told.error is not None
    assert told.outcomes[-1].user_ns >= SLOW_S * 1e9

"""Two rows in the backend, in turn and together: neither touches the other, whatever it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.core.request import UserCode
from tests.engine.driving import Told, finish, prefill, request, step, with_backend
from tests.engine.test_backend_rows import PROMPT, failing_callback, failing_processor, hosting, pair, plain, ran
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.small_models import KINDS, VOCAB, random_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_two_open_rows_in_turn_are_each_as_if_alone(kind: str) -> None:
    prompts = {1: random_prompt(17, seed=2), 2: random_prompt(5, seed=3)}
    alone = {row_id: ran(request(row_id, prompt, max_tokens=9), kind).tokens for row_id, prompt in prompts.items()}

    def work(backend: MlxBackend) -> dict[int, Told]:
        rows = {row_id: prefill(backend, request(row_id, prompt, max_tokens=9)) for row_id, prompt in prompts.items()}
        step(backend, {1: rows[1]})
        while any(not told.over for told in rows.values()):
            step(backend, {row_id: told for row_id, told in rows.items() if not told.over})
        return rows

    rows = with_backend(pair(kind), work)
    assert {row_id: told.tokens for row_id, told in rows.items()} == alone


def test_processors_stay_with_their_row_when_others_come_and_go() -> None:
    def pushing(token_id: int) -> UserCode:
        return hosting(lambda _tokens, logits: logits + 1000.0 * (mx.arange(VOCAB) == token_id))

    def work(backend: MlxBackend) -> dict[int, Told]:
        wanted = {1: pushing(10), 2: UserCode(), 3: pushing(30), 4: pushing(40)}

        def opened(row_id: int) -> Told:
            return prefill(backend, request(row_id, PROMPT, max_tokens=6, code=wanted[row_id]))

        rows = {row_id: opened(row_id) for row_id in (1, 2, 3)}
        step(backend, rows)  # feeds the last prompt tokens
        step(backend, rows)
        backend.drop(1)
        rows[4] = opened(4)
        alive = {row_id: rows[row_id] for row_id in (4, 3, 2)}
        while not rows[4].over:
            step(backend, {row_id: told for row_id, told in alive.items() if not told.over})
        return rows

    rows = with_backend(pair("llama"), work)
    assert rows[1].tokens == [10]
    assert rows[2].tokens == plain().tokens[:6]
    assert rows[3].tokens == [30] * 6
    assert rows[4].tokens == [40] * 6


codes: list[Callable[[], UserCode]] = [
    UserCode,
    lambda: failing_callback(1),
    lambda: failing_callback(3),
    lambda: failing_processor(1),
    lambda: failing_processor(3),
    lambda: failing_processor(2, "shape"),
]


anybody = given(
    kind=st.sampled_from(["llama", "mamba2", "qwen3_next"]),
    bad_prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    code=st.sampled_from(codes),
    options=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 8),
            "temperature": st.sampled_from([0.0, 1.0]),
            "top_k": st.sampled_from([0, 3, VOCAB + 1]),
            "repetition_penalty": st.sampled_from([1.0, 1.5]),
            "logprobs": st.sampled_from([None, 0, 4]),
            "stop": st.lists(st.text(alphabet="abc \ufffd", min_size=1, max_size=2), max_size=2).map(tuple),
            "eos": st.lists(st.integers(0, VOCAB - 1), max_size=30),
        }
    ),
    order=st.lists(st.sampled_from([1, 2, 3]), min_size=8, max_size=40),
)


@settings(deadline=None, max_examples=6)
@anybody
def test_what_one_row_does_is_nothing_to_the_other(**drawn: Any) -> None:
    check_two_rows(**drawn)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@anybody
def test_whatever_one_row_does_the_other_says_the_same(**drawn: Any) -> None:
    check_two_rows(**drawn)


def check_two_rows(
    kind: str, bad_prompt: list[int], code: Callable[[], UserCode], options: dict[str, Any], order: list[int]
) -> None:
    def work(backend: MlxBackend) -> tuple[Told, Told]:
        good = prefill(backend, request(1, PROMPT, max_tokens=12))
        bad = prefill(backend, request(2, bad_prompt, code=code(), **options))
        for turn in order:
            rows = {1: good} if turn == 1 else {2: bad} if turn == 2 else {1: good, 2: bad}
            alive = {row_id: told for row_id, told in rows.items() if not told.over}
            if alive:
                step(backend, alive)
            if bad.over:
                backend.drop(2)
        return finish(backend, 1, good), bad

    good, bad = with_backend(pair(kind), work)
    assert good.tokens == plain(12, kind).tokens
    assert good.text == plain(12, kind).text
    if bad.finish is not None:
        check_text(bad, options)


def check_text(told: Told, options: dict[str, Any]) -> None:
    shown = told.tokens[:-1] if told.finish == ("stop", "eos") else told.tokens
    text = pair("llama")[1].decode(shown)
    starts = [text.find(stop) for stop in options["stop"] if stop in text]
    assert told.text == (text[: min(starts)] if starts else text)
    if options["logprobs"] is not None:
        assert [p.token_id for p in told.logprobs] == told.tokens
        assert all(len(p.top) == options["logprobs"] for p in told.logprobs)
        assert all(p.top == tuple(sorted(p.top, key=lambda pair: (-pair[1], pair[0]))) for p in told.logprobs)

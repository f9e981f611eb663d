"""Every option of a row in one mixed batch: each row gets its own, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_notebook.core.request import SamplingOptions, UserCode
from mlx_notebook.engine import draws
from mlx_notebook.engine.sampling import Sampler, draw_rows
from tests.engine.driving import with_backend
from tests.engine.parity import OPTIONS, vectors_of
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.engine.traffic import Coming, alone, check_alone, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.driving import Told

COUNT = 10


def shifting() -> UserCode:
    """A processor that depends on all tokens so far, in place and by value."""

    def rule(tokens: Any, logits: Any) -> Any:
        seen.append(len(tokens))
        logits[:, int(tokens[-1])] = -30.0
        return logits - 0.5 * mx.abs(logits - 0.01 * len(tokens))

    seen: list[int] = []
    return UserCode(logits_processors=(rule,))


GREEDY: list[dict[str, Any]] = [
    *OPTIONS.values(),
    {"stop": ("zz", "\ufffd\ufffd\ufffd")},
    {"max_tokens": 1},
    {"max_tokens": 4, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("kind", tiered(KINDS, "mamba2"))
def test_greedy_rows_of_every_option_say_what_they_say_alone(kind: str) -> None:
    rows = [Coming(random_prompt(3 + 4 * at, seed=at), at=at % 3, options=o) for at, o in enumerate(GREEDY)]
    rows.append(Coming(random_prompt(11, seed=30), at=1, code=shifting))
    rows.append(Coming(random_prompt(6, seed=31), code=shifting, options=OPTIONS["all"]))
    for row, told in zip(rows, in_traffic(kind, rows, COUNT), strict=True):
        check_alone(kind, row, told, COUNT)


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {
        "temperature": 1.2,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "logit_bias": ((9, 2.0),),
    },
]


@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_draws_depend_on_seed_and_number_and_on_no_neighbour(kind: str) -> None:
    rows = [
        Coming(random_prompt(5 + 3 * at, seed=at), at=at % 2, options={**options, "seed": 100 + at})
        for at, options in enumerate(SAMPLED)
    ]
    for number, (row, told) in enumerate(zip(rows, in_traffic(kind, rows, COUNT), strict=True)):
        assert told.error is None
        check_draws(f"row {number}, {row.options}", row, told, alone(kind, row, COUNT), noise(kind))


def check_draws(name: str, row: Coming, told: Told, by_itself: Told, bound: float) -> None:
    """The same tokens, unless noise within the bound tips the very draw that differs; what follows it says nothing."""
    sampler = Sampler(SamplingOptions(**row.options), pair("llama")[1].encode("\n", add_special_tokens=False))
    mine, theirs = (vectors_of(one.logprobs, VOCAB) for one in (told, by_itself))
    for at, (token, expected) in enumerate(zip(told.tokens, by_itself.tokens, strict=True)):
        apart = float(np.max(np.abs(mine[at] - theirs[at])))
        assert apart <= bound, f"{name}, token {at}: log-probabilities differ by {apart}"
        for one, vector in ((token, mine[at]), (expected, theirs[at])):
            drawn = sampler.draw(mx.array(vector)[None], at).read()[0]
            assert drawn == one or tips(sampler, vector, at, bound), f"{name}, token {at}: {one}, its draw is {drawn}"
        if token != expected:
            assert tips(sampler, theirs[at], at, bound), f"{name}, token {at}: {token}, expected {expected}"
            return


def tips(sampler: Sampler, vector: Any, index: int, bound: float) -> bool:
    """Whether noise within the bound changes what is drawn."""
    keys = mx.random.split(mx.random.key(index), 16)
    shaken = [mx.array(vector) + bound * mx.random.uniform(-1, 1, vector.shape, key=key) for key in keys]
    return len({sampler.draw(one[None], index).read()[0] for one in shaken}) > 1


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_rows_drawn_together_are_bitwise_the_rows_drawn_alone(rows: int) -> None:
    every = [{}, *SAMPLED, {"logprobs": 3}, {"temperature": 1.0, "top_p": 0.8, "logprobs": 7}, {"logprobs": 0}]
    samplers = [Sampler(SamplingOptions(seed=5 + at, **options), (2,)) for at, options in enumerate(every * rows)]
    logits = 4.0 * mx.random.normal((len(samplers), VOCAB), key=mx.random.key(rows))
    indices = [at % 5 for at in range(len(samplers))]
    together = draw_rows(samplers, indices, logits)
    for at, (sampler, drawn) in enumerate(zip(samplers, together, strict=True)):
        assert drawn.read() == sampler.draw(logits[at : at + 1], indices[at]).read()


def test_equal_settings_are_drawn_in_one_operation() -> None:
    calls: list[int] = []
    original = draws.draw_tokens

    def counted(logits: mx.array, keys: mx.array, temperatures: mx.array) -> mx.array:
        calls.append(logits.shape[0])
        return original(logits, keys, temperatures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "draw_tokens", counted)
        options = [{"temperature": 0.5 + at / 10, "seed": at, "top_p": 0.9} for at in range(6)]
        rows = [Coming(random_prompt(4, seed=at), options=o) for at, o in enumerate(options)]
        in_traffic("llama", rows, 4)
    assert set(calls) == {6}


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
def test_greedy_rows_without_log_probabilities_get_no_softmax(kind: str) -> None:
    from mlx_notebook.engine import sampling

    def never(_logits: mx.array) -> mx.array:
        raise AssertionError("nobody asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "normalise", never)
        rows = [Coming(random_prompt(4 + at, seed=at), options={"logprobs": None}) for at in range(3)]
        told = in_traffic(kind, rows, 5)
    assert [len(one.tokens) for one in told] == [5, 5, 5]


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_log_probabilities_go_to_those_who_asked(kind: str) -> None:
    wanted: list[int | None] = [None, 0, 3, VOCAB, None, 1]
    rows = [
        Coming(random_prompt(5 + at, seed=at), options={"logprobs": count, "temperature": float(at % 2)})
        for at, count in enumerate(wanted)
    ]
    for count, row, told in zip(wanted, rows, in_traffic(kind, rows, 6), strict=True):
        assert len(told.logprobs) == (0 if count is None else len(told.tokens))
        for token_id, found in zip(told.tokens, told.logprobs, strict=False):
            assert found.token_id == token_id
            assert len(found.top) == count
        if count:
            check_top(told, alone(kind, row, 6), noise(kind))


def check_top(told: Told, by_itself: Told, bound: float) -> None:
    for mine, theirs in zip(told.logprobs, by_itself.logprobs, strict=True):
        if mine.token_id != theirs.token_id:
            return  # noise tipped a draw
        assert [value for _, value in mine.top] == pytest.approx([value for _, value in theirs.top], abs=bound)


def test_callbacks_and_stops_end_their_own_row() -> None:
    def until(count: int) -> Callable[[], UserCode]:
        def make() -> UserCode:
            seen: list[int] = []

            def on_token(token_id: int, _text: str, _logprobs: object) -> bool:
                seen.append(token_id)
                return len(seen) < count

            return UserCode(on_token=on_token)

        return make

    prompts = [random_prompt(4 + at, seed=at) for at in range(5)]
    plain = [alone("llama", Coming(prompt), COUNT) for prompt in prompts]
    stop = pair("llama")[1].decode(plain[2].tokens[3:5])
    rows = [
        Coming(prompts[0], code=until(3)),
        Coming(prompts[1], code=until(1)),
        Coming(prompts[2], options={"stop": (stop,)}),
        Coming(prompts[3]),
        Coming(prompts[4], at=2, code=until(6)),
    ]
    told = with_backend(pair("llama"), lambda backend: run_script(backend, rows, COUNT))
    assert [one.finish for one in told] == [
        ("stop", "callback"),
        ("stop", "callback"),
        ("stop", "stop_string"),
        ("length", "max_tokens"),
        ("stop", "callback"),
    ]
    assert [len(one.tokens) for one in told[:2]] == [3, 1]
    assert len(told[4].tokens) == 6
    assert told[2].text == told[2].text.split(stop)[0]
    assert told[3].tokens == plain[3].tokens

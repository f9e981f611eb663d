"""Rows with a grammar in one batch with free rows: each token is the model's own choice among what may follow.

The model's logits come from one forward over the whole answer, the masks from matchers of their own: of lists of
answers where there are few, else a second matcher of the library's, fed from the beginning.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import jsonschema
import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import draws
from mlx_notebook.engine import matcher as matchers
from tests.engine.choosing import check_choices, check_end
from tests.engine.driving import finish, prefill, request, shaped, step, with_backend
from tests.engine.languages import Listed, language, schemas
from tests.engine.shaping import EOS, compiled, tokens
from tests.engine.traffic import Coming, alone, check_alone, in_traffic, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from tests.engine.driving import Told

COUNT = 14
LONG = 40
BATCHES = 40
UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


@pytest.mark.slow
def test_every_token_is_the_models_own_among_what_the_list_of_answers_allows() -> None:
    """Hundreds of random schemas, nine beside two free rows at a time; and a good part of the answers is whole."""
    whole: list[bool] = []

    @settings(UNHURRIED, max_examples=BATCHES)
    @given(drawn=st.lists(schemas, min_size=9, max_size=9), seed=st.integers(0, 1000))
    def a_mixed_batch(drawn: list[dict[str, Any]], seed: int) -> None:
        whole.extend(mixed_batch(drawn, seed))

    a_mixed_batch()
    assert len(whole) >= 9 * BATCHES
    assert sum(whole) >= len(whole) // 2


def mixed_batch(drawn: list[dict[str, Any]], seed: int) -> list[bool]:
    """Rows of these schemas and two free ones, each checked by itself; of each schema whether its answer was whole."""
    rows = []
    for at, schema in enumerate(drawn):
        options = {"temperature": 0.8, "seed": seed + at} if at % 3 == 2 else {}
        leaves = 6 + at if at % 4 == 3 else None
        prompt = random_prompt(4 + 3 * at, seed=seed + at)
        rows.append(Coming(prompt, at=at // 2, leaves=leaves, options=options, shape=compiled(json_schema=schema)))
    rows += [Coming(random_prompt(7, seed=seed), at=2), Coming(random_prompt(21, seed=seed), chunk=None)]
    told = in_traffic("llama", rows, LONG)
    whole = []
    for row, one, schema in zip(rows, told, drawn, strict=False):
        assert one.error is None, one.error
        listed = Listed(language(schema), tokens(), [EOS])
        check_choices("llama", row, one, listed)
        whole.append(check_end(row, one, schema, LONG, listed))
    for row, one in zip(rows[-2:], told[-2:], strict=True):
        check_alone("llama", row, one, LONG)
    return whole


WIDE: dict[str, Any] = {
    "text": {"type": "string", "maxLength": 6},
    "escapes": {
        "enum": [
            "\n",
            "\t\u0001",
            '"',
            "\\",
            "/",
            "\u2028",
            "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        ]
    },
    "number": {"type": "number"},
    "positive": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "thirds": {"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 99},
    "date": {"type": "string", "format": "date"},
    "nested": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2},
    "empty": {"type": "array", "maxItems": 0},
    "any": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}, {"const": {"a": []}}]},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "boolean"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
            }
        },
    },
    "more": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    "named": {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "null"}}, "additionalProperties": False},
    "both": {
        "allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"maxProperties": 1}]
    },
    "anything": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_answers_without_end_to_their_list_validate_on_every_kind_of_model(kind: str) -> None:
    rows = [
        Coming(
            random_prompt(3 + at, seed=at),
            at=at % 5,
            options={"temperature": 1.0, "seed": at} if at % 2 else {},
            shape=compiled(json_schema=schema),
        )
        for at, schema in enumerate(WIDE.values())
    ]
    free = [Coming(random_prompt(9, seed=77), at=1), Coming(random_prompt(5, seed=78))]
    told = in_traffic(kind, [*rows, *free], 40)
    for row, one, schema in zip(rows, told, WIDE.values(), strict=False):
        assert one.error is None, one.error
        check_choices(kind, row, one)
        if one.finish != ("length", "max_tokens"):
            jsonschema.validate(json.loads(one.text), schema)
    assert sum(one.finish == ("stop", "grammar") for one in told) >= 4
    for row, one in zip(free, told[-2:], strict=True):
        check_alone(kind, row, one, 40)


OPTIONS: dict[str, dict[str, Any]] = {
    "top_p": {"temperature": 1.0, "top_p": 0.7, "seed": 3},
    "top_k": {"temperature": 1.0, "top_k": 2, "seed": 4},
    "min_p": {"temperature": 1.0, "min_p": 0.2, "seed": 5},
    "xtc": {"temperature": 1.0, "xtc_probability": 0.9, "xtc_threshold": 0.1, "seed": 6},
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "bias": {"logit_bias": ((19, 6.0), (67, 4.0), (200, 100.0), (0, 1000.0))},
    "all": {
        "temperature": 0.7,
        "seed": 7,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": -1.0,
        "logit_bias": ((67, 2.0), (0, 1000.0)),
        "top_p": 0.9,
        "min_p": 0.05,
        "top_k": 3,
    },
}


def halve(_tokens: Any, logits: Any) -> Any:
    return logits / 2


HALVED = UserCode(logits_processors=(halve,))


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_option_draws_among_what_may_follow(*, deterministic: bool) -> None:
    shape = compiled(json_schema={"type": "array", "items": {"enum": ["ab", "cd", 1]}, "minItems": 3})
    rows = [Coming(random_prompt(5 + at, seed=at), options=o, shape=shape) for at, o in enumerate(OPTIONS.values())]
    rows += [Coming(random_prompt(9), options=OPTIONS["all"], shape=shape, code=lambda: HALVED)]
    how = {"deterministic": True, "max_rows": 8} if deterministic else {}
    together = in_traffic("llama", rows, COUNT, **how)
    for row, told in zip(rows, together, strict=True):
        assert told.error is None, told.error
        check_choices("llama", row, told)
        if deterministic:
            by_itself = alone("llama", row, COUNT, **how)
            assert told.tokens == by_itself.tokens
            assert [one.top for one in told.logprobs] == [one.top for one in by_itself.logprobs]


def test_a_satisfied_answer_ends_at_its_last_token_and_counts_it() -> None:
    told = alone("llama", Coming(random_prompt(5), shape=compiled(choices=["yes", "no"])), COUNT)
    assert told.text in ("yes", "no")
    assert told.finish == ("stop", "grammar")
    last = alone("llama", Coming(random_prompt(5), shape=compiled(choices=["yes", "no"])), len(told.tokens))
    assert last.finish == ("stop", "grammar"), "whole at its very last token is not cut"
    cut = alone("llama", Coming(random_prompt(5), shape=compiled(choices=["yes", "no"])), len(told.tokens) - 1)
    assert cut.finish == ("length", "max_tokens")


def test_an_answer_that_may_be_empty_ends_with_the_end_of_sequence() -> None:
    told = alone("llama", Coming(random_prompt(5), shape=compiled(regex="")), COUNT)
    assert (told.tokens, told.text, told.finish) == ([EOS], "", ("stop", "eos"))


def test_a_stop_string_ends_a_row_inside_its_grammar() -> None:
    row = Coming(random_prompt(5), options={"stop": ("=",)}, shape=compiled(regex="[a-z]{3}==[a-z]{3}"))
    told = alone("llama", row, COUNT)
    assert told.finish == ("stop", "stop_string")
    assert len(told.text) == 3


def test_a_processor_reaches_no_token_that_the_grammar_excludes() -> None:
    def rule(_tokens: Any, logits: Any) -> Any:
        return mx.where(mx.arange(logits.shape[-1]) == 40, 1e9, logits)

    row = Coming(
        random_prompt(5), shape=compiled(choices=["yes", "no"]), code=lambda: UserCode(logits_processors=(rule,))
    )
    assert alone("llama", row, COUNT).text in ("yes", "no")


def test_a_forward_that_failed_is_drawn_again_from_the_same_place() -> None:
    """After a rewind the matcher stands where the committed tokens are, not where a lost draw would have been."""
    shape = compiled(json_schema={"type": "array", "items": {"type": "integer"}, "minItems": 4})
    row = Coming(random_prompt(9), options={"temperature": 1.0, "seed": 8}, shape=shape)

    def work(backend: MlxBackend) -> Told:
        asked = row.asked(1, COUNT)
        told = prefill(backend, asked)
        for _ in range(5):
            step(backend, {1: told})
        backend.rewind(1)
        from mlx_notebook.core.events import Prefill, PrefillPart

        known = len(asked.shape.prompt_ids) + len(told.tokens)
        done = backend.prefill(Prefill((PrefillPart(1, 0, known, last=True),)))
        assert not done.errors
        return finish(backend, 1, told)

    told = with_backend(pair("llama"), work)
    check_choices("llama", row, told)
    assert told.tokens == alone("llama", row, COUNT).tokens


@pytest.mark.parametrize("logprobs", [None, 0, VOCAB])
def test_thinking_goes_before_the_grammar(logprobs: int | None) -> None:
    """The grammar waits for the tokens that end the thinking; they are the model's own, here forced by a bias."""
    end = (50, 51)

    def rule(seen: Any, logits: Any) -> Any:
        forced = {5: 50, 6: 51}.get(len(seen) - 5 + 3)
        return logits if forced is None else mx.where(mx.arange(logits.shape[-1]) == forced, 1e9, logits)

    def work(backend: MlxBackend) -> Told:
        code = UserCode(logits_processors=(rule,))
        free = request(1, random_prompt(5), code=code, max_tokens=30, eos=[EOS], logprobs=logprobs)
        asked = shaped(free, compiled(choices=["yes", "no"]), end)
        return finish(backend, 1, prefill(backend, asked))

    told = with_backend(pair("llama"), work)
    at = next(at for at in range(len(told.tokens)) if tuple(told.tokens[at : at + 2]) == end)
    assert at == 2
    assert b"".join(tokens()[i] or b"" for i in told.tokens[at + 2 :]) in (b"yes", b"no")
    assert told.finish == ("stop", "grammar")
    shares = told.outcomes[-1].shares
    assert sum(shares[:-1]) == pytest.approx(0.0 if logprobs is None else 1.0), "of the answer alone, not of thoughts"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_probabilities_of_choices_are_those_of_all_ways_to_write_them(temperature: float) -> None:
    choices = ["ab", "cd", "x"]
    shape = compiled(choices=choices)
    rows = [
        Coming(random_prompt(5 + at, seed=at), options={"temperature": temperature}, shape=shape) for at in range(4)
    ]
    for told in in_traffic("llama", rows, COUNT):
        *shares, undecided = told.outcomes[-1].shares
        first = dict(told.logprobs[0].top)
        expected = [
            sum(math.exp(p) for i, p in first.items() if c.encode().startswith(tokens()[i] or b"?")) for c in choices
        ]
        assert undecided == 0.0
        assert shares == pytest.approx(expected, abs=1e-4)
        assert sum(shares) == pytest.approx(1.0)


def test_probabilities_of_choices_that_begin_alike_say_what_is_undecided() -> None:
    rows = [Coming(random_prompt(5 + at, seed=at), shape=compiled(choices=["ab", "abc", "ax", "q"])) for at in range(6)]
    undecided = []
    for told in in_traffic("llama", rows, COUNT):
        *shares, open_mass = told.outcomes[-1].shares
        assert sum(shares) == pytest.approx(1.0)
        undecided.append(open_mass)
    assert any(undecided)


def test_a_row_that_is_cut_has_no_probabilities_and_one_that_asked_for_none_neither() -> None:
    shape = compiled(choices=["abcdefgh", "zyxwvuts"])
    cut = alone("llama", Coming(random_prompt(5), shape=shape), 1)
    silent = alone("llama", Coming(random_prompt(5), options={"logprobs": None}, shape=shape), COUNT)
    assert [outcome.shares for told in (cut, silent) for outcome in told.outcomes] == [()] * (1 + len(silent.outcomes))


def test_free_rows_are_drawn_ahead_and_in_one_operation_beside_rows_with_a_grammar() -> None:
    calls: list[int] = []
    original = draws.draw_tokens

    def counted(logits: mx.array, keys: mx.array, temperatures: mx.array) -> mx.array:
        calls.append(logits.shape[0])
        return original(logits, keys, temperatures)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "draw_tokens", counted)
        shape = compiled(regex="[a-z]{30}")
        rows = [Coming(random_prompt(4, seed=at), options={"temperature": 1.0}) for at in range(5)]
        rows += [Coming(random_prompt(4, seed=at), options={"temperature": 1.0}, shape=shape) for at in range(3)]
        told = in_traffic("llama", rows, 6)
    assert all(one.finish == ("length", "max_tokens") for one in told)
    assert set(calls) == {5, 3}


def test_every_row_s_matcher_is_freed_when_it_leaves_and_when_the_backend_closes() -> None:
    before = matchers.live
    shape = compiled(regex="[a-z]+")

    def work(backend: MlxBackend) -> None:
        run_script(backend, [Coming(random_prompt(5), shape=shape, leaves=3), Coming(random_prompt(6), shape=shape)])
        assert matchers.live == before
        backend.open(Coming(random_prompt(5), shape=shape).asked(9, 5))
        assert matchers.live == before + 1

    with_backend(pair("llama"), work)
    assert matchers.live == before

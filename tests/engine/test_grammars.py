"""Rows with a grammar in one batch with free rows: each token is the model's own choice among what may follow.

The model's logits come from one forward over the whole answer, the masks from matchers of their own: of lists of
answers where there are few, else a second matcher of the library's, fed from the beginning.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from tokenizers import Tokenizer

from mlx_notebook.core.grammar import CHECKS, GrammarKind
from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import draws
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.engine.grammar import Vocabulary, compile_grammar
from tests.engine.driving import finish, prefill, request, shaped, step, with_backend
from tests.engine.languages import Listed, language, schemas
from tests.engine.shaping import EOS, allowed_by, compiled, tokens
from tests.engine.traffic import Coming, alone, check_alone, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from tests.engine.driving import Told

COUNT = 14
UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


class Second:
    """Another matcher of the library's."""

    def __init__(self, row: Coming) -> None:
        assert row.shape is not None
        self._matcher = row.shape.start()

    def allowed(self) -> set[int]:
        return allowed_by(self._matcher)

    def check(self, found: set[int]) -> None:
        assert found == self.allowed()

    def take(self, token_id: int) -> None:
        self._matcher.accept(token_id)

    def close(self) -> None:
        self._matcher.close()


def logits_of(kind: str, row: Coming, told: Told) -> npt.NDArray[np.float32]:
    """[T, V]: what the model says before each token of the answer, from one forward."""
    ids = mx.array([[*row.prompt, *told.tokens]])
    logits = pair(kind)[0](ids)[0, len(row.prompt) - 1 : -1].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)


def check_choices(kind: str, row: Coming, told: Told, listed: Listed | None = None) -> None:
    """Each token is the likeliest (or the draw) of what may follow, and log-probabilities are over that alone."""
    bound = noise(kind)
    second = Second(row)
    seed, temperature = row.options.get("seed", 0), row.options.get("temperature", 0.0)
    for at, (token_id, logits) in enumerate(zip(told.tokens, logits_of(kind, row, told), strict=True)):
        allowed = second.allowed()
        assert token_id in allowed
        if listed is not None:
            listed.check(allowed)
            if token_id != EOS:
                listed.take(token_id)
        ids = sorted(allowed)
        scores = logits[ids]
        if temperature:
            noises = np.array(draws.gumbel_rows(draws.keys_of([draws.key_words(seed, at)]), VOCAB))[0, ids]
            scores = scores / temperature + noises
        best = float(scores.max())
        assert scores[ids.index(token_id)] >= best - 4 * bound / (temperature or 1.0), f"token {at}: not the best"
        normal = logits[ids] - np.logaddexp.reduce(logits[ids])
        top = dict(told.logprobs[at].top)
        assert set(top) == allowed
        assert max(abs(top[i] - value) for i, value in zip(ids, normal, strict=True)) <= 4 * bound
        second.take(token_id)
    second.close()


@pytest.mark.slow
@settings(UNHURRIED, max_examples=15)
@given(drawn=st.lists(schemas, min_size=9, max_size=9), seed=st.integers(0, 1000))
def test_every_token_is_the_models_own_among_what_the_list_of_answers_allows(
    drawn: list[dict[str, Any]], seed: int
) -> None:
    rows = []
    for at, schema in enumerate(drawn):
        options = {"temperature": 0.8, "seed": seed + at} if at % 3 == 2 else {}
        leaves = 6 + at if at % 4 == 3 else None
        prompt = random_prompt(4 + 3 * at, seed=seed + at)
        rows.append(Coming(prompt, at=at // 2, leaves=leaves, options=options, shape=compiled(json_schema=schema)))
    rows += [Coming(random_prompt(7, seed=seed), at=2), Coming(random_prompt(21, seed=seed), chunk=None)]
    told = in_traffic("llama", rows, COUNT)
    for row, one, schema in zip(rows, told, drawn, strict=False):
        assert one.error is None, one.error
        listed = Listed(language(schema), tokens(), [EOS])
        check_choices("llama", row, one, listed)
        check_end(row, one, schema, listed)
    for row, one in zip(rows[-2:], told[-2:], strict=True):
        check_alone("llama", row, one, COUNT)


def check_end(row: Coming, told: Told, schema: Any, listed: Listed | None = None) -> None:
    """It ended where its answer was whole, at its limit, or where it was taken away."""
    if told.finish in (("stop", "grammar"), ("stop", "eos")):
        jsonschema.validate(json.loads(told.text), schema)
        assert listed is None or listed.whole
    elif row.leaves is None:
        assert told.finish == ("length", "max_tokens")
        assert len(told.tokens) == row.options.get("max_tokens", COUNT)
        assert listed is None or not listed.satisfied


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
    "bias": {"logit_bias": ((5, 100.0), (200, 100.0), (0, 1000.0))},
}


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_option_draws_among_what_may_follow(*, deterministic: bool) -> None:
    shape = compiled(json_schema={"type": "array", "items": {"enum": ["ab", "cd", 1]}, "minItems": 3})
    rows = [Coming(random_prompt(5 + at, seed=at), options=o, shape=shape) for at, o in enumerate(OPTIONS.values())]
    how = {"deterministic": True, "max_rows": 8} if deterministic else {}
    together = in_traffic("llama", rows, COUNT, **how)
    for row, told in zip(rows, together, strict=True):
        assert told.error is None, told.error
        by_itself = alone("llama", row, COUNT, **how)
        second = Second(row)
        for token_id in told.tokens:
            assert token_id in second.allowed()
            second.take(token_id)
        second.close()
        if deterministic:
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


def excluding(ids: set[int]) -> UserCode:
    def rule(_tokens: Any, logits: Any) -> Any:
        logits[:, mx.array(sorted(ids))] = -math.inf
        return logits

    return UserCode(logits_processors=(rule,))


def test_a_row_with_nothing_left_to_draw_fails_and_no_other() -> None:
    shape = compiled(regex="[ab]x+")
    letters = {i for i, said in enumerate(tokens()) if said in (b"a", b"b")}
    rows = [
        Coming(random_prompt(5), shape=shape, code=lambda: excluding(letters | {0})),
        Coming(random_prompt(6), shape=shape),
        Coming(random_prompt(7)),
        Coming(random_prompt(8), shape=compiled(280, regex="the")),
    ]
    told = in_traffic("llama", rows, COUNT)
    assert told[0].error is not None
    assert "no token that the grammar allows could be drawn" in told[0].error[0]
    assert told[0].tokens == []
    check_choices("llama", rows[1], told[1])
    check_alone("llama", rows[2], told[2], COUNT)
    assert told[3].text == "the"


def with_first(letter: str) -> Vocabulary:
    """The small tokenizer's vocabulary with token 0 an ordinary one."""
    told = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    words, special = told["model"]["vocab"], told["added_tokens"][0]
    words[special["content"]], words[letter] = words[letter], 0
    special["id"] = words[special["content"]]
    return Vocabulary(SimpleNamespace(backend_tokenizer=Tokenizer.from_str(json.dumps(told))), [EOS])


NOTHING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "seed": 3},
    "filtered": {"temperature": 0.8, "seed": 3, "top_k": 2, "top_p": 0.9},
    "nan": {},
    "no sums": {"logprobs": None},
}


@pytest.mark.parametrize("how", NOTHING)
def test_nothing_left_to_draw_is_not_token_0(how: str) -> None:
    """The likeliest of nothing is token 0, here a token that the grammar allows."""
    shape = compile_grammar(CHECKS[GrammarKind.CHOICES]("choices", ["aa", "ba"]), with_first("a"))

    def rule(_tokens: Any, logits: Any) -> Any:
        return mx.full(logits.shape, mx.nan if how == "nan" else -mx.inf)

    own = UserCode(logits_processors=(rule,))
    rows = [
        Coming(random_prompt(5), options=NOTHING[how], shape=shape, code=lambda: own),
        Coming(random_prompt(6), options={"logit_bias": ((0, 50.0),)}, shape=shape),
    ]
    failed, well = in_traffic("llama", rows, COUNT)
    assert failed.error is not None
    assert "no token that the grammar allows could be drawn" in failed.error[0]
    assert failed.tokens == []
    assert well.finish == ("stop", "grammar")
    assert well.tokens[0] == 0


class Panicking:
    """A part of a matcher that ends as native code may, from some call of `method` on; all else is the real one's."""

    def __init__(self, real: Any, method: str, after: int) -> None:
        self._real, self._method, self._left = real, method, after

    def __getattr__(self, name: str) -> Any:
        return self._panic_or_call if name == self._method else getattr(self._real, name)

    def _panic_or_call(self, *given: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise BaseException("index out of bounds")  # noqa: TRY002 - a panic is no Exception
        return getattr(self._real, self._method)(*given)


PANICS: dict[str, tuple[str, str, int, int]] = {
    "the mask": ("_native", "unsafe_compute_mask_ptr", 4, 4),
    "the token": ("_native", "consume_token", 4, 4),
    "the end": ("_native", "is_stopped", 4, 5),
    "the sums": ("tally", "step", 4, 4),
    "the last sum": ("tally", "shares", 0, 13),
}
"""Which part of a matcher panics in which method from which call on, and how many tokens the row has by then."""


@pytest.mark.parametrize("place", PANICS)
def test_whatever_panics_fails_that_row_and_no_other(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, method, after, came = PANICS[place]
    shape = compiled(regex="[a-z]{40}")
    rows = [Coming(random_prompt(5 + at), shape=shape) for at in range(3)] + [Coming(random_prompt(9))]
    start, made = type(shape).start, []
    if part == "tally":
        rows[1].shape = compiled(choices=["abcdefghijklmn"])

    def second_panics(self: Any, **how: Any) -> Any:
        matcher = start(self, **how)
        made.append(matcher)
        if len(made) == 2:
            setattr(matcher, part, Panicking(getattr(matcher, part), method, after))
        return matcher

    monkeypatch.setattr(type(shape), "start", second_panics)
    told = in_traffic("llama", rows, COUNT)
    monkeypatch.undo()
    assert told[1].error is not None
    assert "index out of bounds" in told[1].error[0]
    assert len(told[1].tokens) == came
    for at in (0, 2):
        assert told[at].finish == ("length", "max_tokens")
        check_choices("llama", rows[at], told[at])
    check_alone("llama", rows[3], told[3], COUNT)


def test_a_grammar_that_becomes_too_complex_fails_its_row_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_notebook.engine import grammar

    tight = LLParserLimits(step_max_items=60, verbose_errors=False)
    monkeypatch.setattr(grammar, "limits", lambda: tight)
    monkeypatch.setattr(grammar, "WALKED", 0)
    shape = compiled(grammar='start: s\ns: s s | "(" s ")" | "a" | "b" | "ab"')
    monkeypatch.undo()
    rows = [Coming(random_prompt(5), shape=shape), Coming(random_prompt(6), shape=compiled(regex="[a-z]{300}"))]
    told = in_traffic("llama", [*rows, Coming(random_prompt(9))], 30)
    assert told[0].error is not None
    assert "too complex" in told[0].error[0]
    assert told[1].finish == told[2].finish == ("length", "max_tokens")


def test_a_processor_reaches_no_token_that_the_grammar_excludes() -> None:
    def rule(_tokens: Any, logits: Any) -> Any:
        return mx.where(mx.arange(logits.shape[-1]) == 40, 1e9, logits)

    row = Coming(
        random_prompt(5), shape=compiled(choices=["yes", "no"]), code=lambda: UserCode(logits_processors=(rule,))
    )
    assert alone("llama", row, COUNT).text in ("yes", "no")


@pytest.mark.parametrize("kind", [mx.int32, mx.uint32, mx.bool_])
def test_a_processor_may_give_whole_numbers(kind: mx.Dtype) -> None:
    """Some have no value below all others: zero is one that a token may have."""

    def rule(_tokens: Any, logits: Any) -> Any:
        return mx.zeros(logits.shape, dtype=kind)

    code = UserCode(logits_processors=(rule,))
    row = Coming(random_prompt(5), shape=compiled(choices=["yes", "no"]), code=lambda: code)
    told = alone("llama", row, COUNT)
    assert told.text in ("yes", "no")
    assert told.outcomes[-1].shares


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

"""A row with a grammar that fails: for want of a token, by native code, by its limits; and no other row with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from llguidance import LLParserLimits
from tokenizers import Tokenizer

from mlx_notebook.core.grammar import CHECKS, GrammarKind
from mlx_notebook.core.request import UserCode
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.engine.grammar import compile_grammar
from mlx_notebook.engine.vocabulary import Vocabulary
from tests.engine.choosing import check_choices
from tests.engine.shaping import EOS, compiled, tokens
from tests.engine.traffic import Coming, alone, check_alone, in_traffic
from tests.small_models import random_prompt, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 14
LONG = 120


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


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


def tight(monkeypatch: pytest.MonkeyPatch, states: int, **option: Any) -> Any:
    """A compiled grammar that may learn so many states."""
    from mlx_notebook.engine import grammar

    monkeypatch.setattr(grammar, "MOST_STATES", states)
    return compiled(**option)


FIELDS = "|".join(f"{letters}{{60,90}}" for letters in ("[a-d]", "[e-h]", "[i-l]", "[m-p]", "[q-t]", "[u-z]"))
"""Every one of six has states of its own."""


@pytest.mark.parametrize("states", [200, 300])
def test_what_others_wrote_does_not_use_up_a_grammar_for_a_row(states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room = compiled(regex=f"({FIELDS})")
    shape = tight(monkeypatch, states, regex=f"({FIELDS})")
    for at in range(6):  # one after the other they would come to the limit
        row = Coming(random_prompt(5 + at, seed=at), shape=shape)
        told, expected = (in_traffic("llama", [replace(row, shape=one)], LONG)[0] for one in (shape, with_room))
        assert told.tokens == expected.tokens
        assert told.finish == expected.finish
    rows = [Coming(random_prompt(5 + at, seed=at), shape=shape, at=at) for at in range(6)]
    told_together = in_traffic("llama", [*rows, Coming(random_prompt(9))], LONG)
    for row, told in zip(rows, told_together, strict=False):
        assert told.error is None
        check_choices("llama", replace(row, shape=with_room), told)
    check_alone("llama", Coming(random_prompt(9)), told_together[6], LONG)
    assert shape.prototype.copy()[1] > 0, "it was compiled anew"


def test_a_row_that_uses_it_up_by_itself_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tight(monkeypatch, 40, regex="[a-z]{60}")
    rows = [Coming(random_prompt(5), shape=shape), Coming(random_prompt(6))]
    told = in_traffic("llama", rows, 70)
    assert told[0].error is not None
    assert "too many states" in told[0].error[0]
    check_alone("llama", rows[1], told[1], 70)


def test_one_that_was_slow_to_compile_is_not_compiled_on_the_engines_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tight(monkeypatch, 100, regex=f"({FIELDS})")
    monkeypatch.setattr(shape.prototype, "_seconds", 1.0)
    rows = [Coming(random_prompt(5 + at, seed=at), shape=shape, at=at) for at in range(6)]
    told = in_traffic("llama", rows, LONG)
    assert any(one.error is not None and "too many states" in one.error[0] for one in told)
    assert shape.prototype.copy()[1] == 0


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

"""Masks against what knows nothing of the library: every answer listed, and Python's own regular expressions."""

from __future__ import annotations

import codecs
import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_notebook.engine import matcher as matchers
from mlx_notebook.engine.masks import MaskFiller
from mlx_notebook.errors import GrammarError
from tests.engine.languages import Listed, language, schemas
from tests.engine.shaping import EOS, allowed_by, compiled, tokens
from tests.small_models import VOCAB

UNHURRIED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
)


def walk_both(matcher: Any, listed: Listed, pick: random.Random) -> str:
    """Follow one random answer with both; at each step they must agree on what may follow."""
    while True:
        allowed = allowed_by(matcher)
        listed.check(allowed)
        assert matcher.satisfied == listed.satisfied, listed.reached
        token_id = pick.choice(sorted(allowed))
        matcher.accept(token_id)
        if token_id == EOS:
            return listed.reached.decode()
        listed.take(token_id)
        if listed.satisfied:
            assert matcher.satisfied
            return listed.reached.decode()


@pytest.mark.slow
@settings(UNHURRIED, max_examples=150)
@given(schema=schemas, seed=st.integers(0, 1000))
def test_a_schema_lets_through_what_its_list_of_answers_does(schema: dict[str, Any], seed: int) -> None:
    shape = compiled(json_schema=schema)
    answers = language(schema)
    for turn in range(2):
        matcher = shape.start()
        answer = walk_both(matcher, Listed(answers, tokens(), [EOS]), random.Random(seed + turn))
        matcher.close()
        jsonschema.validate(json.loads(answer), schema)


@settings(UNHURRIED, max_examples=60)
@given(choices=st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_choices_let_through_what_their_list_does(choices: list[str], seed: int) -> None:
    try:
        matcher = compiled(choices=choices).start()
    except GrammarError:
        assert any(0xD800 <= ord(char) <= 0xDFFF for choice in choices for char in choice)
        return
    assert walk_both(matcher, Listed(choices, tokens(), [EOS]), random.Random(seed)) in choices
    matcher.close()


# Without \w: Unicode's and Python's ideas of a word differ in marks and joiners.
CLASSES = ["[a-c]", "[^a-z]", r"\d", r"[\d.]", "[A-Za-z0-9_]", "[é-ü]", r"[\]a]", "[]a]", "."]
ATOMS = st.sampled_from([*"abc1", "é", "😀", r"\.", r"\\", "th", *CLASSES])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{0,3}", "{1,}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=120)
@given(pattern=PATTERNS, seed=st.integers(0, 1000))
def test_a_pattern_may_end_just_where_python_says_that_it_matches(pattern: str, seed: int) -> None:
    lazy = "*?" in pattern  # as short as possible: it ends at the first match
    expected = re.compile(pattern)
    matcher, pick, said = compiled(regex=pattern).start(), random.Random(seed), b""
    for _ in range(12):
        allowed = allowed_by(matcher)
        matches = _matches(expected, said)
        assert matches or EOS not in allowed
        assert lazy or (EOS in allowed) == matches, (pattern, said)
        if allowed <= {EOS}:
            break
        token_id = pick.choice(sorted(allowed - {EOS}))
        matcher.accept(token_id)
        said += tokens()[token_id] or b""
    matcher.close()


def _matches(pattern: re.Pattern[str], said: bytes) -> bool:
    try:
        return pattern.fullmatch(said.decode()) is not None
    except UnicodeDecodeError:
        return False


def _begins_text(said: bytes | None) -> bool:
    if said is None:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(said)
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("size", [VOCAB - 30, VOCAB - 1, VOCAB])
def test_ids_beyond_the_tokenizer_are_masked_and_so_are_control_tokens(size: int) -> None:
    matcher = compiled(size, regex="(?s:.*)").start()
    allowed = allowed_by(matcher, VOCAB + 70)
    assert allowed == {EOS, *(i for i in range(size) if _begins_text(tokens(size)[i]))}
    assert max(allowed) == size - 1
    matcher.close()


def test_a_tokenizer_larger_than_the_model_is_cut_to_it() -> None:
    matcher = compiled(regex="(?s:.*)").start()
    assert allowed_by(matcher, 300) == {EOS, *(i for i in range(300) if _begins_text(tokens()[i]))}
    matcher.close()


def test_masks_of_many_rows_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library fills them on threads of its own, and where some rows wait for their grammar."""
    kinds: list[dict[str, Any]] = [{"regex": "[a-z]+"}, {"choices": ["yes", "no"]}, {"json_schema": {"type": "array"}}]
    rows = [compiled(**kinds[at % 3]).start(after=(7, 8) if at % 4 == 3 else ()) for at in range(11)]
    monkeypatch.setattr("mlx_notebook.engine.masks.os.cpu_count", lambda: 4)
    filler = MaskFiller()
    for width in (VOCAB, VOCAB, VOCAB + 40, 200):
        masks = filler.fill(rows, width)
        for row, mask in zip(rows, masks, strict=True):
            assert np.array_equal(mask, MaskFiller().fill([row], width)[0])
    filler.close()
    for row in rows:
        row.close()


def test_a_grammar_that_waits_lets_everything_but_the_end_through_till_its_tokens_have_come() -> None:
    matcher = compiled(choices=["yes"]).start(after=(40, 41))
    everything = set(range(VOCAB)) - {EOS}
    for token_id in (40, 40, 9, 41, 40):
        assert allowed_by(matcher) == everything
        assert not matcher.satisfied
        matcher.accept(token_id)
    matcher.accept(41)
    assert {tokens()[i] for i in allowed_by(matcher)} == {b"y"}
    matcher.close()


def test_closing_frees_once() -> None:
    before = matchers.live
    matcher = compiled(regex="a+").start()
    assert matchers.live == before + 1
    matcher.close()
    matcher.close()
    assert matchers.live == before


def test_a_token_that_does_not_fit_is_refused() -> None:
    matcher = compiled(regex="a+").start()
    for wrong in (0, VOCAB + 5):
        with pytest.raises(GrammarError, match=f"token {wrong} does not fit"):
            matcher.accept(wrong)
    matcher.close()

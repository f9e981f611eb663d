"""Options: each one's type, range, other spellings and later names; nothing but our own errors comes out."""

from __future__ import annotations

import re
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.options import (
    LATER_OPTIONS,
    OTHER_SPELLINGS,
    SHOWN,
    ParsedOptions,
    option_names,
    parse_options,
    shown,
)
from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.errors import UnsupportedRequest

VOCAB = 100


def parse(recommended: dict[str, Any] | None = None, /, **options: Any) -> ParsedOptions:
    return parse_options(options, vocab_size=VOCAB, draw_seed=lambda: 12345, recommended=recommended)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def looped() -> dict[Any, Any]:
    """Refers to itself, beside a key of a wrong type."""
    schema: dict[Any, Any] = {1: 2}
    schema["items"] = schema
    return schema


FLAGGED = re.compile("a", re.IGNORECASE)
SHAPES = ("json_schema", "regex", "choices", "grammar")


def value_of(name: str, parsed: ParsedOptions) -> Any:
    if name in SHAPES:
        if parsed.grammar is None:
            return None
        assert parsed.to_dict()[name] == parsed.grammar.value
        return parsed.grammar
    return getattr(parsed.sampling, name) if hasattr(parsed.sampling, name) else getattr(parsed, name)


# name, values that pass, values out of range, values of a wrong type
CASES: list[tuple[str, list[Any], list[Any], list[Any]]] = [
    ("max_tokens", [1, 10_000_000, np.int64(5)], [0, -1, 10_000_001, 10**400], [True, 1.0, "8"]),
    ("temperature", [0, 0.0, 100, np.float32(0.5), Fraction(1, 2)], [-0.1, 100.1, float("nan"), 10**400], ["1", True]),
    ("top_p", [1e-9, 1.0], [0.0, -1, 1.01, float("inf")], ["0.9", 1j]),
    ("top_k", [0, VOCAB], [-1, VOCAB + 1], [2.0, "2"]),
    ("min_p", [0.0, 1.0], [-0.01, 1.01], ["x"]),
    ("xtc_probability", [0.0, 1.0], [-0.01, 1.01], [[]]),
    ("xtc_threshold", [0.0, 0.5], [-0.01, 0.51], [b"0"]),
    ("repetition_penalty", [0.01, 1.3, 10_000], [0.0, -1, 10_001], ["1.1"]),
    ("presence_penalty", [-10_000, 0, 10_000], [10_001, float("nan"), 10**400], ["x", True]),
    ("frequency_penalty", [-1.5, Decimal("0.5")], [-10_001, float("-inf")], [{}]),
    ("repetition_context_size", [1, 20], [0], [1.5]),
    ("presence_context_size", [1], [0], [True]),
    ("frequency_context_size", [1], [-1], ["20"]),
    ("seed", [0, 2**64 - 1], [-1, 2**64], [1.0, True]),
    ("stop", ["END", ["a", "b"], ("c",), [], iter(["d"])], ["", [""], ["x" * 10_001]], [5, b"x", {"a": 1}, ["a", 1]]),
    ("logprobs", [None, True, 0, 5, VOCAB], [-1, VOCAB + 1], ["5", 1.5]),
    (
        "logit_bias",
        [{}, {0: 1.0, VOCAB - 1: -5}, {np.int32(3): 1}],
        [{VOCAB: 1.0}, {-1: 1.0}, {0: 1e5}, {0: float("nan")}],
        [[1], {"0": 1.0}, {0: "x"}, {True: 1.0}, {0.5: 1}],
    ),
    ("system", ["Be brief.", ""], [], [5, b"x", ["a"]]),
    ("raw", [True, False], [], [1, "yes"]),
    ("n", [1, 10_000], [0, 10_001], [2.0, True]),
    ("priority", [-1_000_000, 0, 1_000_000], [-1_000_001, 1_000_001], [0.5]),
    ("deadline", [1e-9, 1e9], [0, -1, 1e10, float("inf"), 10**400], ["5"]),
    ("cache_prompt", [True, False], [], [0]),
    ("allow_special", [True, False], [], ["x"]),
    ("chat_template_kwargs", [{}, {"a": 1}], [], [[], "x", {1: 2}]),
    ("logits_processors", [[], [print], print, (print, len)], [], [5, [5], "x"]),
    (
        "json_schema",
        [{}, {"type": "integer", "minimum": np.int64(3)}, '{"enum": [1, null]}', True],
        ["{", '{"a": ', {"const": float("nan")}, {"const": 10**400}, deep(70), "[" * 100_000, {"enum": [0] * 20_001}],
        [5, [1], "[1]", {1: {}}, {"const": b"x"}, {"const": {1}}, looped()],
    ),
    ("regex", ["a+", re.compile("(?i)a|b"), ""], ["x" * 16_385, "\ud800", FLAGGED], [5, b"a", ["a"]]),
    (
        "choices",
        [["yes", "no"], ("a",), iter("ab"), ["a", "a"], {"a", "b"}],
        [[], [""], ["a", "\udfff"], ["x" * 300_000], [str(i) for i in range(10_001)]],
        ["yes", b"yes", {"a": 1}, ["a", 1], 5],
    ),
    ("grammar", ['start: "a"'], ["", " \n ", "x" * 300_000], [5, b"x", ["start"]]),
]  # fmt: skip


def test_every_option_has_a_row_here() -> None:
    assert sorted(name for name, *_ in CASES) == sorted({*option_names()} - {"sampling"})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, passing, _, _ in CASES for value in passing])
def test_what_passes(name: str, value: Any) -> None:
    value_of(name, parse(**{name: value}))


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _, wrong, _ in CASES for value in wrong])
def test_out_of_range_names_the_option(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        parse(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _, _, wrong in CASES for value in wrong])
def test_a_wrong_type_names_the_option(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        parse(**{name: value})


def test_the_error_says_the_range() -> None:
    with pytest.raises(ValueError, match=r"top_p=1.5 is out of range: a number above 0 to 1"):
        parse(top_p=1.5)
    with pytest.raises(ValueError, match=r"token ids run from 0 to 99"):
        parse(logit_bias={100: 1.0})
    with pytest.raises(ValueError, match=r"a whole number from 1 to 10000000"):
        parse(max_tokens=0)


def test_defaults_are_those_of_the_interface() -> None:
    parsed = parse()
    assert parsed.sampling == SamplingOptions(seed=12345)
    assert (parsed.n, parsed.priority, parsed.deadline, parsed.raw, parsed.cache_prompt) == (1, 0, None, False, True)
    assert not parsed.seed_given


@pytest.mark.parametrize("name", [name for name, *_ in CASES if name not in ("logprobs", "seed")])
def test_none_is_the_default(name: str) -> None:
    assert value_of(name, parse(**{name: None})) == value_of(name, parse())


def test_values_come_out_frozen_and_in_one_form() -> None:
    parsed = parse(logit_bias={5: 1, 2: np.float64(-1)}, stop=["b", "a", "b"], logprobs=True, temperature=1)
    assert parsed.sampling.logit_bias == ((2, -1.0), (5, 1.0))
    assert parsed.sampling.stop == ("b", "a")
    assert parsed.sampling.logprobs == 0
    assert isinstance(parsed.sampling.temperature, float)
    assert hash(parsed.sampling)


def test_false_logprobs_are_none() -> None:
    assert parse(logprobs=False).sampling.logprobs is None


def test_the_users_objects_are_copied() -> None:
    bias, extra = {1: 1.0}, {"a": 1}
    parsed = parse(logit_bias=bias, chat_template_kwargs=extra)
    bias[2], extra["b"] = 2.0, 2
    assert parsed.sampling.logit_bias == ((1, 1.0),)
    assert parsed.chat_template_kwargs == {"a": 1}


def test_seeds() -> None:
    assert parse(seed=7).seed_given
    assert parse(seed=7).sampling.seed == 7
    assert parse(seed=None).sampling.seed == 12345


def test_as_plain_values_under_public_names() -> None:
    values = parse(logit_bias={1: 2}, stop="x", logits_processors=len).to_dict()
    assert set(values) == {*option_names()} - {"sampling"}
    assert (values["logit_bias"], values["stop"], values["logits_processors"]) == ({1: 2.0}, ["x"], ["len"])


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("theirs", "ours"), OTHER_SPELLINGS.items())
def test_common_other_spellings_name_ours(theirs: str, ours: str) -> None:
    with pytest.raises(TypeError, match=f"unknown option '{theirs}': did you mean '{ours}'"):
        parse(**{theirs: 1})


def test_every_spelling_points_at_a_name_of_the_interface() -> None:
    assert set(OTHER_SPELLINGS.values()) <= {*option_names(), *LATER_OPTIONS}
    assert not set(OTHER_SPELLINGS) & {*option_names(), *LATER_OPTIONS}


@pytest.mark.parametrize("name", LATER_OPTIONS)
def test_later_names_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedRequest, match=name) as caught:
        parse(**{name: object()})
    assert [reason.code for reason in caught.value.reasons] == [f"{name}-unsupported"]
    assert name not in option_names()


def test_a_typo_names_the_nearest_and_anything_else_the_list() -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        parse(temprature=1)
    with pytest.raises(TypeError, match="known options: allow_special, cache_prompt"):
        parse(zzzzzz=1)


# ---------------------------------------------------------------- sampling="model"


def test_the_models_own_values_fill_what_the_user_left_out() -> None:
    own = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 2}
    parsed = parse(own, sampling="model", top_p=0.5)
    assert (parsed.sampling.temperature, parsed.sampling.top_p) == (0.6, 0.5)
    assert parse(own).sampling.temperature == 0.0
    assert parse(own, sampling="explicit").sampling.temperature == 0.0


@pytest.mark.parametrize("mode", ["other", 5, ["model"], np.array([1, 2])])
def test_other_modes(mode: Any) -> None:
    with pytest.raises(ValueError, match="'explicit'"):
        parse(sampling=mode)


# ---------------------------------------------------------------- whatever comes

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300)
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.decimals()
    | st.fractions()
    | st.dates()
    | st.builds(object)
    | st.sampled_from([np.array([1, 2]), np.array(3), np.float16(1), np.bool_(True), print, int, float("-inf")])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from([*option_names(), *LATER_OPTIONS, *OTHER_SPELLINGS]) | st.text(max_size=12)


@given(st.dictionaries(NAMES, ANYTHING, max_size=4))
def test_nothing_but_our_own_errors(options: dict[str, Any]) -> None:
    try:
        parsed = parse(**options)
    except (TypeError, ValueError, UnsupportedRequest):
        pass
    else:
        ids = [token_id for token_id, _ in parsed.sampling.logit_bias]
        assert all(0 <= token_id < VOCAB for token_id in ids)
        assert 1 <= parsed.sampling.max_tokens <= 10_000_000
        assert {type(getattr(parsed.sampling, f.name)) for f in fields(SamplingOptions)} <= {
            int,
            float,
            tuple,
            type(None),
        }


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


def test_a_value_that_cannot_be_shown_does_not_hide_the_error() -> None:
    with pytest.raises(TypeError, match=r"temperature=<Unshowable>: a number from 0"):
        parse(temperature=Unshowable())


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 1000)) == SHOWN
    assert shown(5) == "5"


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "seed", "deadline"])
def test_an_int_that_python_will_not_print_is_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=<int> is out of range"):
        parse(**{name: 10**5000})

"""From a cell's text to its prompts: cutting, filling, and that variables are data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError

from mlx_notebook.notebook.prompts import prompts_of

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}\r"), max_size=20)
NAMES = st.from_regex(r"[A-Za-z_]\w{0,6}", fullmatch=True)


def prompts(cell: str, separator: str | None = None, variables: dict[str, object] | None = None) -> list[str]:
    return prompts_of("%%mlxgen", cell, separator=separator, variables=variables)


def test_without_options_the_text_stands() -> None:
    assert prompts("a\n---\n{{b}}\n") == ["a\n---\n{{b}}"]


@pytest.mark.parametrize(
    ("cell", "separator", "parts"),
    [
        ("a\n---\nb\n", "---", ["a", "b"]),
        ("a\n  ---  \nb --- c\n", "---", ["a", "b --- c"]),
        ("---\na\n\nmore\n---\n---\n\nb\n---\n", "---", ["a\n\nmore", "b"]),
        ("a\n===\nb\n---\nc\n", "===", ["a", "b\n---\nc"]),
        ("a\n", "---", ["a"]),
        ("  a  \n---\n  b\n", "---", ["  a  ", "  b"]),
    ],
)
def test_cutting(cell: str, separator: str, parts: list[str]) -> None:
    assert prompts(cell, separator) == parts


@given(st.lists(st.text("ab \n", max_size=8).filter(lambda t: t.strip()), min_size=1, max_size=5))
def test_what_was_joined_is_cut_again(parts: list[str]) -> None:
    assert prompts("\n---\n".join(parts), "---") == [part.strip("\n") for part in parts]


def test_filling() -> None:
    variables: dict[str, object] = {"city": "Oslo", "n": 3, "äöü": "ok"}
    assert prompts("{{city}}, {{ n }} days; {{äöü}} {n} {{n.real}} {{ 1+1 }}", None, variables) == [
        "Oslo, 3 days; ok {n} {{n.real}} {{ 1+1 }}"
    ]


@given(name=NAMES, before=TEXTS, after=TEXTS, value=st.text(min_size=1).filter(lambda t: t.strip()))
def test_a_value_is_inserted_as_it_is(name: str, before: str, after: str, value: str) -> None:
    cell = f"{before}{{{{{name}}}}}{after}\n"
    assert prompts(cell, None, {name: value}) == [f"{before}{value}{after}"]


def test_a_value_never_cuts_and_is_never_filled() -> None:
    variables: dict[str, object] = {"a": "one\n---\ntwo {{b}}", "b": "no"}
    assert prompts("{{a}}\n---\n{{b}}", "---", variables) == ["one\n---\ntwo {{b}}", "no"]


@pytest.mark.parametrize(
    ("cell", "separator", "variables", "said"),
    [
        ("\n", None, None, "there is no prompt"),
        ("---\n---\n", "---", None, "there is no prompt"),
        ("a", " ", None, "--split takes the text of a line"),
        ("{{ctiy}}", None, {"city": 1}, "no variable 'ctiy' for {{ctiy}}; did you mean {{city}}?"),
        ("{{zzz}}", None, {"city": 1}, "no variable 'zzz' for {{zzz}}"),
        ("{{a}}", None, {"a": " "}, "--fill leaves a prompt empty: {{a}}"),
    ],
)
def test_mistakes(cell: str, separator: str | None, variables: dict[str, object] | None, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        prompts(cell, separator, variables)
    assert said in str(caught.value)

"""Templates over columns: what is a field, what is text, and that values are data."""

from __future__ import annotations

import contextlib
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.gateway.frames.template import parse_template

# A column's name may hold anything but braces.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="{}"), min_size=1, max_size=8)
TEXTS = st.text(max_size=12)


def doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@given(names=st.lists(NAMES, min_size=1, max_size=4, unique=True), data=st.data())
def test_a_template_is_its_texts_with_the_values_between(names: list[str], data: st.DataObject) -> None:
    values = {name: data.draw(TEXTS) for name in names}
    parts = data.draw(
        st.lists(st.one_of(TEXTS.map(lambda t: ("text", t)), st.sampled_from(names).map(lambda n: ("field", n))))
    )
    template = "".join(doubled(part) if kind == "text" else "{" + part + "}" for kind, part in parts)
    expected = "".join(part if kind == "text" else values[part] for kind, part in parts)
    parsed = parse_template(template, names)
    assert parsed.render(values) == expected
    assert parsed.columns == tuple(dict.fromkeys(part for kind, part in parts if kind == "field"))


@given(st.text(string.printable, max_size=40))
def test_a_text_is_a_template_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_template(text, ["a"]).render({"a": "x"}), str)


def test_formats_and_conversions() -> None:
    template = parse_template("{price:.2f} {name!r:>8} {name!s}", ["price", "name"])
    assert template.render({"price": 3, "name": "fox"}) == "3.00    'fox' fox"


def test_values_are_never_templates() -> None:
    assert parse_template("{a}", ["a", "b"]).render({"a": "{b} {{", "b": "no"}) == "{b} {{"


def test_no_attribute_is_looked_up_and_a_dot_belongs_to_the_name() -> None:
    assert (
        parse_template("{user.name} {x[0]}", ["user.name", "x[0]"]).render({"user.name": "Ann", "x[0]": 1}) == "Ann 1"
    )
    with pytest.raises(ValueError, match=r"no column 'a.__class__'"):
        parse_template("{a.__class__}", ["a"])


def test_number_names() -> None:
    assert parse_template("{0}", [0, 1]).render({0: "zero"}) == "zero"


WRONG: list[tuple[str, list[Any], str]] = [
    ("{reveiw}", ["review", "stars"], r"no column 'reveiw'; did you mean \{review\}\?"),
    ("{Review}", ["review", "stars"], r"did you mean \{review\}"),
    ("{zzz}", ["review", "stars"], r"there are: review, stars"),
    ("{review", ["review"], r"a brace that is meant as text is doubled"),
    ("review}", ["review"], r"a brace that is meant as text is doubled"),
    ("{review:{stars}}", ["review", "stars"], r"a brace that is meant as text is doubled"),
    ("{review!x}", ["review"], r"after ! stands s, r or a"),
]


@pytest.mark.parametrize(("text", "columns", "message"), WRONG)
def test_mistakes_are_named(text: str, columns: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_template(text, columns)


def test_a_value_that_does_not_take_its_format_is_named() -> None:
    with pytest.raises(ValueError, match=r"'price' is 'dear', which does not take the format '.2f'"):
        parse_template("{price:.2f}", ["price"]).render({"price": "dear"})

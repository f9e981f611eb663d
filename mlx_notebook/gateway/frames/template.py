"""A prompt template over columns: `{name}` is a column's value, `{{` and `}}` are braces.

The form is Python's `str.format` with one difference: what stands before `!` or `:` is the column's whole
name, dots, brackets and spaces included (and these two, where a column is called so). Values are data: they
are inserted once, never read as templates, and no attribute of theirs is ever looked up.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONVERSIONS: dict[str | None, Callable[[Any], Any]] = {None: lambda value: value, "s": str, "r": repr, "a": ascii}


@dataclass(frozen=True, slots=True)
class Field:
    """One place in a template: text before it, and the column that goes there (None: only text)."""

    before: str
    column: Any = None
    conversion: str | None = None
    form: str = ""
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template; `columns` are those it names, each once, in order."""

    fields: tuple[Field, ...]
    columns: tuple[Any, ...]

    def render(self, values: Mapping[Any, Any]) -> str:
        """The text with a row's values in it.

        Raises:
            ValueError: a value does not take its format; the column is named.
        """
        return "".join(
            field.before + (_show(field, values[field.column]) if field.filled else "") for field in self.fields
        )


def parse_template(text: str, columns: Sequence[Any], *, what: str = "column") -> Template:
    """Check a template against the columns that there are.

    Raises:
        TypeError: it is no text.
        ValueError: a brace stands alone, or a column is missing; close names are said.
    """
    if not isinstance(text, str):
        raise TypeError(f"prompt: a template text with {{{what}}} fields, not {type(text).__name__}")
    known = {str(column): column for column in columns} | {c: c for c in columns if isinstance(c, str)}
    fields, before, end = [], "", 0
    for token in _TOKEN.finditer(text):
        before += text[end : token.start()]
        end = token.end()
        if token["doubled"]:
            before += token["doubled"][0]
        elif token["field"] is None:
            raise ValueError(f"prompt: {token[0]!r} at position {token.start()} stands alone; {_BRACES}")
        else:
            fields.append(_field(before, token["field"], known, what))
            before = ""
    fields.append(Field(before + text[end:], filled=False))
    named = dict.fromkeys(field.column for field in fields if field.filled)
    return Template(tuple(fields), tuple(named))


_TOKEN = re.compile(r"(?P<doubled>\{\{|\}\})|\{(?P<field>[^{}]*)\}|[{}]")
_BRACES = "a brace that is meant as text is doubled ({{ or }}), a field is {name}"


def _field(before: str, inside: str, known: Mapping[str, Any], what: str) -> Field:
    if inside in known:
        return Field(before, known[inside])
    head, _colon, form = inside.partition(":")
    name, mark, conversion = head.rpartition("!") if "!" in head else (head, "", "")
    if name not in known:
        raise ValueError(_missing(name, list(known), what))
    if mark and conversion not in CONVERSIONS:
        raise ValueError(f"prompt: {{{inside}}}: after ! stands s, r or a")
    return Field(before, known[name], conversion or None, form)


def _missing(name: str, known: list[str], what: str) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    by_case = [k for k in known if k.lower().strip() == name.lower().strip()]
    meant = list(dict.fromkeys([*by_case, *close]))
    if meant:
        hint = f"did you mean {' or '.join('{' + m + '}' for m in meant)}?"
    else:
        hint = f"there are: {', '.join(known)}" if known else f"there is no {what} at all"
    return f"prompt: there is no {what} {name!r}; {hint} ({_BRACES})"


def _show(field: Field, value: Any) -> str:
    converted = CONVERSIONS[field.conversion](value)
    try:
        return format(converted, field.form) if field.form else str(converted)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{field.column!r} is {value!r}, which does not take the format {field.form!r}: {error}"
        ) from None

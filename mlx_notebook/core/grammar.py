"""The shape of an answer as a user gives it: schema, pattern, choices or grammar, checked and frozen to text.

Only what can be said without a compiler is checked here: types, sizes, depth, and that there is one shape, not two.
The sizes bound what the compiler is ever given, so that a hostile schema can neither stall nor exhaust the process.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlx_notebook.errors import GrammarError

MAX_SOURCE = 256 * 1024
"""Characters of a schema's JSON, a pattern, a grammar, or all choices together."""

MAX_DEPTH = 64
"""Levels of a JSON schema."""

MAX_VALUES = 20_000
"""Values (objects, arrays, texts, numbers) in a JSON schema."""

MAX_CHOICES = 10_000
LARGEST = 10**300
MAX_PATTERN = 16 * 1024


class GrammarKind(StrEnum):
    """Which option gave the shape: its public name."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICES = "choices"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One shape. `source` is JSON text for a schema or choices, else the pattern or the Lark text itself.

    The properties of an object are written in the schema's order, so that order is part of the source.
    """

    kind: GrammarKind
    source: str

    @property
    def value(self) -> Any:
        """What the option's value was, as plain JSON values."""
        structured = self.kind in (GrammarKind.JSON_SCHEMA, GrammarKind.CHOICES)
        return json.loads(self.source) if structured else self.source


def is_model_class(value: object) -> bool:
    """Whether this is a pydantic model class, told by what it can do: pydantic is not imported for it."""
    return isinstance(value, type) and callable(getattr(value, "model_json_schema", None))


def check_json_schema(name: str, value: Any) -> GrammarSpec:
    """A schema given as a dictionary, as JSON text, or as a pydantic class.

    Raises:
        TypeError: it is none of these, or holds something that JSON has no word for.
        GrammarError: the text is no JSON, the class has no schema, or the schema is too large or too deep.
    """
    if is_model_class(value):
        value = _schema_of(name, value)
    elif isinstance(value, str):
        value = _parsed(name, value)
    if not isinstance(value, Mapping | bool):
        raise TypeError(f"{name}: a dictionary, JSON text or a pydantic class, not {type(value).__name__}")
    plain = _Plain(name).of(value, "", 0)
    text = json.dumps(plain, ensure_ascii=False)
    _check_text(name, text, MAX_SOURCE)
    return GrammarSpec(GrammarKind.JSON_SCHEMA, text)


def _schema_of(name: str, model_class: Any) -> Any:
    try:
        return model_class.model_json_schema()
    except Exception as error:  # noqa: BLE001 - the class's own code, and what JSON has no word for, may raise anything
        said = " ".join(str(error).split("For further information")[0].split())
        text = f"{name}: no JSON schema can be made of {model_class.__name__}: {said}"
        raise GrammarError(text, option=name) from None


def check_regex(name: str, value: Any) -> GrammarSpec:
    """A pattern, as text or as `re.compile` gives it (without flags)."""
    pattern = value.pattern if isinstance(value, re.Pattern) else value
    if not isinstance(pattern, str):
        raise TypeError(f"{name}: a pattern as text, not {type(pattern).__name__}")
    if isinstance(value, re.Pattern) and value.flags != re.compile(pattern).flags:
        text = f"{name}: flags given to re.compile are not taken; write them into the pattern, as in (?i)"
        raise GrammarError(text, option=name)
    _check_text(name, pattern, MAX_PATTERN)
    return GrammarSpec(GrammarKind.REGEX, pattern)


def check_choices(name: str, value: Any) -> GrammarSpec:
    """A list of different texts, of which the answer is to be one."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: a list of texts, not {type(value).__name__}")
    choices: list[str] = []
    for at, choice in enumerate(value):
        if not isinstance(choice, str):
            raise TypeError(f"{name}: each choice is a text, and choice {at} is {type(choice).__name__}")
        if not choice:
            raise GrammarError(
                f"{name}: choice {at} is empty; each has at least one character", option=name, place=f"choice {at}"
            )
        choices.append(choice)
        if len(choices) > MAX_CHOICES:
            raise GrammarError(f"{name}: more than {MAX_CHOICES} choices", option=name, place=f"choice {at}")
    if not choices:
        raise GrammarError(f"{name}: there is none to choose from", option=name)
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    _check_text(name, text, MAX_SOURCE)
    return GrammarSpec(GrammarKind.CHOICES, text)


def check_grammar(name: str, value: Any) -> GrammarSpec:
    """A grammar in Lark's form."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: a grammar in Lark's form, as text, not {type(value).__name__}")
    if not value.strip():
        raise GrammarError(f"{name}: it is empty; it needs a rule called start", option=name)
    _check_text(name, value, MAX_SOURCE)
    return GrammarSpec(GrammarKind.GRAMMAR, value)


def with_ascii_digits(pattern: str) -> str:
    r"""The pattern with `\d` as `[0-9]`: a model that draws any digit of Unicode's draws strange ones.

    Not inside `[^...]`, where that would let more through than the pattern says.
    """
    out: list[str] = []
    inside = negated = False
    at, begins = 0, -1
    while at < len(pattern):
        char = pattern[at]
        if char == "\\" and at + 1 < len(pattern):
            escape = pattern[at : at + 2]
            digits = "0-9" if inside else "[0-9]"
            out.append(digits if escape == r"\d" and not negated else escape)
            at += 2
            continue
        if char == "[" and not inside:
            inside, negated = True, pattern[at + 1 : at + 2] == "^"
            begins = at + 1 + negated
        elif char == "]" and at == begins:
            pass  # the first in a class is one of its characters
        elif char == "]" and inside:
            inside = negated = False
        out.append(char)
        at += 1
    return "".join(out)


CHECKS = {
    GrammarKind.JSON_SCHEMA: check_json_schema,
    GrammarKind.REGEX: check_regex,
    GrammarKind.CHOICES: check_choices,
    GrammarKind.GRAMMAR: check_grammar,
}


def only_one(specs: Sequence[GrammarSpec]) -> GrammarSpec | None:
    """The one shape of a request; None without.

    Raises:
        ValueError: there are several.
    """
    if len(specs) > 1:
        named = " and ".join(str(spec.kind) for spec in specs)
        raise ValueError(f"{named}: an answer has one shape; give one of them")
    return specs[0] if specs else None


def _parsed(name: str, text: str) -> Any:
    _check_text(name, text, MAX_SOURCE)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise GrammarError(f"{name}: the text is no JSON at {place}: {error.msg}", option=name, place=place) from None
    except RecursionError:
        raise _too_deep(name, "") from None
    except ValueError as error:  # a number with more digits than Python reads
        raise GrammarError(f"{name}: the text is no JSON: {error}", option=name) from None


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise GrammarError(f"{name}: {len(text)} characters; at most {most} are taken", option=name)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"character {error.start}"
        raise GrammarError(f"{name}: half of a surrogate pair at {place}", option=name, place=place) from None


def _too_deep(name: str, place: str) -> GrammarError:
    return GrammarError(f"{name}: nested deeper than {MAX_DEPTH} levels", option=name, place=place)


class _Plain:
    """Copies a value as plain JSON values, counting; what refers to itself is found by its depth."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def of(self, value: Any, place: str, depth: int) -> Any:
        self._count += 1
        if depth > MAX_DEPTH:
            raise _too_deep(self._name, place[:200])
        if self._count > MAX_VALUES:
            raise GrammarError(f"{self._name}: more than {MAX_VALUES} values", option=self._name, place=place)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Mapping):
            return {
                self._key(key, place): self.of(one, f"{place}/{escaped(str(key))}", depth + 1)
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.of(one, f"{place}/{at}", depth + 1) for at, one in enumerate(value)]
        return self._number(value, place)

    def _key(self, key: Any, place: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"{self._name}: keys are texts, and at {place or 'the top'} there is {key!r}")
        return key

    def _number(self, value: Any, place: str) -> int | float:
        if hasattr(value, "__index__"):
            number = int(value.__index__())
            if abs(number) > LARGEST:
                raise GrammarError(f"{self._name}: the number at {place} is too large", option=self._name, place=place)
            return number
        if not isinstance(value, float):
            raise TypeError(f"{self._name}: {type(value).__name__} at {place or 'the top'} is nothing that JSON knows")
        if not math.isfinite(value):
            raise GrammarError(f"{self._name}: {value} at {place} is no JSON number", option=self._name, place=place)
        return float(value)


def escaped(key: str) -> str:
    """A key as one piece of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")

"""How much work a shape makes for its compiler, counted before it is compiled.

The compiler's own limits end most of what grows too large. In some ways its time and memory grow faster than the text
without any of them (docs/design.md has what was measured); each of those has a limit here. Counting takes time linear
in the text, or has a budget.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from mlx_notebook.core.grammar import MAX_PATTERN, MAX_SOURCE, check_json_schema
from mlx_notebook.core.lark import spelled_out, words_of
from mlx_notebook.core.merging import Merging, TooMuchMerged
from mlx_notebook.core.schema_tree import map_of, nodes, pointer, required_of

if TYPE_CHECKING:
    from mlx_notebook.core.schema_tree import Schema

MOST_OPTIONAL = 1_000
"""Optional properties one after another: they take time with their square, and any of them may come next."""

MOST_NAME_PATTERNS, MOST_NAME_PATTERNS_IN_ALL = 100, 1_000
"""Patterns of `patternProperties`, in one object and in all: each is compared with each."""

MOST_MULTIPLES = 100_000
"""All `multipleOf` together: each has as many states as its digits say."""

MOST_REPEATS, MOST_REPEATS_IN_ALL = 500, 5_000
"""Repetitions (`?`, `*`, `+`, `{`) in one pattern, and in all patterns of a schema: time grows with their square."""

MOST_REPEATS_IN_TERMINALS, MOST_REPEATS_IN_RULES = 1_000, 5_000
"""The same in a Lark grammar: in its terminals and patterns together, whose names stand for one another, and in its
rules."""

_REPEAT = re.compile(r"\\.|(?P<one>[?*+{])", re.DOTALL)


class TooMuch(NamedTuple):
    """What there is too much of, and where (a JSON pointer, or a line of a grammar)."""

    place: str
    text: str


def repeats_in(pattern: str) -> int:
    """How many repetitions a pattern has at most; what stands in a class counts too."""
    return sum(match["one"] is not None for match in _REPEAT.finditer(pattern))


def of_schema(schema: Schema) -> TooMuch | None:
    """The first thing that a schema has too much of; None where it can be compiled."""
    names = multiples = repeats = 0
    for path, node in nodes(schema):
        if not isinstance(node, dict):
            continue
        found = _of_node(node)
        if found is not None:
            return TooMuch(pointer(path), found)
        own = _patterns(node)
        names += len(map_of(node, "patternProperties"))
        repeats += sum(map(repeats_in, own))
        multiples += multiple_of(node)
        for count, most, what in (
            (names, MOST_NAME_PATTERNS_IN_ALL, "patterns of names (patternProperties)"),
            (repeats, MOST_REPEATS_IN_ALL, "repetitions (? * + {) in patterns"),
            (multiples, MOST_MULTIPLES, "states for multipleOf"),
        ):
            if count > most:
                return TooMuch(pointer(path), f"up to here {count} {what} in all; at most {most} are taken")
    try:
        Merging(schema, MOST_OPTIONAL).check()
    except TooMuchMerged as error:
        return TooMuch(error.place, str(error))
    return None


def of_pattern(pattern: str) -> TooMuch | None:
    """The same of a pattern."""
    count = repeats_in(pattern)
    text = f"{count} repetitions (? * + {{); at most {MOST_REPEATS} are taken"
    return TooMuch("", text) if count > MOST_REPEATS else None


def of_grammar(text: str) -> TooMuch | None:
    """The same of a Lark grammar, and of the schemas in it.

    Raises:
        GrammarError: such a schema is too large or too deep.
    """
    in_terminals = in_rules = 0
    lines: dict[str, int] = {}
    for word in words_of(text):
        lines.setdefault(word.owner, word.line)
        if word.text.startswith("/"):
            in_terminals += repeats_in(word.text)
        elif word.text in ("?", "*", "+", "~", "{"):
            in_terminals, in_rules = in_terminals + word.in_terminal, in_rules + (not word.in_terminal)
        elif word.text == "%json":
            found = _of_schema_inside(text[word.at + len(word.text) :])
            if found is not None:
                return TooMuch(f"line {word.line}", f"the schema has at {found.place or 'the top'} {found.text}")
        for count, most, what in (
            (in_terminals, MOST_REPEATS_IN_TERMINALS, "terminals and patterns"),
            (in_rules, MOST_REPEATS_IN_RULES, "rules"),
        ):
            if count > most:
                return TooMuch(f"line {word.line}", f"more than {most} repetitions (? * + ~ {{) in {what}, the limit")
    for name, size in spelled_out(text, MAX_SOURCE + 1).items():
        if size > MAX_SOURCE:
            said = f"{name} has more than {MAX_SOURCE} characters with the terminals that it names; make rules of some"
            return TooMuch(f"line {lines[name]}", said)
    return None


def _of_schema_inside(text: str) -> TooMuch | None:
    begins = len(text) - len(text.lstrip())
    try:
        value, _ = json.JSONDecoder().raw_decode(text, begins)
    except RecursionError:
        return TooMuch("", "more levels than are taken")
    except ValueError:  # the compiler says what is wrong with it
        return None
    return of_schema(check_json_schema("grammar", value).value) if isinstance(value, dict) else None


def _of_node(node: dict[str, Any]) -> str | None:
    """What one subschema has too much of."""
    run = _optional_run(node)
    if run > MOST_OPTIONAL:
        return (
            f"{run} optional properties one after another; at most {MOST_OPTIONAL} are taken."
            " Require some of them, or put them into objects of their own"
        )
    count = len(map_of(node, "patternProperties"))
    if count > MOST_NAME_PATTERNS:
        return f"{count} patternProperties; at most {MOST_NAME_PATTERNS} are taken. Join patterns with | into one"
    for pattern in _patterns(node):
        if len(pattern) > MAX_PATTERN:
            return f"a pattern of {len(pattern)} characters; at most {MAX_PATTERN} are taken"
        found = of_pattern(pattern)
        if found is not None:
            return f"a pattern with {found.text}"
    return None


def _optional_run(node: dict[str, Any]) -> int:
    """How many optional properties stand one after another at most."""
    asked = required_of(node)
    longest = run = 0
    for name in map_of(node, "properties"):
        run = 0 if name in asked else run + 1
        longest = max(longest, run)
    return longest


def _patterns(node: dict[str, Any]) -> list[str]:
    own = node.get("pattern")
    return [*([own] if isinstance(own, str) else []), *map_of(node, "patternProperties")]


def multiple_of(node: dict[str, Any]) -> int:
    """A node's `multipleOf` as a whole number, its decimal point left out; 0 without one."""
    value = node.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits[:18])) or 0)

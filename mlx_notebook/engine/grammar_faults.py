"""What is wrong with a grammar, in words and with its place; and what of a right one is not enforced."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from mlx_notebook.core import schema as schemas
from mlx_notebook.core import work
from mlx_notebook.core.grammar import GrammarKind
from mlx_notebook.core.lark import endless_rule
from mlx_notebook.core.placement import Reason
from mlx_notebook.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.core.grammar import GrammarSpec

_NEVER = ("NoExtension", "Unsatisfiable", "Regex is empty")
_PLACES_SHOWN = 5


def refuse_endless(spec: GrammarSpec) -> None:
    """Raise GrammarError for what no finite answer satisfies, and for settings of the compiler inside a schema."""
    if spec.kind is GrammarKind.GRAMMAR:
        found = endless_rule(spec.source)
        if found is not None:
            name, line = found
            text = f"grammar at line {line}: it can never be satisfied: the rule {name!r} needs itself without end"
            raise GrammarError(text, option="grammar", place=f"line {line}")
    if spec.kind is not GrammarKind.JSON_SCHEMA:
        return
    schema = spec.value
    if isinstance(schema, dict) and "x-guidance" in schema:
        text = "json_schema: settings of the compiler (x-guidance) are not taken from a schema"
        raise GrammarError(text, option="json_schema", place="/x-guidance")
    place = schemas.endless(schema)
    if place is not None:
        where = place or "the top"
        text = f"json_schema: it can never be satisfied: what it requires at {where} has no end"
        raise GrammarError(text, option="json_schema", place=place)


def refuse_too_much(spec: GrammarSpec) -> None:
    """Raise GrammarError for what takes the compiler too much time or memory, without a limit of its own."""
    found = _too_much(spec)
    if found is not None:
        where = f" at {found.place or 'the top'}" if spec.kind is GrammarKind.JSON_SCHEMA or found.place else ""
        text = f"{spec.kind}{where}: too much to compile: {found.text}"
        raise GrammarError(text, option=str(spec.kind), place=found.place)


def _too_much(spec: GrammarSpec) -> work.TooMuch | None:
    if spec.kind is GrammarKind.JSON_SCHEMA:
        return work.of_schema(spec.value)
    if spec.kind is GrammarKind.GRAMMAR:
        return work.of_grammar(spec.source)
    return work.of_pattern(spec.source) if spec.kind is GrammarKind.REGEX else None


def fault_of(
    spec: GrammarSpec, ready: schemas.Prepared, error: str, error_of: Callable[[Any], str | None]
) -> GrammarError:
    """The error for a user: what the compiler said, and where it is.

    Args:
        ready: the value as the compiler got it.
        error: the compiler's own words.
        error_of: what it says of a variant of that; empty where it compiles, None where there is no time to look.
    """
    said = error.replace("<non-verbose/>", "").strip()
    place, where = "", ""
    if spec.kind is GrammarKind.JSON_SCHEMA:
        place = schemas.locate(ready.value, error, error_of, ready.closed)
        where = f" at {place or 'the top'}"
    else:
        place = _place_in_text(spec, said)
        where = f" at {place}" if place else ""
    words = "it can never be satisfied" if said.startswith(_NEVER) else "it cannot be used"
    shown = "" if said.startswith("NoExtension") else f": {_in_short(said).removeprefix('Unsatisfiable schema: ')}"
    return GrammarError(f"{spec.kind}{where}: {words}{shown}", option=str(spec.kind), place=place)


def _place_in_text(spec: GrammarSpec, said: str) -> str:
    caret = re.search(r"^ {4}(.*)\n {4}( *)\^", said, re.MULTILINE)  # the regex parser points below the pattern
    if spec.kind is GrammarKind.REGEX:
        return f"column {len(caret.group(2)) + 1}" if caret is not None else ""
    at = re.match(r"(?:at )?(\d+)\((\d+)\):", said)
    if spec.kind is GrammarKind.GRAMMAR and at is not None:
        return f"line {at.group(1)}, column {at.group(2)}"
    return ""


def _in_short(said: str) -> str:
    """The compiler's words in one line: of a regex parser's drawing only the sentence."""
    if said.startswith("panic: "):
        large = "it is too large for it" if "symbols.len()" in said else said.splitlines()[0]
        return f"the compiler gave up: {large}"
    if said.startswith("lexer precomputation failed"):
        return "it has too many states; make it simpler"
    error = re.search(r"^error: (.*)$", said, re.MULTILINE)
    if error is not None:
        return error.group(1)
    first = said.splitlines()[0] if said else "no reason given"
    return re.sub(r"^(at )?\d+\(\d+\): ", "", first)[:300]


def notes_on(spec: GrammarSpec, ready: schemas.Prepared, warnings: Sequence[str]) -> tuple[Reason, ...]:
    """One reason for everything in a grammar that does not bind the answer."""
    if spec.kind is not GrammarKind.JSON_SCHEMA:
        return tuple(Reason("grammar-warning", f"{spec.kind}: {warning}.") for warning in warnings)
    schema = spec.value
    found: dict[str, Reason] = {}

    def add(code: str, what: str, places: Sequence[str], why: str) -> None:
        found.setdefault(what, Reason(code, f"json_schema: {what} is not enforced at {_listed(places)}{why}."))

    for warning in warnings:
        keys = _unimplemented(warning)
        for key in keys:
            add("grammar-unenforced", key, schemas.places_of(schema, key), "")
        if warning.startswith("Unknown format: "):
            name = warning.removeprefix("Unknown format: ")
            add("grammar-unenforced", f"format {name!r}", schemas.places_of(schema, "format", name), "")
        elif not keys:
            found.setdefault(warning, Reason("grammar-warning", f"json_schema: {warning}."))
    one_of = schemas.places_of(schema, "oneOf")
    if one_of:
        text = f"json_schema: oneOf at {_listed(one_of)} is taken as anyOf: that no second branch fits is not enforced."
        found.setdefault("oneOf", Reason("grammar-unenforced", text))
    for key, places in schemas.unknown_keywords(schema).items():
        add("grammar-unenforced", key, places, ": JSON Schema knows no such keyword")
    if ready.uncounted:
        why = ": the compiler cannot count optional properties"
        add("grammar-unenforced", "minProperties", ready.uncounted, why)
    if ready.closed:
        where = _listed(ready.closed)
        text = f"the object at {where} gets its listed properties only; additionalProperties: true opens it"
        found["closed"] = Reason("grammar-closed", f"json_schema: {text}.")
    return tuple(found.values())


def _unimplemented(warning: str) -> list[str]:
    head = "Unimplemented keys: "
    if not warning.startswith(head):
        return []
    try:
        return [str(key) for key in json.loads(warning.removeprefix(head))]
    except ValueError:
        return []


def _listed(places: Sequence[str]) -> str:
    shown = [place or "the top" for place in places[:_PLACES_SHOWN]] or ["some place"]
    more = f" and {len(places) - _PLACES_SHOWN} more" if len(places) > _PLACES_SHOWN else ""
    return ", ".join(shown) + more

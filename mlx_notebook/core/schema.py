"""Reading a JSON schema for what its compiler does not say: where a fault is, and what is not enforced.

Works on checked schemas only (`core.grammar`): plain JSON values of bounded size and depth. What has no end is
`core.endings`', which objects are closed `core.closing`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.closing import closed, uncounted
from mlx_notebook.core.endings import endless
from mlx_notebook.core.schema_tree import MAPS, ONE, Path, Schema, children, nodes, pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = [
    "Prepared",
    "Schema",
    "children",
    "closed",
    "endless",
    "locate",
    "nodes",
    "places_of",
    "pointer",
    "prepared",
    "unknown_keywords",
]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A shape as its compiler gets it; of a schema also where objects were closed, and where nothing is counted."""

    value: Any
    closed: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


def prepared(schema: Schema) -> Prepared:
    """A schema for its compiler."""
    shut, places = closed(schema)
    value, lost = uncounted(shut)
    return Prepared(value, tuple(places), tuple(lost))


_ENFORCED = frozenset(
    [
        "type",
        "enum",
        "const",
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "minItems",
        "maxItems",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "definitions",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ]
)
_ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$vocabulary",
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "discriminator",
    ]
)

MOST_COMPILED = 40_000
"""How many subschemas are compiled in all, in variants of a schema, to find the place of a fault."""


def places_of(schema: Schema, keyword: str, value: Any = None) -> list[str]:
    """Where a keyword stands (with this value, if one is given)."""
    return [
        pointer(path)
        for path, node in nodes(schema)
        if isinstance(node, dict) and keyword in node and (value is None or node[keyword] == value)
    ]


def unknown_keywords(schema: Schema) -> dict[str, list[str]]:
    """Keywords that no JSON schema has, perhaps misspelt, with their places."""
    known = _ENFORCED | _ANNOTATIONS | frozenset(ONE) | frozenset(MAPS) | _OTHERS
    found: dict[str, list[str]] = {}
    for path, node in nodes(schema):
        for key in node if isinstance(node, dict) else ():
            if key not in known and not key.startswith("x-"):
                found.setdefault(key, []).append(pointer(path))
    return found


_OTHERS = frozenset(
    [
        "uniqueItems",
        "minContains",
        "maxContains",
        "dependentRequired",
        "dependencies",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
    ]
)
"""Known to JSON Schema and not enforced; the compiler names most of them itself."""


def locate(schema: Schema, error: str, error_of: Callable[[Schema], str | None], shut: Collection[str] = ()) -> str:
    """The innermost subschema that brings an error about: with anything in its place the error is another, or none.

    Of the schemas in one the halves are tried, then the half of that; a schema so large that it takes too much work is
    left where the search stands.

    Args:
        error: what the compiler says of the whole schema.
        error_of: what it says of a variant; None where there is no time left for it.
        shut: the objects that were closed for it: no fault of theirs.
    """
    path: Path = ()
    node, size = schema, sum(1 for _ in nodes(schema))
    trials = MOST_COMPILED // size

    def guilty(suspects: Sequence[Path]) -> bool:
        nonlocal trials
        trials -= 1
        said = error_of(_with(schema, path, _without(node, suspects))) if trials >= 0 else None
        return said is not None and said != error

    while True:
        ours = ("additionalProperties",) if pointer(path) in shut else None
        inner = _narrowed([keys for keys, child in children(node) if child is not True and keys != ours], guilty)
        if inner is None:
            return pointer(path)
        path, node = (*path, *inner), _at(node, inner)


def _narrowed(suspects: Sequence[Path], guilty: Callable[[Sequence[Path]], bool]) -> Path | None:
    """The one that is guilty by itself; None where there is no such."""
    while suspects:
        half = -(-len(suspects) // 2)
        parts = [part for part in (suspects[:half], suspects[half:]) if part]
        suspects = next((part for part in parts if guilty(part)), [])
        if len(suspects) == 1:
            return suspects[0]
    return None


def _without(node: Any, suspects: Sequence[Path]) -> Any:
    """A copy of a schema that takes anything in the place of some of those in it."""
    copy = dict(node)
    for key, *inner in suspects:
        if not inner:
            copy[key] = {}
            continue
        if copy[key] is node[key]:
            copy[key] = node[key].copy()
        copy[key][inner[0]] = {}
    return copy


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(value: Any, path: Path, new: Any) -> Any:
    """A copy of a value with another one at a path."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_with(one, rest, new) if at == key else one for at, one in enumerate(value)]
    if key not in value:
        return {**value, key: new}
    return {name: _with(one, rest, new) if name == key else one for name, one in value.items()}

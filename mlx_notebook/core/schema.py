"""Reading a JSON schema for what its compiler does not say: where a fault is, what is not enforced, what has no end.

Works on checked schemas only (`core.grammar`): plain JSON values of bounded size and depth. Places are JSON pointers
(RFC 6901); the empty one is the whole schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.grammar import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Schema = dict[str, Any] | bool

_ONE = (
    "additionalProperties",
    "items",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")

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

MOST_TRIALS = 300
"""How many variants of a schema are compiled to find the place of a fault."""

MOST_ROUNDS = 100
"""How long a chain of references is followed before a schema counts as one that ends."""


def nodes(schema: Schema) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """Every subschema with its path, parents first."""
    waiting: list[tuple[tuple[str | int, ...], Schema]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += [((*path, *keys), child) for keys, child in reversed(list(children(node)))]


def children(node: Schema) -> Iterator[tuple[tuple[str | int, ...], Schema]]:
    """The schemas directly inside one, with their paths from it."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in _LISTS and isinstance(value, list):
            yield from (((key, at), one) for at, one in enumerate(value) if isinstance(one, dict | bool))
        elif key in _ONE and isinstance(value, dict | bool):
            yield (key,), value
        elif key in _MAPS and isinstance(value, dict):
            yield from (((key, name), one) for name, one in value.items() if isinstance(one, dict | bool))


def pointer(path: tuple[str | int, ...]) -> str:
    """A path as a JSON pointer."""
    return "".join(f"/{escaped(str(piece))}" for piece in path)


def places_of(schema: Schema, keyword: str, value: Any = None) -> list[str]:
    """Where a keyword stands (with this value, if one is given)."""
    return [
        pointer(path)
        for path, node in nodes(schema)
        if isinstance(node, dict) and keyword in node and (value is None or node[keyword] == value)
    ]


def unknown_keywords(schema: Schema) -> dict[str, list[str]]:
    """Keywords that no JSON schema has, perhaps misspelt, with their places."""
    known = _ENFORCED | _ANNOTATIONS | frozenset(_ONE) | frozenset(_MAPS) | _OTHERS
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


def closed(schema: Schema) -> tuple[Schema, list[str]]:
    """The schema with its plain objects limited to the properties that they list, and where that was done.

    JSON Schema lets any other property in unless `additionalProperties` says no; a model then goes on inventing some.
    Whatever fits the closed schema fits the open one. An object stays open where more than one schema speaks of it,
    and where `additionalProperties` is written out.
    """
    several = any(_combines(node) for _, node in nodes(schema))
    places = [path for path, node in nodes(schema) if isinstance(node, dict) and not several and _may_close(node)]
    for path in sorted(places, key=len, reverse=True):
        schema = _with(schema, (*path, "additionalProperties"), False)
    return schema, [pointer(path) for path in places]


_ABOUT_OBJECTS = frozenset(
    ["properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"]
)


def _combines(node: Schema) -> bool:
    """Whether an object would have to fit this node and another schema at the same time."""
    if not isinstance(node, dict):
        return False
    branches = node.get("allOf")
    if isinstance(branches, list) and len(branches) > 1:
        return True
    others = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "not"} & node.keys()
    return bool(others) and (bool(_ABOUT_OBJECTS & node.keys()) or len(others) > 1)


def _may_close(node: dict[str, Any]) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    open_by_name = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & node.keys()
    if not isinstance(properties, dict) or open_by_name or "enum" in node or "const" in node:
        return False
    listed = isinstance(required, list) and all(name in properties for name in required)
    least = node.get("minProperties", 0)
    return listed and isinstance(least, int) and least <= len(properties)


def locate(schema: Schema, error: str, error_of: Callable[[Schema], str]) -> str:
    """The innermost subschema that brings an error about: with anything in its place the error is another, or none.

    Args:
        error: what the compiler says of the whole schema.
        error_of: what it says of a variant.
    """
    path: tuple[str | int, ...] = ()
    node, trials = schema, 0
    while True:
        for keys, child in children(node):
            trials += 1
            if trials > MOST_TRIALS:
                return pointer(path)
            if child is not True and error_of(_with(schema, (*path, *keys), {})) != error:
                path, node = (*path, *keys), child
                break
        else:
            return pointer(path)


def _with(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """A copy of a value with another one at a path."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(value, list):
        return [_with(one, rest, new) if at == key else one for at, one in enumerate(value)]
    if key not in value:
        return {**value, key: new}
    return {name: _with(one, rest, new) if name == key else one for name, one in value.items()}


def endless(schema: Schema) -> str | None:
    """Where a schema demands itself without end, so that no finite answer satisfies it; None where it does not."""
    listed = list(nodes(schema))
    by_place = {pointer(path): node for path, node in listed}
    ends = dict.fromkeys(by_place, False)
    for _round in range(MOST_ROUNDS):
        changed = False
        for path, node in reversed(listed):
            place = pointer(path)
            if not ends[place] and _ends(node, place, ends):
                ends[place] = changed = True
        if ends[""]:
            return None
        if not changed:
            return next((p for p, node in by_place.items() if not ends[p] and _refers(node)), "")
    return None


def _refers(node: Schema) -> bool:
    return isinstance(node, dict) and "$ref" in node


def _ends(node: Schema, place: str, ends: dict[str, bool]) -> bool:
    """Whether some finite value satisfies a node, as far as is known of its children."""
    if not isinstance(node, dict):
        return node
    if "enum" in node or "const" in node:
        return True
    for keyword, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        branches = node.get(keyword)
        if isinstance(branches, list) and not enough(
            ends.get(f"{place}/{keyword}/{i}", True) for i in range(len(branches))
        ):
            return False
    target = node.get("$ref")
    if isinstance(target, str) and target.startswith("#") and not ends.get(target[1:], True):
        return False
    types = node.get("type")
    if types is None:  # a value of a type that the node says nothing of is always there
        return True
    listed = types if isinstance(types, list) else [types]
    return any(_type_ends(one, node, place, ends) for one in listed)


def _type_ends(name: Any, node: dict[str, Any], place: str, ends: dict[str, bool]) -> bool:
    if name == "object":
        required, properties = node.get("required"), node.get("properties")
        known = properties if isinstance(properties, dict) else {}
        asked = required if isinstance(required, list) else []
        return all(ends.get(f"{place}/properties/{escaped(key)}", True) for key in asked if key in known)
    least = node.get("minItems", 0)
    if name == "array" and isinstance(least, int) and least > 0:
        prefix = node.get("prefixItems")
        given = len(prefix) if isinstance(prefix, list) else 0
        fixed = all(ends.get(f"{place}/prefixItems/{i}", True) for i in range(min(least, given)))
        return fixed and (least <= given or ends.get(f"{place}/items", True))
    return True

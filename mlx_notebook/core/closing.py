"""Closing a JSON schema's plain objects: they get the properties that are listed, and no others.

JSON Schema lets any other property in unless `additionalProperties` says no; a model then goes on inventing some.
Whatever fits the closed schema fits the open one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.schema_tree import DEFINITIONS, Schema, children, nodes, pointer, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_ABOUT_OBJECTS = frozenset(
    ["properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"]
)
_BESIDE = frozenset(["allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "not"])
_MAY_HAVE_NO_END = _BESIDE | _ABOUT_OBJECTS | {"items", "prefixItems", "additionalItems", "$dynamicRef"}


def closed(schema: Schema) -> tuple[dict[str, Any], list[str]]:
    """The schema with its plain objects closed, and where that was done; the schema given is left as it is.

    The compiler takes no bare `true` or `false`: they become what says the same.

    An object stays open where `additionalProperties` is written out, where it needs more than is listed, and where
    more than one schema speaks of it, or of something that it is in.
    """
    if isinstance(schema, bool):
        return ({} if schema else {"enum": []}), []
    copy = _copied(schema)
    listed = list(nodes(copy))
    open_ones = _spoken_of_twice(copy, [node for _, node in listed])
    found = []
    for path, node in listed:
        if open_ones is not None and isinstance(node, dict) and id(node) not in open_ones and _may_close(node):
            node["additionalProperties"] = False
            found.append(pointer(path))
    return (copy, found) if found else (schema, found)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _spoken_of_twice(root: Schema, listed: Iterable[Schema]) -> set[int] | None:
    """The identities of subschemas whose values may have to fit others too; None where that cannot be known."""
    waiting = [one for node in listed if isinstance(node, dict) for one in _combined(node)]
    found: set[int] = set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in found:
            continue
        found.add(id(node))
        waiting += [child for keys, child in children(node) if keys[0] not in DEFINITIONS]
        if "$ref" in node:
            target = target_of(root, node["$ref"])
            if target is None:
                return None
            waiting.append(target)
    return found


def _combined(node: dict[str, Any]) -> list[Schema]:
    """What of a node has to fit another schema at the same time: the node itself, or what is under its patterns."""
    branches = node.get("allOf")
    if isinstance(branches, list) and len(branches) > 1:
        return [node]
    others = _BESIDE & node.keys()
    if others and (_ABOUT_OBJECTS & node.keys() or len(others) > 1):
        return [node]
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict) and (len(patterns) > 1 or (patterns and node.get("properties"))):
        return [child for keys, child in children(node) if keys[0] in ("properties", "patternProperties")]
    return []


def _may_close(node: dict[str, Any]) -> bool:
    properties, required = node.get("properties"), node.get("required", [])
    open_by_name = {"additionalProperties", "patternProperties", "unevaluatedProperties"} & node.keys()
    if not isinstance(properties, dict) or open_by_name or "enum" in node or "const" in node:
        return False
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        return False
    least = node.get("minProperties", 0)
    asked = set(required)
    there = {name for name, one in properties.items() if name in asked or _surely_ends(one)} if least else ()
    return isinstance(least, int) and least <= len(there)


def _surely_ends(node: Any) -> bool:
    return node is True or (isinstance(node, dict) and not _MAY_HAVE_NO_END & node.keys())

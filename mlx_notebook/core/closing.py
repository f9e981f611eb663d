"""What is changed in a JSON schema before it is compiled: plain objects are closed, and some counts are left out.

JSON Schema lets any other property in unless `additionalProperties` says no; a model then goes on inventing some.
Whatever fits the closed schema fits the open one. Of closed objects the compiler can count few optional properties,
and says of other counts that nothing satisfies them.
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
MOST_COUNTED = 60
"""How many optional properties `minProperties` may choose from: its rules grow with their square."""

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


def uncounted(schema: Schema) -> tuple[dict[str, Any] | bool, list[str]]:
    """The schema without `minProperties` where the compiler cannot count, and where that is."""
    found = [(path, node) for path, node in nodes(schema) if isinstance(node, dict) and _cannot_be_counted(node)]
    if not found:
        return schema, []
    copy = _copied(schema)
    for _, node in [(path, node) for path, node in nodes(copy) if isinstance(node, dict) and _cannot_be_counted(node)]:
        del node["minProperties"]
    return copy, [pointer(path) for path, _ in found]


def _cannot_be_counted(node: dict[str, Any]) -> bool:
    """Whether a closed object asks for some of its optional properties in a way that the compiler has no rule for."""
    least, most = node.get("minProperties"), node.get("maxProperties")
    properties, required = node.get("properties"), node.get("required", [])
    if node.get("additionalProperties") is not False or node.get("patternProperties"):
        return False
    if not (isinstance(least, int) and isinstance(properties, dict) and isinstance(required, list)):
        return False
    missing = least - len(set(map(str, required)))
    if missing <= 0 or least > len(properties) or (isinstance(most, int) and most < least):
        return False
    few = len(properties) - len(required) <= MOST_COUNTED
    return not (missing == 1 and (most == least or (most is None and few)))


def one_of(node: dict[str, Any]) -> int:
    """Of how many optional properties of a closed object `minProperties` asks for one; 0 where it does not."""
    least, properties, required = node.get("minProperties"), node.get("properties"), node.get("required", [])
    if not (isinstance(least, int) and isinstance(properties, dict) and isinstance(required, list)):
        return 0
    if "maxProperties" in node:
        return 0
    return min(MOST_COUNTED, len(properties) - len(required)) if least == len(required) + 1 else 0


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

"""What columns an object schema makes: the top level's properties, each with the kind of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_notebook.core.schema import Schema

MOST_HOPS = 20
_PLAIN = ("integer", "number", "boolean", "string")


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """`name` is integer, number, boolean, string, category (of the texts `among`) or object (anything)."""

    name: str
    among: tuple[str, ...] = ()


def columns_of(schema: Schema) -> dict[str, ColumnKind]:
    """The kind of each property of an object schema, in order; empty where it describes no object with properties."""
    top = _resolved(schema, schema)
    properties = top.get("properties") if isinstance(top, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _kind(schema, one) for name, one in properties.items()}


def _kind(root: Schema, schema: Any) -> ColumnKind:
    node = _resolved(root, schema)
    if not isinstance(node, dict):
        return ColumnKind("object")
    branches = node.get("anyOf", node.get("oneOf"))
    if isinstance(branches, list):
        kinds = {_kind(root, one) for one in branches if not _is_null(root, one)}
        return kinds.pop() if len(kinds) == 1 else ColumnKind("object")
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list):
        return _kind_of_values([value for value in values if value is not None])
    types = node.get("type")
    listed = [one for one in (types if isinstance(types, list) else [types]) if one != "null"]
    return ColumnKind(listed[0]) if len(listed) == 1 and listed[0] in _PLAIN else ColumnKind("object")


def _kind_of_values(values: list[Any]) -> ColumnKind:
    if values and all(isinstance(value, str) for value in values):
        return ColumnKind("category", tuple(dict.fromkeys(values)))
    if values and all(isinstance(value, bool) for value in values):
        return ColumnKind("boolean")
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return ColumnKind("integer")
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return ColumnKind("number")
    return ColumnKind("object")


def _is_null(root: Schema, schema: Any) -> bool:
    node = _resolved(root, schema)
    return isinstance(node, dict) and (node.get("type") == "null" or ("const" in node and node["const"] is None))


def _resolved(root: Schema, schema: Any) -> Any:
    """A schema, or what its references within the whole lead to."""
    node = schema
    for _hop in range(MOST_HOPS):
        target = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(target, str) or not target.startswith("#"):
            return node
        node = root
        for piece in target[1:].split("/")[1:]:
            key = piece.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, dict) else None
    return node

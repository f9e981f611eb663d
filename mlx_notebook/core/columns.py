"""What columns an object schema makes: the top level's properties, each with the kind of its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.schema_tree import target_of

if TYPE_CHECKING:
    from mlx_notebook.core.schema_tree import Schema

MOST_HOPS = 20
MOST_NESTED = 50
"""How deep choices may stand in choices before their values may be anything."""

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
    reading = _Kinds(schema)
    return {name: reading.of(one) for name, one in properties.items()}


class _Kinds:
    """The kinds of a schema's values, each found once; a choice that leads back to itself may be anything."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._found: dict[int, ColumnKind] = {}

    def of(self, schema: Any, depth: int = 0) -> ColumnKind:
        node = _resolved(self._root, schema)
        if not isinstance(node, dict) or depth > MOST_NESTED:
            return ColumnKind("object")
        if id(node) not in self._found:
            self._found[id(node)] = ColumnKind("object")  # holds while it is being found
            self._found[id(node)] = self._read(node, depth)
        return self._found[id(node)]

    def _read(self, node: dict[str, Any], depth: int) -> ColumnKind:
        branches = node.get("anyOf", node.get("oneOf"))
        if isinstance(branches, list):
            kinds = {self.of(one, depth + 1) for one in branches if not _is_null(self._root, one)}
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
        node = target_of(root, target)
    return node

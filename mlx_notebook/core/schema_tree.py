"""The subschemas of a JSON schema: which there are, how their places are written, and where a reference leads.

Places are JSON pointers (RFC 6901); the empty one is the whole schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mlx_notebook.core.grammar import escaped

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any] | bool
Path = tuple[str | int, ...]

ONE = (
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
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
DEFINITIONS = ("$defs", "definitions")
MAPS = (*DEFINITIONS, "properties", "patternProperties", "dependentSchemas")


def nodes(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """Every subschema with its path, parents first."""
    waiting: list[tuple[Path, Schema]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += [((*path, *keys), child) for keys, child in reversed(list(children(node)))]


def children(node: Schema) -> Iterator[tuple[Path, Schema]]:
    """The schemas directly inside one, with their paths from it."""
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in LISTS and isinstance(value, list):
            yield from (((key, at), one) for at, one in enumerate(value) if isinstance(one, dict | bool))
        elif key in ONE and isinstance(value, dict | bool):
            yield (key,), value
        elif key in MAPS and isinstance(value, dict):
            yield from (((key, name), one) for name, one in value.items() if isinstance(one, dict | bool))


def map_of(node: dict[str, Any], key: str) -> dict[str, Any]:
    """What a keyword holds by name; nothing where it is missing, or holds something else."""
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def list_of(node: dict[str, Any], key: str) -> list[Any]:
    """What a keyword lists; nothing where it is missing, or holds something else."""
    value = node.get(key)
    return value if isinstance(value, list) else []


def required_of(node: dict[str, Any]) -> set[str]:
    """The names of properties that an object must have."""
    return {name for name in list_of(node, "required") if isinstance(name, str)}


def pointer(path: Path) -> str:
    """A path as a JSON pointer."""
    return "".join(f"/{escaped(str(piece))}" for piece in path)


def target_of(root: Schema, reference: Any) -> Any:
    """What a reference within the whole leads to; None where it leads nowhere, or out of the schema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node: Any = root
    for piece in unquote(reference[1:]).split("/")[1:]:
        key = piece.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(key)] if key.isdecimal() and key.isascii() and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, dict) else None
    return node

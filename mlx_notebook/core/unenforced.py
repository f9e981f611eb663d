"""What of a JSON schema its compiler neither enforces nor speaks of, as reasons for the placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.placement import Reason
from mlx_notebook.core.schema_tree import Path, Schema, nodes, pointer

if TYPE_CHECKING:
    from collections.abc import Callable

CODE = "grammar-unenforced"
PLACES_SHOWN = 5

_OTHERWISE_BOUND = frozenset(["enum", "const", "allOf", "anyOf", "oneOf", "$ref"])


def unenforced(schema: Schema) -> tuple[Reason, ...]:
    """One reason for each thing that an answer may have against its schema, with its places."""
    found: dict[str, list[Path]] = {}
    for path, node in nodes(schema):
        if isinstance(node, dict):
            for looked_for in _LOOKED_FOR:
                text = looked_for(node)
                if text is not None:
                    found.setdefault(text, []).append(path)
    return tuple(Reason(CODE, f"json_schema: {text.format(_listed(paths))}.") for text, paths in found.items())


def _repeated_names(node: dict[str, Any]) -> str | None:
    least, required = node.get("minProperties", 0), node.get("required")
    asked = {str(name) for name in required} if isinstance(required, list) else set()
    if not _may_be(node, "object") or not isinstance(least, int) or least - len(asked) < 2:
        return None
    names = node.get("properties")
    if isinstance(names, dict) and names.keys() - asked:  # the compiler itself says that it does not count these
        return None
    open_names = node.get("additionalProperties") is not False or node.get("patternProperties")
    return "minProperties at {} counts a name again that is written again" if open_names else None


def _format_of_no_text(node: dict[str, Any]) -> str | None:
    name = node.get("format")
    if not isinstance(name, str):
        return None
    of_text = "string" in _types(node) if "type" in node else bool(_OTHERWISE_BOUND & node.keys())
    values = [node["const"]] if "const" in node else node.get("enum")
    if isinstance(values, list) and not any(isinstance(value, str) for value in values):
        of_text = False
    return None if of_text else f"format {_quoted(name)} at {{}} says nothing of values that are no texts"


def _days_and_seconds(node: dict[str, Any]) -> str | None:
    name = node.get("format")
    if not isinstance(name, str) or name not in _TOO_MUCH or not _may_be(node, "string"):
        return None
    return f"format '{name}' at {{}} takes {_TOO_MUCH[name]}"


_FEBRUARY = "29 February in every year"
_SECONDS = "a 60th second in every minute"
_TOO_MUCH = {"date": _FEBRUARY, "time": _SECONDS, "date-time": f"{_FEBRUARY} and {_SECONDS}"}

_LOOKED_FOR: tuple[Callable[[dict[str, Any]], str | None], ...] = (
    _repeated_names,
    _format_of_no_text,
    _days_and_seconds,
)


def _types(node: dict[str, Any]) -> list[Any]:
    types = node.get("type")
    return types if isinstance(types, list) else [types]


def _may_be(node: dict[str, Any], kind: str) -> bool:
    """Whether a node lets values of a type through, and not only some that it lists."""
    return ("type" not in node or kind in _types(node)) and not {"enum", "const"} & node.keys()


def _quoted(name: str) -> str:
    return repr(name[:80]).replace("{", "{{").replace("}", "}}")


def _listed(paths: list[Path]) -> str:
    shown = [pointer(path) or "the top" for path in paths[:PLACES_SHOWN]]
    more = f" and {len(paths) - PLACES_SHOWN} more" if len(paths) > PLACES_SHOWN else ""
    return ", ".join(shown) + more

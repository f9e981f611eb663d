"""What several schemas say of one value (`allOf`, keywords beside `$ref` or `anyOf`), merged as the compiler merges it.

It resolves references there one by one, so that a few lines in which each definition names the next one twice make
millions of conditions. Here the same is counted, and given up at a limit.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.schema_tree import (
    DEFINITIONS,
    Path,
    Schema,
    children,
    list_of,
    map_of,
    nodes,
    pointer,
    required_of,
    target_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_MERGED = 20_000
"""Subschemas that are merged in all, each as often as it is reached."""

MOST_REFERENCES = 200
"""References one behind the other, each of them merged with something."""

_JOINS = ("allOf", "anyOf", "oneOf")
_SAYS_NOTHING = frozenset(
    ["$schema", "$id", "$anchor", "$comment", "title", "description", "default", "example", "examples", "deprecated"]
) | frozenset(DEFINITIONS)


class TooMuchMerged(Exception):  # noqa: N818 - what there is too much of
    """Merging would take more than is given; `place` is the subschema where it begins."""

    place = ""


class Merging:
    """Counts what merging a schema takes.

    Args:
        schema: the whole.
        most_optional: how many optional properties a merged object may have.
    """

    def __init__(self, schema: Schema, most_optional: int) -> None:
        self._root = schema
        self._most_optional = most_optional
        self._left = MOST_MERGED

    def check(self) -> None:
        """Raise TooMuchMerged where it is more than the limits."""
        for path, node in nodes(self._root):
            if isinstance(node, dict) and _is_merged(node):
                try:
                    self._merge(node)
                except TooMuchMerged as error:
                    error.place = pointer(path)
                    raise

    def _merge(self, top: dict[str, Any]) -> None:
        """Merge all that is said of one value, then of each of its properties and items of which several speak."""
        waiting: list[tuple[list[Any], frozenset[frozenset[int]]]] = [([top], frozenset())]
        while waiting:
            together, above = waiting.pop()
            said = self._flat(together)
            self._count_optional(said)
            parts: defaultdict[Path, list[Any]] = defaultdict(list)
            for keys, child in (
                pair for one in said for pair in children(one) if pair[0][0] not in (*_JOINS, *DEFINITIONS)
            ):
                parts[keys].append(child)
            for several in parts.values():
                who = frozenset(map(id, several))
                if len(several) > 1 and who not in above:  # else a circle: the compiler makes a definition of it
                    waiting.append((several, above | {who}))

    def _flat(self, together: Iterable[Any]) -> list[dict[str, Any]]:
        """Every subschema that speaks of the same value, as often as it is reached."""
        waiting = [(node, 0) for node in together]
        found: list[dict[str, Any]] = []
        while waiting:
            node, depth = waiting.pop()
            self._left -= 1
            if self._left < 0 or depth > MOST_REFERENCES:
                raise TooMuchMerged(
                    f"merging what is said here of one value takes more than {MOST_MERGED} subschemas, or"
                    f" {MOST_REFERENCES} references one behind the other. Name a definition once, or write it out"
                )
            if not isinstance(node, dict):
                continue
            found.append(node)
            waiting += [(one, depth) for key in _JOINS for one in list_of(node, key)]
            if "$ref" in node:
                waiting.append((target_of(self._root, node["$ref"]), depth + 1))
        return found

    def _count_optional(self, said: list[dict[str, Any]]) -> None:
        names = {name for one in said for name in map_of(one, "properties")}
        count = len(names - {name for one in said for name in required_of(one)})
        if len(said) > 1 and count > self._most_optional:
            raise TooMuchMerged(
                f"{count} optional properties of one object come together; at most {self._most_optional} are taken."
                " Require some of them, or put them into objects of their own"
            )


def _is_merged(node: dict[str, Any]) -> bool:
    """Whether several schemas speak of a node's value."""
    joins = [key for key in (*_JOINS, "$ref") if key in node]
    return bool(joins) and (len(list_of(node, "allOf")) > 1 or len(node.keys() - _SAYS_NOTHING) > 1)

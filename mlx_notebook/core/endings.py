"""Whether any finite answer satisfies a JSON schema: what it requires may require itself without end.

Each subschema is a gate over those that a value of it has to satisfy. What several schemas say of one object (`allOf`,
or properties beside `anyOf`) is looked at apart, and which pattern a name fits is known of plain ones only: whatever
is not understood counts as something that ends, so that nothing is refused by mistake.
"""

from __future__ import annotations

import re
from typing import Any

from mlx_notebook.core.gates import Gates
from mlx_notebook.core.schema_tree import Path, Schema, map_of, nodes, pointer, required_of, target_of

_PLAIN_PATTERN = re.compile(r"(\^?)([A-Za-z0-9_ \-]*)(\$?)")
"""What can be tried without a regex engine, which could take for ever over a hostile pattern."""

MOST_PATTERNS = 20
"""How many plain patterns of one object are tried on each required name."""


def endless(schema: Schema) -> str | None:
    """Where a schema demands itself without end, so that no finite answer satisfies it; None where it does not.

    Also None where nothing at all satisfies it, with or without an end: the compiler finds that, and says why.
    """
    reading = Endings(schema)
    ends, possible = reading.gates.least(), reading.gates.greatest()
    if ends[reading.top] or not possible[reading.top]:
        return None
    return pointer(reading.guilty(ends))


class Endings:
    """The gates of a schema; `top` is the whole's."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self.gates = Gates()
        self._yes = self.gates.all([])
        self._listed = list(nodes(schema))
        # By identity: of schemas that are one object, as of those that were built by hand, one gate is enough.
        self._gate_of = {id(node): self.gates.new() for _, node in self._listed if isinstance(node, dict)}
        self._no = self.gates.new()
        for _, node in self._listed:
            if isinstance(node, dict):
                parts = self._parts(node)
                self.gates.set(self._gate_of[id(node)], parts, len(parts))
        self.top = self._gate(schema)

    def guilty(self, ends: list[bool]) -> Path:
        """The first reference on the way down from the top along what does not end; the top where there is none."""
        place_of = {self._gate_of[id(node)]: path for path, node in reversed(self._listed) if isinstance(node, dict)}
        refers = {self._gate_of[id(node)] for _, node in self._listed if isinstance(node, dict) and "$ref" in node}
        waiting, seen = [self.top], {self.top}
        while waiting:
            gate = waiting.pop()
            if gate in refers:
                return place_of[gate]
            further = [one for one in self.gates.inputs[gate] if not ends[one] and one not in seen]
            seen.update(further)
            waiting += reversed(further)
        return ()

    def _gate(self, node: Any) -> int:
        """The gate of a subschema; of what is no schema, one that holds."""
        if isinstance(node, bool):
            return self._yes if node else self._no
        return self._gate_of.get(id(node), self._yes)

    def _parts(self, node: dict[str, Any]) -> list[int]:
        """The gates that all have to hold for some finite value to satisfy a node."""
        if "enum" in node or "const" in node:
            return []
        parts: list[int] = []
        for keyword, join in (("allOf", self.gates.all), ("anyOf", self.gates.some), ("oneOf", self.gates.some)):
            branches = node.get(keyword)
            if isinstance(branches, list):
                parts.append(join([self._gate(one) for one in branches]))
        if "$ref" in node:
            parts.append(self._gate(target_of(self._root, node["$ref"])))
        types = node.get("type")
        if types is not None:  # else a value of a type that the node says nothing of is always there
            parts.append(self.gates.some([self._of_type(one, node) for one in _listed(types)]))
        return parts

    def _of_type(self, name: Any, node: dict[str, Any]) -> int:
        if name == "object":
            return self._object(node)
        return self._array(node) if name == "array" else self._yes

    def _object(self, node: dict[str, Any]) -> int:
        """The required properties, and as many others as `minProperties` asks for."""
        known, patterns = map_of(node, "properties"), map_of(node, "patternProperties")
        others = self._gate(node.get("additionalProperties"))
        asked = required_of(node)
        by_pattern = [(pattern, self._gate(one)) for pattern, one in patterns.items()]
        parts = self._named(sorted(asked), known, by_pattern, others)
        least = node.get("minProperties", 0)
        more = least - len(asked) if isinstance(least, int) else 0
        if more > 0:
            optional = [self._gate(one) for key, one in known.items() if key not in asked]
            some = self.gates.some(optional, more)
            parts.append(self.gates.some([some, *(gate for _, gate in by_pattern), others]))
        return self.gates.all(parts)

    def _named(
        self, asked: list[str], known: dict[str, Any], by_pattern: list[tuple[str, int]], others: int
    ) -> list[int]:
        """The gates of properties with these names: of each all that speak of it, else any that may."""
        plain = [(pattern, gate) for pattern, gate in by_pattern if _PLAIN_PATTERN.fullmatch(pattern)]
        if len(plain) > MOST_PATTERNS:
            plain = []
        own = {key: [self._gate(one)] for key, one in known.items()}
        sure_of = [[*own.get(key, ()), *(gate for pattern, gate in plain if _fits(pattern, key))] for key in asked]
        may = self.gates.some([*(gate for pattern, gate in by_pattern if (pattern, gate) not in plain), others])
        return [self.gates.all(sure) if sure else may for sure in sure_of]

    def _array(self, node: dict[str, Any]) -> int:
        """The items that `minItems` asks for, the first ones each by its own schema."""
        least = node.get("minItems", 0)
        if not isinstance(least, int) or least <= 0:
            return self._yes
        items, first = node.get("items"), node.get("prefixItems")
        rest = node.get("additionalItems") if isinstance(items, list) else items
        given = items if isinstance(items, list) else first if isinstance(first, list) else []
        parts = [self._gate(one) for one in given[:least]]
        return self.gates.all([*parts, self._gate(rest)] if least > len(given) else parts)


def _listed(types: Any) -> list[Any]:
    return types if isinstance(types, list) else [types]


def _fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern of plain letters."""
    found = _PLAIN_PATTERN.fullmatch(pattern)
    if found is None:
        return False
    begins, letters, ends = found.groups()
    if begins and ends:
        return name == letters
    return name.startswith(letters) if begins else name.endswith(letters) if ends else letters in name

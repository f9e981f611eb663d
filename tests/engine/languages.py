"""Schemas whose answers can all be listed, and a matcher that knows nothing but the list.

`schemas` draws a JSON schema of few answers; `language` lists them by what the keywords mean, as the text that we
write; `Listed` says by looking them up which tokens may follow. Nothing here asks the library under test.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MOST = 4_000
"""Answers of one schema."""

TEXTS = st.text(st.sampled_from('ab"\\/ é€😀{}[]:,1'), max_size=4)
SCALARS = st.one_of(TEXTS, st.integers(-30, 30), st.booleans(), st.none(), st.sampled_from([0.5, -1.25]))
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(TEXTS, SCALARS, max_size=2))
NAMES = st.sampled_from(["a", "b c", "é", 'q"', "\\", "a1", "$x", ""])
PATTERNS = {"^[ab]$": ["a", "b"], "^(x|yz|é)$": ["x", "yz", "é"], "^a?b{1,2}$": ["b", "bb", "ab", "abb"]}


@st.composite
def bounded(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.integers(-120, 120))
    return {"type": "integer", "minimum": low, "maximum": low + draw(st.integers(0, 25))}


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    bounded(),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": _different(values)}),
    VALUES.map(lambda value: {"const": value}),
    st.sampled_from([{"type": "string", "pattern": pattern} for pattern in PATTERNS]),
)


def _different(values: list[Any]) -> list[Any]:
    return list({json.dumps(value): value for value in values}.values())


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    schema = {"type": "object", "properties": properties, "required": required}
    return {**schema, "additionalProperties": False} if draw(st.booleans()) else schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    low = draw(st.integers(0, 2))
    schema = {"type": "array", "items": draw(inner), "minItems": low, "maxItems": low + draw(st.integers(0, 1))}
    return {**schema, "prefixItems": [draw(inner)]} if draw(st.booleans()) else schema


@st.composite
def shared(draw: st.DrawFn) -> dict[str, Any]:
    """One definition, used twice."""
    use = {"$ref": "#/$defs/one"}
    both = {"type": "array", "prefixItems": [use, use], "items": False, "minItems": 2}
    return {"$defs": {"one": draw(LEAVES)}, **draw(st.sampled_from([both, {"anyOf": [use, {"type": "null"}]}]))}


NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner), arrays(inner), st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some})
    ),
    max_leaves=4,
)
schemas = st.one_of(NESTED, shared()).filter(lambda schema: 0 < len(language(schema)) <= MOST)


def language(schema: dict[str, Any]) -> list[str]:
    """Every answer as text, sorted; cut a little above MOST."""
    return sorted(set(itertools.islice(_values(schema, schema.get("$defs", {})), 4 * MOST)))


def _values(schema: dict[str, Any], defs: dict[str, Any]) -> Iterable[str]:
    if "$ref" in schema:
        return _values(defs[schema["$ref"].removeprefix("#/$defs/")], defs)
    if "const" in schema:
        return [_text(schema["const"])]
    if "enum" in schema:
        return [_text(value) for value in schema["enum"]]
    if "anyOf" in schema:
        return itertools.chain.from_iterable(_values(one, defs) for one in schema["anyOf"])
    listed: dict[str, Callable[[], Iterable[str]]] = {
        "boolean": lambda: ["true", "false"],
        "null": lambda: ["null"],
        "integer": lambda: _integers(schema["minimum"], schema["maximum"]),
        "string": lambda: [_text(text) for text in PATTERNS[schema["pattern"]]],
        "object": lambda: _objects_of(schema, defs),
        "array": lambda: _arrays_of(schema, defs),
    }
    return listed[schema["type"]]()


def _integers(low: int, high: int) -> list[str]:
    """Minus zero too, where both signs are in: it is JSON for 0, and the library lets it through."""
    return [str(number) for number in range(low, high + 1)] + ["-0"] * (low < 0 <= high)


def _objects_of(schema: dict[str, Any], defs: dict[str, Any]) -> Iterable[str]:
    ways: list[list[str]] = []
    for name, one in schema["properties"].items():
        there = [f"{_text(name)}: {value}" for value in itertools.islice(_values(one, defs), MOST)]
        ways.append(there if name in schema["required"] else ["", *there])
    for parts in itertools.product(*ways):
        yield "{" + ", ".join(part for part in parts if part) + "}"


def _arrays_of(schema: dict[str, Any], defs: dict[str, Any]) -> Iterable[str]:
    prefix, rest = schema.get("prefixItems", []), schema.get("items")
    most = schema.get("maxItems", len(prefix))
    for count in range(schema.get("minItems", 0), most + 1):
        kinds = [prefix[at] if at < len(prefix) else rest for at in range(count)]
        if any(kind is False for kind in kinds):
            continue
        ways = [list(itertools.islice(_values(kind, defs), MOST)) for kind in kinds if isinstance(kind, dict)]
        for parts in itertools.product(*ways):
            yield "[" + ", ".join(parts) + "]"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Listed:
    """Which tokens may follow, given every answer there is.

    Args:
        answers: all of them.
        tokens: what each id says; None for ids that say nothing (special ones).
        eos_ids: ids that end an answer.
    """

    def __init__(self, answers: Sequence[str], tokens: Sequence[bytes | None], eos_ids: Iterable[int]) -> None:
        self._answers = sorted(answer.encode() for answer in answers)
        self._tokens = tokens
        self._eos_ids = set(eos_ids)
        self.reached = b""

    def allowed(self) -> set[int]:
        found = {
            token_id
            for token_id, said in enumerate(self._tokens)
            if said and token_id not in self._eos_ids and self._begins(self.reached + said)
        }
        return found | self._eos_ids if self.whole else found

    @property
    def whole(self) -> bool:
        at = bisect_left(self._answers, self.reached)
        return at < len(self._answers) and self._answers[at] == self.reached

    @property
    def satisfied(self) -> bool:
        return self.whole and not any(self._begins(self.reached + bytes([byte])) for byte in range(256))

    @property
    def forced(self) -> bytes:
        """What every answer goes on with from here."""
        if self.whole:
            return b""
        first = bisect_left(self._answers, self.reached)
        rest = [answer[len(self.reached) :] for answer in self._answers[first:] if answer.startswith(self.reached)]
        pairs = itertools.takewhile(lambda two: two[0] == two[1], zip(rest[0], rest[-1], strict=False))
        return bytes(byte for byte, _ in pairs)

    def check(self, found: set[int]) -> None:
        """Whether a mask is right: what may follow, or (the library's way) of forced text one token alone."""
        allowed = self.allowed()
        if found != allowed:
            assert len(found) == 1, (self.reached, found, allowed)
            said = self._tokens[next(iter(found))]
            assert said, (self.reached, found)
            assert self.forced.startswith(said), (self.reached, said, self.forced)

    def take(self, token_id: int) -> None:
        if token_id not in self._eos_ids:
            said = self._tokens[token_id]
            assert said is not None
            self.reached += said

    def _begins(self, start: bytes) -> bool:
        at = bisect_left(self._answers, start)
        return at < len(self._answers) and self._answers[at].startswith(start)

"""What a shape may ask of its compiler: each count with its limit, and that what people write is far from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core import work
from mlx_notebook.core.grammar import MAX_PATTERN, check_json_schema
from mlx_notebook.core.grammar_sizes import MOST_STATES, counted_in, estimate
from mlx_notebook.core.lark import spelled_out
from mlx_notebook.core.merging import MOST_MERGED, MOST_REFERENCES
from mlx_notebook.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable


def properties(count: int, name: str = "p", one: Any = None) -> dict[str, Any]:
    return {f"{name}{at}": one or {} for at in range(count)}


def chain(count: int, link: Callable[[dict[str, Any]], dict[str, Any]], last: Any) -> dict[str, Any]:
    """Definitions, each of which names the next one somehow."""
    links = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": last}}


def twice(one: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [one, one]}


def twice_inside(one: dict[str, Any]) -> dict[str, Any]:
    return {"allOf": [{"properties": {"a": one}}, {"properties": {"a": one, "b": one}}]}


OPTIONAL = work.MOST_OPTIONAL
TEXT = {"type": "string", "format": "date"}

TOO_MUCH: list[tuple[Any, str, str]] = [
    ({"items": {"properties": properties(OPTIONAL + 1)}}, "/items", "1001 optional properties one after another"),
    ({"properties": properties(OPTIONAL + 2), "required": ["p0"]}, "", "1001 optional properties one after another"),
    ({"allOf": [{"properties": properties(600, "a")}, {"properties": properties(600, "b")}]}, "",
     "1200 optional properties of one object come together"),
    ({"patternProperties": properties(101)}, "", "101 patternProperties; at most 100"),
    ({"anyOf": [{"patternProperties": properties(100, f"{at}_")} for at in range(11)]}, "/anyOf/10", "1100 patt"),
    ({"anyOf": [{"multipleOf": 7919 + at} for at in range(30)]}, "/anyOf/14", "states for multipleOf"),
    ({"items": {"multipleOf": 0.100001}}, "/items", "100001 states for multipleOf"),
    ({"items": {"pattern": "a?" * 501}}, "/items", "a pattern with 501 repetitions"),
    ({"patternProperties": {r"\w?" * 501: {}}}, "", "a pattern with 501 repetitions"),
    ({"pattern": "a" * (MAX_PATTERN + 1)}, "", "a pattern of 16385 characters"),
    ({"anyOf": [{"pattern": "a?" * 500} for _ in range(11)]}, "/anyOf/10", "5500 repetitions"),
    (chain(30, twice, TEXT), "/$defs/d0", f"more than {MOST_MERGED} subschemas"),
    (chain(30, twice_inside, TEXT), "/$defs/d0", f"more than {MOST_MERGED} subschemas"),
    (chain(30, lambda one: {"anyOf": [one, one], "type": "object"}, {}), "/$defs/d0", "subschemas"),
    (chain(MOST_REFERENCES + 1, lambda one: {**one, "type": "string"}, {}), "/$defs/d0", f"{MOST_REFERENCES} ref"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place", "said"), TOO_MUCH)
def test_a_schema_with_too_much_is_told_with_the_place_and_the_limit(schema: Any, place: str, said: str) -> None:
    found = work.of_schema(check_json_schema("json_schema", schema).value)
    assert found is not None
    assert found.place == place
    assert said in found.text


TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "node": {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
        "tree": {"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}}]},
    },
}
"""Two schemas that speak of one value, in a circle."""

LEVELS = chain(
    40, lambda one: {"anyOf": [one, {"type": "object", "properties": {"left": one, "right": one}}]}, {"const": 1}
)
"""As the expressions of a language are written: every level names the next one three times, and nothing is merged."""

ENOUGH: list[Any] = [
    True,
    {"properties": properties(OPTIONAL)},
    {"properties": properties(3 * OPTIONAL), "required": [f"p{at}" for at in range(0, 3 * OPTIONAL, 500)]},
    {"properties": properties(9000), "required": list(properties(9000))},
    {"allOf": [{"properties": properties(400, "a")}, {"properties": properties(400, "b")}]},
    {"anyOf": [{"properties": properties(900, f"a{at}_")} for at in range(5)]},
    {"patternProperties": properties(100)},
    {"anyOf": [{"multipleOf": value} for value in (0.01, 5, 1_000_000, 1e-300, 0.25)]},
    {"pattern": r"\?" * 5000},
    {"anyOf": [{"const": at} for at in range(9000)]},
    {"$defs": properties(300, "d", {"allOf": [{"properties": properties(30)}, {"properties": {"x": {}}}]})},
    chain(3000, lambda one: one, {}),
    chain(3000, lambda one: {"type": "object", "properties": {"a": one}}, {}),
    chain(100, lambda one: {**one, "type": "string"}, {}),
    TREE,
    LEVELS,
    {"properties": "none", "required": 3, "patternProperties": [1], "allOf": [1], "$ref": 3, "multipleOf": True},
]


@pytest.mark.parametrize("schema", ENOUGH)
def test_what_can_be_compiled_is_let_through(schema: Any) -> None:
    assert work.of_schema(schema) is None


def terminals(count: int, body: Callable[[str], str]) -> str:
    return "\n".join(["start: T0", *(f"T{at}: {body(f'T{at + 1}')}" for at in range(count)), f'T{count}: "b"'])


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("start: /" + "a?" * 1001 + "/", "line 1", "1000 repetitions"),
        (terminals(1001, lambda name: f"({name})*"), "line 1002", "1000 repetitions"),
        (terminals(1001, lambda name: f"{name}{{2}}"), "line 1002", "1000 repetitions"),
        ("start: a\na: " + "b? " * 5001 + '\nb: "b"', "line 2", "5000 repetitions"),
        (terminals(16, lambda name: f"{name} {name}"), "line 2", "T0 has more than 262144 characters"),
        ('start: "x"\nb: %json {"properties": {"a": {"pattern": "' + "a?" * 501 + '"}}}', "line 2",
         "the schema has at /properties/a a pattern with 501"),
        ("start: %json " + '{"items": ' * 5000 + "1" + "}" * 5000, "line 1", "more levels"),
    ],
)  # fmt: skip
def test_so_is_a_grammar(text: str, place: str, said: str) -> None:
    found = work.of_grammar(text)
    assert found is not None
    assert found.place == place
    assert said in found.text


@pytest.mark.parametrize(
    "text",
    [
        'start: "?" "*" /\\?+/ // a? b* c+',
        "start: a*\n" + "\n".join(f"r{at}: a? | b*" for at in range(2000)),
        terminals(9000, lambda name: f'"a" {name}'),
        terminals(9, lambda name: f"{name} {name}"),
        'start: %json {"properties": {}} %json',
        "A: B\nB: A\nstart: A",
    ],
)
def test_and_what_can_be_compiled_is_let_through(text: str) -> None:
    assert work.of_grammar(text) is None


def test_a_schema_inside_a_grammar_is_checked_as_any_other() -> None:
    with pytest.raises(GrammarError, match="more than 20000 values"):
        work.of_grammar("start: %json {" + ", ".join(f'"x{at}": 1' for at in range(20_001)) + "}")


def test_terminals_are_counted_with_those_that_they_name() -> None:
    assert spelled_out('start: X\nX: Y\nY: Z Z\nZ: "abc"\n', 1000) == {"X": 21, "Y": 18, "Z": 7}
    assert max(spelled_out(terminals(5000, lambda name: f"{name} {name}"), 10**6).values()) == 10**6


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("abc(d|e)*", 0),
        ("a{3}", 3),
        ("(ab){5}", 10),
        ("[a-z]{1,20}x", 20),
        (r"\d{3}-\p{L}{4,}", 7),
        ("((a{10}){10}){10}", 1110),
        ("[]{9}]{4}[^]{9}]{5}", 9),
        ("a{ {} (((", 0),
        ("x{99999999999}", 1_000_000),
    ],
)
def test_what_a_pattern_counts(pattern: str, count: int) -> None:
    assert counted_in(pattern) == count


def test_an_estimate_grows_with_what_is_counted_and_no_further_than_what_is_learnt() -> None:
    def size(**more: Any) -> int:
        return estimate(check_json_schema("json_schema", {"type": "string", **more}))

    assert size() < size(maxLength=100) < size(maxLength=1000) < size(maxLength=10**6)
    assert size(maxLength=10**6) - size() < 513 * MOST_STATES
    assert size(pattern="a{1000}") - size() > 1000 * 512

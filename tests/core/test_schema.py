"""Reading schemas and grammars: where a fault is, what has no end, what is closed, which columns there are."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_notebook.core import lark, schema_tree
from mlx_notebook.core.columns import ColumnKind, columns_of
from mlx_notebook.core.endings import Endings
from mlx_notebook.core.gates import Gates
from mlx_notebook.core.grammar import with_ascii_digits
from mlx_notebook.core.lark import endless_rule
from mlx_notebook.core.schema import (
    MOST_COMPILED,
    closed,
    endless,
    locate,
    nodes,
    places_of,
    pointer,
    unknown_keywords,
)

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


def with_definition(**node: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def by_pattern(pattern: str, required: list[str], **more: Any) -> dict[str, Any]:
    patterns = {"type": "object", "patternProperties": {pattern: {"$ref": "#"}}, "required": required}
    return {**patterns, "additionalProperties": False, **more}


ENDLESS: list[tuple[dict[str, Any], str | None]] = [
    (with_definition(**NODE), ""),
    (with_definition(**{**NODE, "required": []}), None),
    (with_definition(anyOf=[NODE, {"type": "null"}]), None),
    (with_definition(anyOf=[NODE, NODE]), ""),
    (with_definition(type="array", items={"$ref": "#/$defs/node"}), None),
    (with_definition(type="array", items={"$ref": "#/$defs/node"}, minItems=1), ""),
    (with_definition(type="array", prefixItems=[{"$ref": "#/$defs/node"}], minItems=1), ""),
    (with_definition(type=["object", "null"], properties=NODE["properties"], required=["next"]), None),
    (with_definition(properties=NODE["properties"], required=["next"]), None),
    (with_definition(allOf=[{"$ref": "#/$defs/node"}]), ""),
    ({**NODE, "$defs": {"node": NODE}}, "/properties/next"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}}, None),
    ({"$ref": "#"}, ""),
    ({"$ref": "#/$defs/missing"}, None),
    ({"enum": [1]}, None),
    ({}, None),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}, "/additionalProperties"),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 0}, None),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "properties": {"a": {}}, "minProperties": 1}, None),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "properties": {"a": {}}, "minProperties": 2},
     "/additionalProperties"),
    ({"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}, "/additionalProperties"),
    ({"type": "object", "required": ["a"], "additionalProperties": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, None),
    ({"type": "object", "required": ["a"], "properties": {"a": {}}, "additionalProperties": {"$ref": "#"}}, None),
    ({"type": "array", "items": [{"$ref": "#"}], "minItems": 1}, "/items/0"),
    ({"type": "array", "items": [{"$ref": "#"}]}, None),
    ({"type": "array", "items": [{}], "additionalItems": {"$ref": "#"}, "minItems": 1}, None),
    ({"type": "array", "items": [{}], "additionalItems": {"$ref": "#"}, "minItems": 2}, "/additionalItems"),
    (by_pattern("^a$", ["a"]), "/patternProperties/^a$"),
    (by_pattern("^a$", ["a"], additionalProperties=True), "/patternProperties/^a$"),
    (by_pattern("^a$", ["a"], type=["object", "null"]), None),
    (by_pattern("^a$", ["b"], additionalProperties=True), None),
    (by_pattern("^a", ["ab"], additionalProperties=True), "/patternProperties/^a"),
    (by_pattern("b", ["abc"], additionalProperties=True), "/patternProperties/b"),
    (by_pattern("c$", ["abc"], additionalProperties=True), "/patternProperties/c$"),
    (by_pattern("[a-z]", ["a"], additionalProperties=True), None),
    (by_pattern("[a-z]", ["a"]), "/patternProperties/[a-z]"),
    (by_pattern("^a$", [], minProperties=1), "/patternProperties/^a$"),
    (by_pattern("^a$", [], minProperties=0), None),
    ({"$defs": {"lost": {"$ref": "#/$defs/lost"}}, **NODE, "properties": {"next": {"$ref": "#"}}}, "/properties/next"),
    ({"type": "array", "minItems": 1, "items": {"anyOf": [False, {"$ref": "#"}]}}, "/items/anyOf/1"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_what_demands_itself_without_end(schema: dict[str, Any], place: str | None) -> None:
    assert endless(schema) == place


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "minProperties": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"anyOf": []},
    ],
)
def test_what_nothing_satisfies_at_all_is_not_said_to_have_no_end(schema: Any) -> None:
    assert endless(schema) is None


def test_many_names_and_patterns_are_not_all_tried_on_one_another() -> None:
    names = [f"n{at}" for at in range(2000)]
    schema = by_pattern("^no$", names, patternProperties={f"^{name}$": {} for name in names})
    assert endless(schema) is None
    reading = Endings(schema)
    reading.gates.least()
    assert reading.gates.visits < 5 * len(names)


def chain(length: int, last: Any) -> dict[str, Any]:
    links: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": last}}


@pytest.mark.parametrize(("last", "place"), [({"type": "null"}, None), ({"$ref": "#/$defs/d0"}, "")])
def test_a_long_chain_of_definitions_is_followed_to_its_end_once(last: Any, place: str | None) -> None:
    schema = chain(3000, last)
    assert endless(schema) == place
    reading = Endings(schema)
    reading.gates.least()
    reading.gates.greatest()
    assert reading.gates.visits < 4 * 3000


def bad_types(schema: Any) -> str:
    """A compiler that knows one fault."""
    return "wrong" if any(isinstance(node, dict) and node.get("type") == "x" for _, node in nodes(schema)) else ""


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "x"}, ""),
        ({"type": "object", "properties": {"a/b": {"items": {"type": "x"}}}}, "/properties/a~1b/items"),
        ({"anyOf": [{}, {"allOf": [True, {"type": "x"}]}]}, "/anyOf/1/allOf/1"),
        ({"$defs": {"~": {"type": "x"}}, "$ref": "#/$defs/~0"}, "/$defs/~0"),
        ({"properties": {"a": {"type": "x"}, "b": {"type": "x"}}}, ""),
    ],
)
def test_a_fault_is_found_where_it_is(schema: dict[str, Any], place: str) -> None:
    assert locate(schema, "wrong", bad_types) == place


def counted(schema: dict[str, Any]) -> tuple[str, int]:
    """Where a fault is, and how many subschemas were compiled to find it."""
    compiled: list[int] = []

    def error_of(variant: Any) -> str:
        compiled.append(sum(1 for _ in nodes(variant)))
        return bad_types(variant)

    return locate(schema, "wrong", error_of), sum(compiled)


def test_a_fault_among_many_is_found_by_halves() -> None:
    schema = {"properties": {f"p{at}": {"type": "x" if at == 700 else "null"} for at in range(1000)}}
    assert counted(schema)[0] == "/properties/p700"
    assert counted(schema)[1] < 20_000


def test_the_search_for_a_fault_ends_when_enough_was_compiled() -> None:
    wide = {f"p{at}": {"properties": {"in": {"type": "x" if at == 9000 else "null"}}} for at in range(9500)}
    place, work = counted({"properties": wide})
    assert place == ""
    assert work <= MOST_COMPILED


def test_keywords_are_found_where_they_stand_and_names_of_properties_are_none() -> None:
    schema = {"properties": {"uniqueItems": {"uniqueItems": True}, "maxLenght": {"maxLenght": 3, "x-ours": 1}}}
    assert places_of(schema, "uniqueItems") == ["/properties/uniqueItems"]
    assert unknown_keywords(schema) == {"maxLenght": ["/properties/maxLenght"]}
    assert places_of({"anyOf": [{"format": "a"}, {"format": "b"}]}, "format", "b") == ["/anyOf/1"]


def test_pointers_escape() -> None:
    assert pointer(("a/b", "~", 3)) == "/a~1b/~0/3"


PLAIN = {"type": "object", "properties": {"a": {}}}


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        (PLAIN, [""]),
        ({**PLAIN, "additionalProperties": True}, []),
        ({**PLAIN, "patternProperties": {}}, []),
        ({**PLAIN, "required": ["b"]}, []),
        ({**PLAIN, "minProperties": 2}, []),
        ({"type": "object"}, []),
        ({"allOf": [PLAIN, PLAIN]}, []),
        ({"allOf": [PLAIN]}, ["/allOf/0"]),
        ({**PLAIN, "anyOf": [PLAIN, {}]}, []),
        ({"anyOf": [PLAIN, {"type": "null"}]}, ["/anyOf/0"]),
        ({"properties": {"x": {"items": PLAIN}}}, ["", "/properties/x/items"]),
        ({"$ref": "#/$defs/p", "$defs": {"p": PLAIN}}, ["/$defs/p"]),
        ({"const": 1, **PLAIN}, []),
        ({**PLAIN, "minProperties": 1}, [""]),
        ({"properties": {"a": {"$ref": "#"}}, "minProperties": 1}, []),
        ({"properties": {"a": {"$ref": "#"}}, "minProperties": 1, "required": ["a"]}, [""]),
        ({"properties": {"x": PLAIN, "y": {"allOf": [PLAIN, PLAIN]}}}, ["", "/properties/x"]),
        ({"properties": {"y": {"allOf": [{"properties": {"z": PLAIN}}, PLAIN]}}}, [""]),
        (
            {
                "$defs": {"p": PLAIN, "q": PLAIN},
                "properties": {"x": {"$ref": "#/$defs/q"}},
                "additionalProperties": {"allOf": [{"$ref": "#/$defs/p"}, PLAIN]},
            },
            ["/$defs/q"],
        ),
        ({"properties": {"x": PLAIN, "y": {"allOf": [{"$ref": "#p"}, PLAIN]}}}, []),
        ({"properties": {"xa": PLAIN}, "patternProperties": {"^x": PLAIN}}, []),
        ({"patternProperties": {"^x": PLAIN}}, ["/patternProperties/^x"]),
        ({"patternProperties": {"^x": PLAIN, "a$": PLAIN}}, []),
    ],
)
def test_plain_objects_are_closed_and_no_others(schema: Any, places: list[str]) -> None:
    shut, found = closed(schema)
    assert sorted(found) == places
    assert (
        sorted(pointer(p) for p, n in nodes(shut) if isinstance(n, dict) and n.get("additionalProperties") is False)
        == places
    )
    if not places:
        assert shut == schema


def test_anything_and_nothing_are_given_to_the_compiler_as_objects() -> None:
    assert closed(True) == ({}, [])
    assert closed(False) == ({"enum": []}, [])


def test_an_object_of_a_thousand_is_closed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    original = schema_tree.children

    def noted(node: Any) -> Any:
        seen.append(node)
        return original(node)

    monkeypatch.setattr(schema_tree, "children", noted)
    schema: dict[str, Any] = {"properties": {f"p{at}": {"properties": {}} for at in range(1000)}}
    shut, places = closed(schema)
    assert len(places) == 1001
    assert len(seen) == 1001
    assert shut["properties"]["p999"] == {"properties": {}, "additionalProperties": False}
    assert schema["properties"]["p999"] == {"properties": {}}


def test_columns_follow_references_enums_and_what_may_be_null() -> None:
    schema = {
        "$ref": "#/$defs/row",
        "$defs": {
            "mood": {"enum": ["good", "bad"]},
            "row": {
                "type": "object",
                "properties": {
                    "i": {"type": "integer"},
                    "n": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                    "b": {"type": ["boolean", "null"]},
                    "s": {"type": "string"},
                    "m": {"$ref": "#/$defs/mood"},
                    "c": {"const": 3},
                    "mixed": {"enum": [1, "a"]},
                    "half": {"enum": [1, 0.5, None]},
                    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    "list": {"type": "array"},
                    "any": True,
                },
            },
        },
    }
    names = {name: kind.name for name, kind in columns_of(schema).items()}
    assert names == {
        "i": "integer", "n": "number", "b": "boolean", "s": "string", "m": "category", "c": "integer",
        "mixed": "object", "half": "number", "either": "object", "list": "object", "any": "object",
    }  # fmt: skip
    assert columns_of(schema)["m"] == ColumnKind("category", ("good", "bad"))
    assert columns_of({"type": "array"}) == columns_of({"$ref": "#/nowhere"}) == columns_of(True) == {}
    assert columns_of({"$ref": "#"}) == {}


def test_columns_of_choices_that_lead_back_or_branch_without_measure_may_be_anything() -> None:
    circle: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    branching = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 4} for at in range(40)}
    long = {f"l{at}": {"anyOf": [{"$ref": f"#/$defs/l{at + 1}"}]} for at in range(5000)}
    whole = {"$defs": {"a": circle, **branching, "d40": {"type": "integer"}, **long, "l5000": {"type": "integer"}}}
    columns = columns_of({**whole, "properties": {at: {"$ref": f"#/$defs/{at}"} for at in ("a", "d0", "l0")}})
    assert {name: kind.name for name, kind in columns.items()} == {"a": "object", "d0": "integer", "l0": "object"}


@pytest.mark.parametrize(
    ("grammar", "found"),
    [
        ('start: "a" start', ("start", 1)),
        ('start: "a" start | "b"', None),
        ('start: x\nx: "(" (x | y) ")"\ny: x', ("x", 2)),
        ('start: (a | b)\na: a "x"\nb: "b"', None),
        ("start: x?\nx: x", None),
        ('start: [x] "b"\nx: x', None),
        ("start: x*\nx: x", None),
        ("start: x ~ 0..3\nx: x", None),
        ("start: x ~ 1..3\nx: x", ("x", 2)),
        ("start: X\nX: /a|b/ & /b/", None),
        ('?start: expr\nexpr: expr "+" term | term\nterm: /[0-9]+/ | "(" expr ")"', None),
        ('start[max_tokens=3]: foo\nfoo[lazy]: bar "x"\nbar: foo', ("start", 1)),
        ('start: foo -> start\nfoo: "x"\n%ignore /\\s+/\n', None),
        ('// start: start\nstart: "a"\n  | start "b"', None),
        ("start: %json { }", None),
        ("start: unknown", None),
        ('start: (a | b) start\na: "x"\nb: "y"', ("start", 1)),
        ('start: (a | b | start)\na: "x"\nb: b', None),
        ('start: (a | [b]) ((c))\na: a\nb: b\nc: "x" (c)', ("c", 4)),
        ('start: (start)? b\nb: "x" b', ("b", 2)),
        ('start: "a" <open\n  | start', None),
        ("no rules at all", None),
    ],
)
def test_rules_that_need_themselves_without_end(grammar: str, found: tuple[str, int] | None) -> None:
    assert endless_rule(grammar) == found


@pytest.mark.parametrize(("last", "found"), [('"x"', None), ("a0", ("start", 1))])
def test_a_long_chain_of_rules_is_followed_once(
    monkeypatch: pytest.MonkeyPatch, last: str, found: tuple[str, int] | None
) -> None:
    made: list[Gates] = []

    class Counted(Gates):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(lark, "Gates", Counted)
    rules = "\n".join(f"a{at}: a{at + 1}" for at in range(5000))
    assert endless_rule(f"start: a0\n{rules}\na5000: {last}") == found
    assert made[0].visits < 4 * 5000


@pytest.mark.parametrize("mark", ["<", '"\\', "/\\", "(", "[", "(a|"])
def test_what_is_opened_again_and_again_is_read_once(mark: str) -> None:
    """Each of these took time or stack that grew with the square of its length."""
    assert endless_rule('start: "a" ' + mark * (60_000 // len(mark))) is None


@pytest.mark.parametrize(
    ("pattern", "ours"),
    [
        (r"\d+", "[0-9]+"),
        (r"[\d.]+", "[0-9.]+"),
        (r"[^\d]", r"[^\d]"),
        (r"\\d", r"\\d"),
        (r"[]\d]", "[]0-9]"),
        (r"[^]\d]", r"[^]\d]"),
        (r"\[\d\]", r"\[[0-9]\]"),
        ("\\", "\\"),
    ],
)
def test_digits_are_the_ten(pattern: str, ours: str) -> None:
    assert with_ascii_digits(pattern) == ours

"""Reading schemas and grammars: where a fault is, what has no end, what is closed, which columns there are."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_notebook.core.columns import ColumnKind, columns_of
from mlx_notebook.core.grammar import with_ascii_digits
from mlx_notebook.core.lark import endless_rule
from mlx_notebook.core.schema import closed, endless, locate, nodes, places_of, pointer, unknown_keywords

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


def with_definition(**node: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


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
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_what_demands_itself_without_end(schema: dict[str, Any], place: str | None) -> None:
    assert endless(schema) == place


def test_a_long_chain_of_definitions_ends() -> None:
    chain: dict[str, Any] = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(500)}
    assert endless({"$ref": "#/$defs/d0", "$defs": {**chain, "d500": {"type": "null"}}}) is None


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
        (True, []),
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
        ("no rules at all", None),
    ],
)
def test_rules_that_need_themselves_without_end(grammar: str, found: tuple[str, int] | None) -> None:
    assert endless_rule(grammar) == found


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

"""What of a schema is not enforced without a word of the compiler's, and what gives no cause to say so."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from mlx_notebook.core.unenforced import unenforced
from tests.engine.shaping import compiled, vocabulary

REPEATS = "minProperties at {} counts a name again that is written again."
OPEN = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({**OPEN, "minProperties": 2}, [REPEATS.format("the top")]),
        ({"items": {"minProperties": 2}}, [REPEATS.format("/items")]),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False, "minProperties": 3},
         [REPEATS.format("the top")]),
        ({"anyOf": [{**OPEN, "minProperties": 2}] * 7},
         [REPEATS.format(", ".join(f"/anyOf/{at}" for at in range(5)) + " and 2 more")]),
        ({**OPEN, "properties": {"a": {}}, "required": ["a"], "minProperties": 3}, [REPEATS.format("the top")]),
        ({**OPEN, "minProperties": 1}, []),
        ({**OPEN, "required": ["a"], "minProperties": 2}, []),
        ({**OPEN, "properties": {"a": {}}, "minProperties": 2}, []),
        ({"type": "object", "additionalProperties": False, "minProperties": 2}, []),
        ({"type": "array", "minProperties": 2}, []),
        ({"enum": [{}], "minProperties": 2}, []),
        ({"type": "integer", "format": "int{32}"},
         ["format 'int{32}' at the top says nothing of values that are no texts."]),
        ({"format": "email"}, ["format 'email' at the top says nothing of values that are no texts."]),
        ({"enum": [1, 2], "format": "email"}, ["format 'email' at the top says nothing of values that are no texts."]),
        ({"type": ["string", "null"], "format": "email"}, []),
        ({"$ref": "#/$defs/a", "format": "email", "$defs": {"a": {"type": "string"}}}, []),
        ({"properties": {"d": {"type": "string", "format": "date"}}},
         ["format 'date' at /properties/d takes 29 February in every year."]),
        ({"type": "string", "format": "time"}, ["format 'time' at the top takes a 60th second in every minute."]),
        ({"type": "string", "format": "date-time"},
         ["format 'date-time' at the top takes 29 February in every year and a 60th second in every minute."]),
        ({"enum": ["2023-02-01"], "format": "date"}, []),
        ({"properties": {"format": {"type": "string"}}}, []),
        ({"format": ["date"], "minProperties": "2"}, []),
        (True, []),
    ],
)  # fmt: skip
def test_each_is_said_where_it_is(schema: Any, said: list[str]) -> None:
    reasons = unenforced(schema)
    assert [reason.text for reason in reasons] == [f"json_schema: {text}" for text in said]
    assert {reason.code for reason in reasons} <= {"grammar-unenforced"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({**OPEN, "minProperties": 2}, '{"b": 1, "b": 2}', {"b": 2}),
        ({"type": "string", "format": "date"}, '"2023-02-29"', "2023-02-29"),
        ({"type": "string", "format": "time"}, '"12:59:60Z"', "12:59:60Z"),
    ],
)
def test_it_is_so(schema: dict[str, Any], text: str, value: Any) -> None:
    made = compiled(json_schema=schema)
    matcher = made.start()
    for token_id in vocabulary().made().tokenize_str(text):
        matcher.accept(token_id)
    matcher.close()
    assert made.notes == ()
    assert unenforced(schema)
    if "format" not in schema:
        assert not jsonschema.Draft202012Validator(schema).is_valid(value)

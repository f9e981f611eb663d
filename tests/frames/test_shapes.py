"""Answers with a shape as columns: types, choices with probabilities, resuming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pydantic
import pytest

from mlx_notebook.core.columns import ColumnKind
from mlx_notebook.gateway.frames.answers import AnswerColumns
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["ab", "cd"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "share": {"anyOf": [{"enum": [0.5, 1.5]}, {"type": "null"}]},
        "text": {"type": "boolean"},
        "word": {"type": "string", "pattern": "^[a-c]{2}$"},
        "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "stars", "share", "text", "word", "list"],
}
TYPES = {
    "kind": "category",
    "stars": "Int64",
    "share": "float64",
    "parsed.text": "boolean",
    "word": "string",
    "list": "object",
}
DATA = pd.DataFrame({"animal": ["fox", "hen", "ox"]}, index=["p", "q", "r"])


@pytest.fixture(scope="module")
def gw() -> Iterator[Gateway]:
    with Gateway.from_loaded(*small("llama"), batch=8) as made:
        yield made


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """The gateway is the module's: it outlives each test."""


def test_properties_are_columns_of_their_types(gw: Gateway) -> None:
    frame = gw.map(DATA, "the {animal}", json_schema=SCHEMA, expand=True, progress=False, temperature=1.0)
    assert frame.error.isna().all()
    assert {name: str(frame[name].dtype) for name in TYPES} == TYPES
    for label in DATA.index:
        row, value = frame.loc[label], frame.parsed[label]
        assert [row.kind, row.stars, row["parsed.text"], row.word, row.list] == [
            value["kind"], value["stars"], value["text"], value["word"], value["list"],
        ]  # fmt: skip
    assert frame.kind.cat.categories.tolist() == ["ab", "cd"]
    assert frame.parse_error.isna().all()


def test_cut_rows_have_no_values_and_the_columns_keep_their_types(gw: Gateway) -> None:
    frame = gw.map(DATA, "the {animal}", json_schema=SCHEMA, expand=True, progress=False, max_tokens=4)
    assert {name: str(frame[name].dtype) for name in TYPES} == TYPES
    assert frame[[*TYPES, "parsed"]].isna().all(axis=None)
    assert set(frame.parse_error) == {"cut at max_tokens=4: the answer is not complete"}


def test_a_pydantic_class_is_plain_values_in_a_frame(gw: Gateway) -> None:
    class Row(pydantic.BaseModel):
        kind: Literal["ab", "cd"]
        flag: bool | None

    frame = gw.map(DATA, "the {animal}", json_schema=Row, expand=True, progress=False)
    assert all(isinstance(value, dict) for value in frame.parsed)
    assert [str(frame[name].dtype) for name in ("kind", "flag")] == ["category", "boolean"]


def test_names_that_a_pydantic_class_reads_and_writes_are_those_of_the_columns(gw: Gateway) -> None:
    class Row(pydantic.BaseModel):
        kind: Literal["ab", "cd"] = pydantic.Field(alias="Kind")
        flag: bool = pydantic.Field(validation_alias="read", serialization_alias="written")
        size: int = pydantic.Field(default=3, ge=3, le=3)

    frame = gw.map(DATA, "the {animal}", json_schema=Row, expand=True, progress=False)
    assert frame.error.isna().all()
    assert frame[["Kind", "read", "size"]].notna().all(axis=None)
    assert [str(frame[name].dtype) for name in ("Kind", "read", "size")] == ["category", "boolean", "Int64"]
    assert frame.Kind.tolist() == [value["Kind"] for value in frame.parsed]


def test_choices_are_a_categorical_column_with_probabilities(gw: Gateway) -> None:
    frame = gw.map(DATA, "the {animal}", choices=["yes", "no"], logprobs=True, progress=False)
    assert frame.choice.cat.categories.tolist() == ["yes", "no"]
    assert (frame[["p_yes", "p_no"]].sum(axis=1) - 1).abs().max() < 1e-6
    assert (frame[["p_yes", "p_no"]].idxmax(axis=1).str[2:] == frame.choice.astype(str)).all()
    plain = gw.map(DATA, "the {animal}", choices=["yes", "no"], progress=False)
    assert [name for name in plain if str(name).startswith("p_")] == []
    assert "parsed" not in plain


def test_each_row_may_have_choices_of_its_own(gw: Gateway) -> None:
    own = pd.Series([["a", "b"], ["c"], ["a", "d"]], index=DATA.index)
    frame = gw.map(DATA, "the {animal}", choices=own, progress=False)
    assert frame.choice.cat.categories.tolist() == ["a", "b", "c", "d"]
    assert frame.choice["q"] == "c"
    assert frame.choice["r"] in ("a", "d")


def test_a_wrong_shape_of_one_row_is_that_rows_error(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    frame = gw.map(DATA, "the {animal}", regex=pd.Series(["a{3}", "(", "b{2}"], index=DATA.index), progress=False)
    assert frame.parsed.tolist() == ["aaa", None, "bb"]
    assert "regex at column 1" in frame.error["q"]
    assert "regex at column 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [{"choices": ["yes", "no"], "logprobs": True}, {"json_schema": SCHEMA, "expand": True}]
)
def test_an_earlier_run_is_gone_on_with_from_its_file_and_from_its_frame(
    gw: Gateway, tmp_path: Path, options: dict[str, Any]
) -> None:
    path = tmp_path / "answers.jsonl"
    whole = gw.map(DATA, "the {animal}", save=path, progress=False, seed=4, temperature=1.0, **options)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    same = {"seed": 4, "temperature": 1.0, "progress": False, **options}
    columns = [name for name in whole if not str(name).endswith("_ms") and name != "cached_tokens"]
    from_file = gw.map(DATA, "the {animal}", resume=path, **same)
    pd.testing.assert_frame_equal(from_file[columns], whole[columns])
    from_frame = gw.map(DATA, "the {animal}", resume=whole.iloc[[2, 0]], **same)
    pd.testing.assert_frame_equal(from_frame[columns], whole[columns])


HARD_NAMES = (
    "choice", "reasoning", "probabilities", "undecided", "parsed", "parse_error", "text", "seed", "error", "sample",
    "parsed.text", "parsed.choice", "p_ab",
)  # fmt: skip


@pytest.mark.parametrize("names", [HARD_NAMES, HARD_NAMES[::-1]])
def test_properties_called_like_our_columns_are_neither_lost_nor_taken_for_them(
    gw: Gateway, tmp_path: Path, names: tuple[str, ...]
) -> None:
    each = {name: {"enum": [f"{name} ab", f"{name} cd"]} for name in names}
    schema = {"type": "object", "properties": each, "required": list(names)}
    path = tmp_path / "answers.jsonl"
    same: dict[str, Any] = {
        "json_schema": schema,
        "expand": True,
        "seed": 4,
        "temperature": 1.0,
        "progress": False,
        "max_tokens": 900,
    }
    whole = gw.map(DATA, "the {animal}", save=path, **same)
    assert whole.parse_error.isna().all()
    for name in names:
        assert sum(whole[c].tolist() == [value[name] for value in whole.parsed] for c in whole) == 1
    assert {"parsed.choice", "parsed.reasoning", "parsed.probabilities", "parsed.sample"} <= set(whole)
    columns = [name for name in whole if not str(name).endswith("_ms") and name != "cached_tokens"]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    pd.testing.assert_frame_equal(gw.map(DATA, "the {animal}", resume=path, **same)[columns], whole[columns])
    again = gw.map(DATA, "the {animal}", resume=whole.iloc[[2, 0]], **same)
    pd.testing.assert_frame_equal(again[columns], whole[columns])


def test_a_column_that_the_user_added_is_not_taken_for_the_choice(gw: Gateway) -> None:
    same: dict[str, Any] = {"json_schema": SCHEMA, "seed": 4, "progress": False}
    whole = gw.map(DATA, "the {animal}", **same)
    again = gw.map(DATA, "the {animal}", resume=whole.iloc[:2].assign(choice=["mine", "too"]), **same)
    assert again.parsed.tolist() == whole.parsed.tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expand": True}, "expand=True needs one json_schema"),
        ({"expand": True, "choices": ["a"]}, "expand=True needs one json_schema"),
        ({"expand": True, "json_schema": {"type": "array"}}, "describes no object with properties"),
        ({"expand": True, "json_schema": pd.Series([SCHEMA] * 2 + [{}], index=DATA.index)}, "needs one json_schema"),
    ],
)
def test_what_cannot_be_expanded_is_refused(gw: Gateway, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gw.map(DATA, "the {animal}", progress=False, **options)
    with pytest.raises(TypeError, match="expand=1"):
        gw.map(DATA, "the {animal}", progress=False, expand=1)  # type: ignore[arg-type]


def test_settings_with_shapes_are_compared(gw: Gateway) -> None:
    frame = gw.compare(["a"], {"free": {}, "shaped": {"regex": "a{4}"}}, max_tokens=6, progress=False)
    assert frame.parsed.tolist() == [None, "aaaa"]


def test_numbers_too_large_for_a_column_stay_objects() -> None:
    columns = AnswerColumns(parsed=True, properties={"n": ColumnKind("integer")})
    made = columns.of([{"parsed": {"n": 2**70}}, {"parsed": {"n": 1}}, None], ())
    assert made["n"].tolist() == [2**70, 1, None]

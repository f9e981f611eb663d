"""Trace files come back whole, with and without text; what is no trace is refused with a sentence."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import mlx_notebook as mn
from mlx_notebook.core.ring import COLUMNS
from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.notebook.run_actions import token_of_trace
from mlx_notebook.trace.trace import About
from tests.trace.conftest import HOSTILE, WORDS

if TYPE_CHECKING:
    from pathlib import Path

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.trace.trace import Trace


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_trace_comes_back_whole(with_text: Trace, tmp_path: Path, name: str) -> None:
    back = mn.load_trace(with_text.save(tmp_path / name))
    assert {c: list(back.columns[c]) for c in COLUMNS} == {c: list(with_text.columns[c]) for c in COLUMNS}
    assert back.about == with_text.about
    assert back.figures == with_text.figures
    for frame in ("requests", "steps", "tokens"):
        assert getattr(back, frame)().equals(getattr(with_text, frame)())
    for row_id in back.recording.requests:
        assert back.explain(row_id) == with_text.explain(row_id)


def test_hostile_text_comes_back_as_it_was(with_text: Trace, tmp_path: Path) -> None:
    path = with_text.save(tmp_path / "run.json")
    assert path.read_bytes().isascii()
    back = mn.load_trace(path)
    pieces = [piece for about in back.about.values() for piece in about.pieces]
    assert set(HOSTILE) <= set(pieces)


def test_without_text_no_word_is_in_the_file(gateway: Gateway, tmp_path: Path) -> None:
    text = gateway.save_trace(tmp_path / "run.json").read_text()
    assert WORDS not in text
    assert "alert" not in text
    assert not mn.load_trace(tmp_path / "run.json").with_text


def test_no_option_of_any_name_takes_a_users_words_along(gateway: Gateway, tmp_path: Path) -> None:
    numbers = {"max_tokens": 7, "temperature": 0.5, "logit_bias": {5: 1.5}, "raw": True, "deadline": None, "top_k": 0}
    asked = gateway.submit("x", max_tokens=2)
    held = asked.options
    words = {name: WORDS for name in held if name not in numbers}
    nested = {"stop": [WORDS], "choices": [["a"], WORDS], "json_schema": {"properties": {WORDS: 1}}, "regex": WORDS}
    asked.result()
    asked._options = {**words, **nested, **numbers}
    kept = mn.load_trace(gateway.save_trace(tmp_path / "run.json")).about[asked.id].options
    assert WORDS not in (tmp_path / "run.json").read_text()
    assert kept.keys() == numbers.keys()
    with_words = mn.load_trace(gateway.save_trace(tmp_path / "all.json", text=True)).about[asked.id].options
    assert with_words["regex"] == WORDS
    asked._options = held


def token_ids(trace: Trace) -> set[int]:
    return set(trace.recording.tokens["token_id"])


def test_without_text_no_token_can_be_told(gateway: Gateway, with_text: Trace, tmp_path: Path) -> None:
    mine = gateway.trace()
    known = replace(mine, about={row_id: replace(one, logprobs=(-0.5,)) for row_id, one in mine.about.items()})
    back = mn.load_trace(known.save(tmp_path / "run.json"))
    assert token_ids(back) == {-1}
    assert not any(about.logprobs for about in back.about.values())
    assert back.tokens().token_id.isna().all()
    assert back.tokens().drop(columns="token_id").equals(mine.tokens().drop(columns="token_id"))
    assert min(token_ids(mine)) > 0  # the user's own frame in memory has them
    kept = mn.load_trace(with_text.save(tmp_path / "text.json"))
    assert token_ids(kept) == token_ids(with_text)


def test_what_json_does_not_know_is_no_reason_to_write_nothing(with_text: Trace, tmp_path: Path) -> None:
    (row_id, *_) = with_text.about
    odd = About(row_id, options={"chat_template_kwargs": {"x": object(), 3: float("inf")}}, logprobs=(math.nan, -0.5))
    back = mn.load_trace(replace(with_text, about={row_id: odd}).save(tmp_path / "run.json"))
    kwargs = back.about[row_id].options["chat_template_kwargs"]
    assert kwargs["x"].startswith("<object object at")
    assert kwargs["3"] is None
    assert back.about[row_id].logprobs == (None, -0.5)
    assert back.tokens().query("request == @row_id").logprob.dropna().tolist() == [-0.5]
    assert token_of_trace(back, row_id, 1)["logprob"] is None


def test_a_compressed_file_is_the_same_each_time(trace: Trace, tmp_path: Path) -> None:
    assert trace.save(tmp_path / "a.gz").read_bytes() == trace.save(tmp_path / "b.gz").read_bytes()


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    empty = mn.Trace("empty", {name: [] for name in COLUMNS})
    back = mn.load_trace(empty.save(tmp_path / "empty.json"))
    assert back.requests().empty
    assert back.steps().empty
    assert back.tokens().empty


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mn.load_trace(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "is not a trace file"),
        (b"\xff\xfe", "is not a trace file"),
        (b"\x1f\x8bnot gzip", "is not a trace file"),
        (b"[1, 2]", "has trace events, but not the log itself"),
        (b'{"traceEvents": []}', "has trace events, but not the log itself"),
        (b'{"other": 1}', "is not a trace file"),
        (b'{"mlxNotebook": {"version": 99}}', "version 99"),
        (b'{"mlxNotebook": {"version": 1}}', "damaged"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as raised:
        mn.load_trace(path)
    assert isinstance(raised.value, MlxNotebookError)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("column", COLUMNS)
def test_damaged_columns_are_found_when_the_file_is_read(trace: Trace, tmp_path: Path, column: str) -> None:
    path = trace.save(tmp_path / "run.json")
    document = json.loads(path.read_text())
    del document["mlxNotebook"]["columns"][column][-1]
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="damaged"):
        mn.load_trace(path)


def test_records_of_no_kind_are_found_when_the_file_is_read(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "run.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["mlxNotebook"]["columns"]["kind"][0] = 77
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="damaged"):
        mn.load_trace(path)


def test_it_says_what_is_in_it(with_text: Trace) -> None:
    assert repr(with_text) == "<Trace of 'scripted': 8 requests, " + repr(with_text).partition("requests, ")[2]
    assert repr(with_text).endswith("with text>")

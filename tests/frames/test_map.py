"""`map`: what comes back for what goes in, and what is refused before the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import mlx_notebook as mn
from mlx_notebook.core.seeds import row_seed
from mlx_notebook.errors import GatewayClosed, RowsFailed, UnsupportedRequest
from tests.frames.echo import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

COLUMNS = [
    "text",
    "finish_reason",
    "finish_detail",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "queue_ms",
    "ttft_ms",
    "tpot_ms",
    "seed",
    "error",
]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


# ---------------------------------------------------------------- data in, frame out


def test_a_list_keeps_its_order(gw: Gateway) -> None:
    prompts = [f"prompt {i}" for i in range(23)]
    frame = gw.map(prompts, max_tokens=3, seed=5)
    assert list(frame.columns) == COLUMNS
    assert frame.index.equals(pd.RangeIndex(23))
    assert frame.text.tolist() == [text_of(p, row_seed(5, i), 3) for i, p in enumerate(prompts)]
    assert frame.seed.tolist() == [row_seed(5, i) for i in range(23)]
    assert frame.error.isna().all()


def test_a_row_can_be_drawn_again_alone(gw: Gateway) -> None:
    frame = gw.map(["a", "b"], max_tokens=4, temperature=1.0)
    assert gw.submit("b", max_tokens=4, temperature=1.0, seed=int(frame.seed[1])).text == frame.text[1]


def test_a_series_keeps_its_index(gw: Gateway) -> None:
    frame = gw.map(pd.Series(["a", "b"], index=["x", "y"]), max_tokens=1)
    assert frame.index.tolist() == ["x", "y"]


def test_labels_may_occur_twice_and_be_tuples(gw: Gateway) -> None:
    twice = gw.map(pd.Series(["a", "b"], index=["x", "x"]), max_tokens=1)
    assert twice.index.tolist() == ["x", "x"]
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["letter", "number"])
    assert gw.map(pd.Series(["a", "b"], index=index), max_tokens=1).index.equals(index)


def test_a_frame_with_a_template(gw: Gateway) -> None:
    df = pd.DataFrame({"review": ["good", "bad"], "stars": [5, 1]}, index=[10, 20])
    frame = gw.map(df, "{{json}} {review}: {stars}", max_tokens=2, seed=1)
    assert frame.index.tolist() == [10, 20]
    assert frame.text[20] == text_of("{json} bad: 1", row_seed(1, 1), 2)


def test_whole_numbers_stay_whole_beside_fractions(gw: Gateway) -> None:
    """Rows of a frame are not cast to one type."""
    df = pd.DataFrame({"stars": [5], "price": [1.5]})
    frame = gw.map(df, "{stars} {price}", max_tokens=2, seed=1)
    assert frame.text[0] == text_of("5 1.5", row_seed(1, 0), 2)


def test_a_template_over_a_list_or_a_series(gw: Gateway) -> None:
    assert gw.map(["a"], "Say {}!", max_tokens=2, seed=1).text[0] == text_of("Say a!", row_seed(1, 0), 2)
    named = pd.Series(["a"], name="word")
    assert gw.map(named, "Say {word}!", max_tokens=2, seed=1).text[0] == text_of("Say a!", row_seed(1, 0), 2)


def test_records_are_a_frame(gw: Gateway) -> None:
    frame = gw.map([{"a": "x"}, {"a": "y"}], "Say {a}", max_tokens=2, seed=1)
    assert frame.text[1] == text_of("Say y", row_seed(1, 1), 2)


def test_messages_and_token_ids_are_prompts_too(gw: Gateway) -> None:
    chat = [{"role": "user", "content": "hi"}]
    frame = gw.map([chat, [104, 105], np.array([104, 105])], max_tokens=2, seed=1)
    assert frame.text[0] == text_of("hi", row_seed(1, 0), 2)
    assert frame.text[1] == text_of("hi", row_seed(1, 1), 2)
    assert frame.text[2] == text_of("hi", row_seed(1, 2), 2)


def test_nothing_in_nothing_out(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    frame = gw.map([])
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 0
    assert last_line(capsys) == "0 complete"


def test_samples(gw: Gateway) -> None:
    frame = gw.map(["a", "b"], n=3, max_tokens=2, seed=9)
    assert list(frame.columns) == [*COLUMNS, "sample"]
    assert frame.index.tolist() == [0, 0, 0, 1, 1, 1]
    assert frame["sample"].tolist() == [0, 1, 2, 0, 1, 2]
    assert frame.seed.tolist() == [row_seed(9, row, sample) for row in range(2) for sample in range(3)]


def test_system_is_passed_on(gw: Gateway) -> None:
    assert gw.map(["a"], system="S", max_tokens=2, seed=1).text[0] == text_of("S\na", row_seed(1, 0), 2)


def test_the_module_level_name(gw: Gateway) -> None:
    frame = mn.map(["a"], max_tokens=1)
    assert gw.last_map is frame
    assert "map" not in mn.__all__, "a star import must not hide the builtin"


# ---------------------------------------------------------------- options


def test_only_a_series_means_one_value_a_row(gw: Gateway) -> None:
    frame = gw.map(["a", "b", "c"], max_tokens=pd.Series([1, 2, 3]), stop=["x", "y", "z"])
    assert frame.generated_tokens.tolist() == [1, 2, 3]


def test_a_series_goes_by_its_labels(gw: Gateway) -> None:
    data = pd.Series(["a", "b"], index=["x", "y"])
    frame = gw.map(data, max_tokens=pd.Series([2, 1], index=["y", "x"]))
    assert frame.generated_tokens.tolist() == [1, 2]


def test_a_missing_value_is_the_default(gw: Gateway) -> None:
    frame = gw.map(["a", "b"], max_tokens=pd.Series([2, None]))
    assert frame.generated_tokens.tolist() == [2, 256]


def test_a_series_of_seeds_is_taken_as_it_is(gw: Gateway) -> None:
    frame = gw.map(["a", "b"], seed=pd.Series([3, 40]), n=2, max_tokens=1)
    assert frame.seed.tolist() == [3, 4, 40, 41]


def test_a_value_out_of_range_is_its_row_s_error(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    frame = gw.map(["a", "b"], max_tokens=pd.Series([2, 0]))
    assert frame.text.notna().tolist() == [True, False]
    assert "max_tokens=0 is out of range" in frame.error[1]
    assert "row 1: max_tokens=0" in capsys.readouterr().out


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"temp": 1.0}, TypeError, "did you mean 'temperature'"),
    ({"max_tokens": 0}, ValueError, "max_tokens=0"),
    ({"json_schema": {}}, UnsupportedRequest, "json_schema"),
    ({"n": 0}, ValueError, "n=0"),
    ({"errors": "ignore"}, ValueError, "errors='ignore'"),
    ({"retry": "all"}, ValueError, "retry='all'"),
    ({"progress": 1}, TypeError, "progress=1"),
    ({"resume": True}, ValueError, "no earlier run"),
    ({"retry": "failed"}, ValueError, "no earlier run"),
    ({"resume": 3}, TypeError, "resume=3"),
    ({"resume": "no such file"}, FileNotFoundError, "no such file"),
    ({"max_tokens": pd.Series([1, 2, 3], index=["p", "q", "r"])}, ValueError, "under other labels"),
    ({"max_tokens": pd.Series([1])}, ValueError, "under other labels"),
    ({"on_token": print}, TypeError, "on_token"),
]


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED)
def test_a_wrong_call_is_refused_before_anything_runs(
    gw: Gateway, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        gw.map(["a", "b"], **options)
    assert gw.stats().submitted == 0


WRONG_DATA: list[tuple[Any, Any, type[Exception], str]] = [
    ("one prompt", None, TypeError, "generate\\(\\) answers it"),
    ({"a": 1}, None, TypeError, "not dict"),
    (3, None, TypeError, "not int"),
    ([{"role": "user", "content": "hi"}], None, TypeError, "that is one prompt"),
    (pd.DataFrame({"review": ["a"]}), None, TypeError, r"template over its columns such as \"\{review\}\""),
    (pd.DataFrame({"review": ["a"]}), "{reviews}", ValueError, r"did you mean \{review\}"),
    (pd.DataFrame({"review": ["a"]}), "review", ValueError, r"did you mean \{review\}"),
    (pd.DataFrame([["a", "b"]], columns=["x", "x"]), "{x}", ValueError, "2 columns are called 'x'"),
    (["a"], "no field", ValueError, r"names no column"),
    (["a"], 3, TypeError, "a template text"),
]


@pytest.mark.parametrize(("data", "prompt", "kind", "message"), WRONG_DATA)
def test_wrong_data_is_named(gw: Gateway, data: Any, prompt: str | None, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gw.map(data, prompt)
    assert gw.stats().submitted == 0


def test_a_closed_gateway_says_so(gw: Gateway) -> None:
    gw.close()
    with pytest.raises(GatewayClosed):
        gw.map(["a"])


# ---------------------------------------------------------------- bad rows


def test_bad_rows_are_listed_and_kept(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    data = pd.Series(["fine", None, float("nan"), "", "x" * 300, 3.5, "fine too"], index=list("abcdefg"), dtype=object)
    frame = gw.map(data, max_tokens=2)
    out = capsys.readouterr().out
    assert "5 of 7 rows cannot be run:" in out
    assert "row 1 ('b'): the prompt is missing (None)" in out
    assert "row 4 ('e'): the prompt has 300 tokens and the model's context is 200" in out
    assert frame.error.isna().tolist() == [True, False, False, False, False, False, True]
    assert frame.finish_reason.tolist() == ["length", *["error"] * 5, "length"]
    assert frame.error["d"] == "the prompt is empty"
    assert out.splitlines()[-1] == "0 complete, 2 cut at max_tokens, 5 failed"
    assert gw.stats().submitted == 2


def test_a_frame_s_missing_and_empty_values(gw: Gateway) -> None:
    df = pd.DataFrame({"a": ["x", None, "", " "], "b": ["y", "y", "y", ""], "c": [None] * 4})
    frame = gw.map(df, "{a} {b}", max_tokens=1)
    assert frame.error.isna().tolist() == [True, False, True, False]
    assert frame.error[1].startswith("column 'a' is missing")
    assert frame.error[3] == "column 'a' and column 'b' is empty"


def test_bad_rows_raise_on_demand(gw: Gateway) -> None:
    with pytest.raises(RowsFailed, match="row 1: the prompt is missing") as caught:
        gw.map(["a", None], errors="raise")
    frame = caught.value.frame
    assert frame is not None
    assert frame.error.notna().tolist() == [False, True]
    assert gw.stats().submitted == 0


def test_a_long_list_of_bad_rows_is_cut(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gw.map([None] * 50)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 13
    assert out[-2] == "  and 40 more"


# ---------------------------------------------------------------- ends


def test_the_last_line_counts_the_ends(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    frame = gw.map(["STOP"] * 4 + ["go on"] * 3 + ["FAIL"] * 2, max_tokens=3)
    assert last_line(capsys) == "4 complete, 3 cut at max_tokens, 2 failed"
    assert frame.finish_reason.tolist() == ["stop"] * 4 + ["length"] * 3 + ["error"] * 2
    assert "made to fail" in frame.error[8]
    assert len(frame.text[8]) == 1, "a failed row keeps what it had"


def test_a_failing_row_raises_on_demand_and_the_rest_is_cancelled(echo: Callable[..., Gateway]) -> None:
    gateway = echo(rows=1)
    with pytest.raises(RowsFailed, match=r"row 1: request \d+ failed: ValueError") as caught:
        gateway.map(["a", "FAIL", "b", "c", "d"], max_tokens=3, errors="raise")
    frame = caught.value.frame
    assert frame is not None
    assert frame is gateway.last_map
    assert frame.finish_reason[0] == "length"
    assert frame.finish_reason[1] == "error"
    assert frame.finish_reason[4] is None
    assert gateway.wait_idle(60)


def test_a_deadline_is_an_outcome(gw: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    frame = gw.map(["a"], deadline=1e-9)
    assert frame.finish_detail[0] == "deadline"
    assert "its deadline passed" in frame.error[0]
    assert last_line(capsys) == "0 complete, 1 cancelled"


def test_it_feeds_itself_through_a_short_queue(echo: Callable[..., Gateway]) -> None:
    gateway = echo(rows=4, max_queued=2)
    frame = gateway.map([f"p{i}" for i in range(60)], max_tokens=2)
    assert frame.error.isna().all()


def test_the_batch_stays_full_and_the_queue_short(echo: Callable[..., Gateway]) -> None:
    most = 0
    holder: list[Gateway] = []

    def look(_row: int, _index: int) -> str:
        nonlocal most
        most = max(most, holder[0].stats().queued_rows)
        return "x"

    holder.append(echo(rows=3, script=look))
    holder[0].map([f"p{i}" for i in range(40)], max_tokens=3)
    assert 0 < most <= 6


def test_counts_are_whole_numbers_and_times_are_floats(gw: Gateway) -> None:
    frame = gw.map(["a", None], max_tokens=2)
    assert str(frame.dtypes["generated_tokens"]) == "Int64"
    assert str(frame.dtypes["seed"]) == "Int64"
    assert str(frame.dtypes["ttft_ms"]) == "float64"
    assert frame.generated_tokens[0] == 2
    assert pd.isna(frame.generated_tokens[1])

"""Interrupts, saved files, and going on: nothing finished is lost, and nothing else is taken for the same run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from mlx_notebook.errors import GatewayClosed, RowsFailed
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import hooks
from tests.frames.echo import Echo, capabilities

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlx_notebook.gateway.frames.progress import State

TIMES = ["queue_ms", "ttft_ms", "tpot_ms"]
PROMPTS = ["one", "STOP two", "FAIL three", None, "five", "STOP six", "FAIL seven", "eight", "nine", "STOP ten"]


class InterruptAt:
    """Stands for a reader who presses the stop button once so many rows are done."""

    def __init__(self, done: int) -> None:
        self.done = done
        self.line = ""

    def show(self, state: State) -> None:
        if state.done >= self.done:
            raise KeyboardInterrupt

    def close(self, line: str) -> None:
        self.line = line


def interrupt_at(done: int) -> InterruptAt:
    meter = InterruptAt(done)
    hooks.progress = lambda: meter
    return meter


def same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """The same but for times, and for request numbers in errors."""
    for frame in (one := one.copy(), other := other.copy()):
        frame["error"] = [None if pd.isna(e) else str(e).split(":")[-1] for e in frame["error"]]
    assert_frame_equal(one.drop(columns=TIMES), other.drop(columns=TIMES))


@pytest.fixture(autouse=True)
def every_look_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_notebook.gateway.frames.mapping.DRAW_S", 0.0)


# ---------------------------------------------------------------- interrupts


def test_an_interrupt_keeps_what_is_finished(echo: Callable[..., Gateway]) -> None:
    gateway = echo(rows=1)
    meter = interrupt_at(3)
    with pytest.raises(KeyboardInterrupt) as caught:
        gateway.map([f"p{i}" for i in range(50)], max_tokens=2)
    frame = gateway.last_map
    assert frame is not None
    assert caught.value.frame is frame  # type: ignore[attr-defined]
    done = frame.finish_reason.notna().sum()
    assert 3 <= done < 50
    assert frame.text.notna().sum() == done
    assert frame.index.equals(pd.RangeIndex(50))
    assert meter.line == f"stopped early: 0 complete, {done} cut at max_tokens, {50 - done} not run"
    assert gateway.wait_idle(60), "what was under way is cancelled"


def test_resume_true_goes_on_with_the_last_run(echo: Callable[..., Gateway]) -> None:
    gateway, whole = echo(rows=2), echo().map(PROMPTS, max_tokens=3, seed=4)
    interrupt_at(4)
    with pytest.raises(KeyboardInterrupt):
        gateway.map(PROMPTS, max_tokens=3, seed=4)
    hooks.progress = None
    before = gateway.stats().submitted
    partial = gateway.last_map
    assert partial is not None
    same(gateway.map(PROMPTS, max_tokens=3, resume=True), whole)
    runnable = sum(p is not None for p in PROMPTS)
    assert gateway.stats().submitted - before <= runnable - 3
    same(gateway.map(PROMPTS, max_tokens=3, resume=partial), whole)


def test_a_drawn_seed_is_gone_on_with(gw: Gateway) -> None:
    interrupt_at(2)
    with pytest.raises(KeyboardInterrupt):
        gw.map([f"p{i}" for i in range(30)], max_tokens=2)
    hooks.progress = None
    partial = gw.last_map
    assert partial is not None
    frame = gw.map([f"p{i}" for i in range(30)], max_tokens=2, resume=True)
    done = partial.finish_reason.notna()
    assert frame.text[done].tolist() == partial.text[done].tolist()
    assert frame.attrs["mlx_notebook"]["seed"] == partial.attrs["mlx_notebook"]["seed"]


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=12),
    stops=st.lists(st.integers(0, 12), max_size=4),
    torn=st.binary(max_size=30).filter(lambda b: b"\n" not in b),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4)),
)
def test_resumed_after_any_interruptions_it_is_the_uninterrupted_frame(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[Any], stops: list[int], torn: bytes, sizes: tuple[int, int]
) -> None:
    n, rows = sizes
    path = tmp_path_factory.mktemp("saved") / "answers.jsonl"
    with Gateway.from_backend(Echo(capabilities=capabilities(rows=rows))) as gateway:
        call: dict[str, Any] = {"n": n, "max_tokens": 3, "seed": 11}
        hooks.progress = None
        whole = gateway.map(prompts, **call)
        for stop in stops:
            interrupt_at(stop)
            try:
                gateway.map(prompts, **call, save=path, resume=True)
            except KeyboardInterrupt:
                if path.exists():
                    path.write_bytes(path.read_bytes() + torn)  # as if the process had been killed while writing
        hooks.progress = None
        same(gateway.map(prompts, **call, save=path, resume=True), whole)
        submitted = gateway.stats().submitted
        same(gateway.map(prompts, **call, resume=path), whole)
        assert gateway.stats().submitted == submitted, "all was there"


# ---------------------------------------------------------------- files


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_finished_row_is_a_line(gw: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    frame = gw.map(pd.Series(["a", "FAIL", None], index=["x", "y", "z"]), max_tokens=3, save=path)
    head, *lines = rows_in(path)
    assert head["kind"] == "map"
    assert head["rows"] == 3
    by_row = {line["row"]: line for line in lines}
    assert by_row[0]["text"] == frame.text["x"]
    assert by_row[0]["index"] == "x"
    assert "made to fail" in by_row[1]["error"]
    assert by_row[2]["error"].startswith("the prompt is missing")


def test_lines_are_there_when_their_rows_are_done(echo: Callable[..., Gateway], tmp_path: Path) -> None:
    gateway, path = echo(rows=1), tmp_path / "answers.jsonl"
    interrupt_at(2)
    with pytest.raises(KeyboardInterrupt) as caught:
        gateway.map([f"p{i}" for i in range(30)], max_tokens=2, save=path)
    frame: pd.DataFrame = caught.value.frame  # type: ignore[attr-defined]
    assert {line["row"] for line in rows_in(path)[1:]} == set(frame.index[frame.finish_reason.notna()])


def test_text_that_could_break_lines_comes_back(echo: Callable[..., Gateway], tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    nasty = 'a\nb\r\u2028\u2029"\\\x00\ud800<b>\N{FOX FACE}'
    gateway = echo(context=400)
    from mlx_notebook.gateway.frames.journal import Journal, read_saved
    from mlx_notebook.gateway.frames.outcome import refused

    file = Journal(path, {"kind": "map"})
    file.append(0, 0, "x", "c", {**refused("no"), "text": nasty})
    file.close()
    assert path.read_bytes().count(b"\n") == 2
    assert read_saved(path).outcomes[0, 0]["text"] == nasty
    gateway.close()


def test_a_file_is_never_overwritten(gw: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="resume=True goes on with it"):
        gw.map(["a"], max_tokens=1, save=path)
    with pytest.raises(ValueError, match="first line is not that of a run"):
        gw.map(["a"], max_tokens=1, save=path, resume=True)
    assert path.read_text() == "precious"
    assert gw.stats().submitted == 0


def test_a_broken_line_is_named(gw: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    gw.map(["a", "b"], max_tokens=1, save=path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{}", *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"answers.jsonl, line 2: not a row"):
        gw.map(["a", "b"], max_tokens=1, resume=path)


def test_a_refused_call_leaves_no_file(gw: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with pytest.raises(RowsFailed):
        gw.map([None], errors="raise", save=path)
    assert not path.exists()


def test_a_resumed_run_may_be_saved_elsewhere(gw: Gateway, tmp_path: Path) -> None:
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    frame = gw.map(["a", "b"], max_tokens=2, save=first)
    gw.map(["a", "b"], max_tokens=2, resume=first, save=second)
    assert rows_in(first)[0] == rows_in(second)[0]
    same(gw.map(["a", "b"], max_tokens=2, resume=second), frame)


# ---------------------------------------------------------------- the same run or another


OTHER: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 4}, "max_tokens was 3 and is 4"),
    ({"prompt": "Tell {word}"}, "template was 'Say {word}' and is 'Tell {word}'"),
    ({"seed": 2}, "seed was 1 and is 2"),
    ({"system": "S"}, "system was None and is 'S'"),
    ({"n": 2}, "n was 1 and is 2"),
    ({"data": pd.DataFrame({"word": ["a", "c"]})}, "the first row that differs is row 1"),
    ({"data": pd.DataFrame({"word": ["a"]})}, "there were 2 rows and are 1"),
    ({"temperature": pd.Series([0.1, 0.2])}, "temperature was 0.0 and is 'one value a row'"),
]


@pytest.mark.parametrize(("change", "message"), OTHER)
def test_another_run_is_refused_with_what_differs(
    gw: Gateway, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "answers.jsonl"
    call: dict[str, Any] = {"data": pd.DataFrame({"word": ["a", "b"]}), "prompt": "Say {word}", "max_tokens": 3}
    frame = gw.map(**call, seed=1, save=path)
    for resume in (path, frame):
        if "differs is row" in message and resume is frame:
            message = "the prompts .* are others"
        with pytest.raises(ValueError, match=message):
            gw.map(**{**call, "seed": 1, **change}, resume=resume)


def test_when_it_is_to_be_answered_is_no_difference(gw: Gateway) -> None:
    frame = gw.map(["a"], max_tokens=1, priority=0)
    gw.map(["a"], max_tokens=1, priority=-1, deadline=1000, resume=frame)


def test_another_model_is_another_run(echo: Callable[..., Gateway], gw: Gateway) -> None:
    frame = gw.map(["a"], max_tokens=1)
    other = echo()
    other.model_name = "another"
    with pytest.raises(ValueError, match="model was 'scripted' and is 'another'"):
        other.map(["a"], max_tokens=1, resume=frame)


def test_a_frame_that_lost_its_origin_is_refused(gw: Gateway) -> None:
    frame = gw.map(["a"], max_tokens=1)
    bare = pd.DataFrame(frame.to_dict())
    with pytest.raises(ValueError, match="no longer says which run"):
        gw.map(["a"], max_tokens=1, resume=bare)


def test_a_sorted_or_cut_frame_is_matched_by_label(gw: Gateway) -> None:
    data = pd.Series(["a", "b", "c"], index=["x", "y", "z"])
    frame = gw.map(data, max_tokens=2, seed=1)
    before = gw.stats().submitted
    same(gw.map(data, max_tokens=2, resume=frame.sort_index(ascending=False).head(2)), frame)
    assert gw.stats().submitted == before + 1


# ---------------------------------------------------------------- retry


def test_retry_runs_what_failed_and_nothing_else(echo: Callable[..., Gateway]) -> None:
    gateway = echo()
    gateway.map(["a", "FAIL", "b", None], max_tokens=3)
    before = gateway.stats().submitted
    again = gateway.map(["a", "FAIL", "b", None], max_tokens=3, retry="failed")
    assert gateway.stats().submitted == before + 1
    assert again.error.notna().tolist() == [False, True, False, True]


def test_a_later_line_wins(gw: Gateway, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    prompts = ["a", "b"]
    gw.map(prompts, max_tokens=2, save=path)
    head, *lines = rows_in(path)
    lines[0] |= {"error": "it failed once", "finish_reason": "error"}
    path.write_text("\n".join(json.dumps(line) for line in [head, *lines]) + "\n")
    assert gw.map(prompts, max_tokens=2, resume=path).error.notna().sum() == 1
    assert gw.map(prompts, max_tokens=2, resume=path, retry="failed").error.isna().all()
    assert gw.map(prompts, max_tokens=2, resume=path).error.isna().all()
    assert len(rows_in(path)) == 4


# ---------------------------------------------------------------- a gateway that goes away


def test_a_closed_gateway_ends_the_run_with_what_there_was(echo: Callable[..., Gateway]) -> None:
    holder: list[Gateway] = []
    count = 0

    def close_in_the_middle(_row: int, _index: int) -> str:
        nonlocal count
        count += 1
        if count == 9:
            holder[0].close()
        return "x"

    holder.append(echo(rows=1, script=close_in_the_middle))
    with pytest.raises(GatewayClosed) as caught:
        holder[0].map([f"p{i}" for i in range(20)], max_tokens=2)
    frame: pd.DataFrame = caught.value.frame  # type: ignore[attr-defined]
    assert frame.finish_reason.notna().sum() == 4

"""What each benchmark takes from its clock and hands to the harness; no model is run here."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

import mlx_notebook as mn
from benchmarks import first_token, gateway_cost, heartbeat, one_row, report, spinning
from benchmarks.core_cost import LOOP
from benchmarks.harness import Report
from benchmarks.main_thread import BEAT_S, InThread, beat, lateness, spin
from benchmarks.smollm2 import Run, check_same_work
from mlx_notebook.engine.backend import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def after(calls: int) -> Callable[[], bool]:
    counter = itertools.count()
    return lambda: next(counter) >= calls


def test_a_late_beat_is_measured_against_its_own_sleep() -> None:
    now = [100.0]
    delays = iter([0.0, 0.010, 0.0])

    def sleep(seconds: float) -> None:
        now[0] += seconds + next(delays)

    late = beat(after(3), clock=lambda: now[0], sleep=sleep)
    assert late == pytest.approx([0.0, 0.010, 0.0], abs=1e-9)


def test_lateness_in_milliseconds() -> None:
    late = [0.001] * 98 + [0.005, 0.009]
    found = lateness(late)
    assert found["late_p50_ms"] == pytest.approx(1.0)
    assert found["late_max_ms"] == pytest.approx(9.0)
    assert 1.0 < found["late_p99_ms"] <= 9.0


def test_a_beat_really_sleeps() -> None:
    late = beat(after(3))
    assert len(late) == 3
    assert all(value >= 0 for value in late)
    assert BEAT_S > 0


def test_spinning_counts_thousands_of_turns_a_second() -> None:
    clock = iter([10.0, 12.0])
    assert spin(after(6), clock=lambda: next(clock)) == 3.0


def test_a_thread_hands_over_its_value_or_its_error() -> None:
    assert InThread(lambda: {"a": 1.0}).result() == {"a": 1.0}

    def broken() -> dict[str, float]:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        InThread(broken).result()


def test_a_run_gives_its_rates() -> None:
    run = Run(token_ids=tuple(range(11)), began=0.0, first=1.0, last=3.0)
    assert run.measures() == {"first_s": 1.0, "rate": pytest.approx(11 / 3), "decode_rate": 5.0}


def test_different_work_is_not_compared() -> None:
    run = Run((1, 2), 0.0, 1.0, 2.0)
    check_same_work(run, Run((1, 2), 5.0, 6.0, 9.0))
    with pytest.raises(RuntimeError, match="different things"):
        check_same_work(run, Run((1, 3), 0.0, 1.0, 2.0))


def test_every_benchmark_gives_the_lines_that_it_promises() -> None:
    speed = {"rate": 2.0, "decode_rate": 4.0, "turns": 8.0, "from_start_s": 3.0, "cold_s": 1.0, "warm_s": 0.5}
    sample = speed | {"late_p50_ms": 0.1, "late_p99_ms": 0.7}

    def samples(*names: str) -> dict[str, list[dict[str, float]]]:
        return {name: [sample, sample] for name in names}

    (whole, decode) = one_row.lines(samples("gateway", one_row.PEER))
    assert (whole.bar, whole.met, decode.bar) == (0.97, True, None)
    first = first_token.lines(samples("gateway", first_token.PEER))
    assert [line.more_is_better for line in first] == [False] * 3
    assert len(heartbeat.lines(samples("gateway", heartbeat.PEER, heartbeat.REST))) == 3
    cases = samples("spinning", spinning.WAITING, spinning.PEER, spinning.PEER_WAITING, spinning.ALONE)
    assert [line.ratio.median for line in spinning.lines(cases)] == [1.0] * 4


def test_a_report_shows_ratios_and_no_absolute_figure(tmp_path: Path) -> None:
    samples = {"gateway": [{"rate": 777.0, "decode_rate": 1.0}], one_row.PEER: [{"rate": 700.0, "decode_rate": 1.0}]}
    Report("one_row", "Speed", one_row.lines(samples), samples).save(tmp_path)
    (tmp_path / "exits.json").write_text(json.dumps({"runs": 50}))
    text = report.section(report.read(tmp_path))
    assert "1.11" in text
    assert "≥ 0.97" in text
    assert "777" not in text
    assert text.count("###") == 1


def test_a_report_replaces_what_stands_between_its_marks() -> None:
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    new = report.replaced(text, "new")
    assert new == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    assert report.replaced(new, "new") == new
    with pytest.raises(ValueError, match="marks"):
        report.replaced("no marks", "new")


def test_the_documents_show_the_results_that_are_kept() -> None:
    for document in report.DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        assert report.replaced(text, report.section(report.read())) == text


def test_the_gateway_alone_is_timed_over_all_of_its_tokens() -> None:
    samples = gateway_cost.measured(1, rows=(1, 3), tokens=24)
    lines = gateway_cost.lines(samples, rows=(1, 3))
    assert [line.what for line in lines] == ["a token of 1 row", "a token of 3 rows"]
    assert all(line.ours.median > 0 and line.peer == LOOP for line in lines)
    assert gateway_cost.backend_alone(3, 24) > 0


def test_the_gateway_alone_is_not_timed_over_rows_that_run_one_after_the_other() -> None:
    with (
        mn.Gateway.from_backend(ScriptedBackend(), batch=3) as gateway,
        pytest.raises(RuntimeError, match="one after the other"),
    ):
        gateway_cost.whole(gateway, 3, 24)

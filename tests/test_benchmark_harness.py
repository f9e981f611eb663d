"""The harness gives every case the same chances, and keeps what it saw."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import environment
from benchmarks.harness import Report, compare, finish, interleave, keep_record, markdown_table, orders

if TYPE_CHECKING:
    from pathlib import Path


def scripted_samples() -> dict[str, list[dict[str, float]]]:
    return {
        "ours": [{"rate": 9.0}, {"rate": 18.0}, {"rate": 27.0}],
        "peer": [{"rate": 10.0}, {"rate": 20.0}, {"rate": 30.0}],
    }


def scripted_report(bar: float | None, *, more_is_better: bool = True) -> Report:
    samples = scripted_samples()
    line = compare(
        samples, "rate", ours="ours", theirs="peer", what="speed", unit="1/s", bar=bar, more_is_better=more_is_better
    )
    return Report("sample", "A sample", [line], samples, {"rows": 1})


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_case_comes_first_equally_often(count: int) -> None:
    names = [f"case {index}" for index in range(count)]
    seen = list(orders(names, 2 * count))
    assert all(sorted(order) == names for order in seen)
    firsts = [order[0] for order in seen]
    assert {name: firsts.count(name) for name in names} == dict.fromkeys(names, 2)


def test_rounds_are_interleaved_and_the_warmup_is_thrown_away() -> None:
    calls: list[str] = []

    def case(name: str) -> dict[str, float]:
        calls.append(name)
        return {"call": float(len(calls))}

    said: list[str] = []
    samples = interleave({"a": lambda: case("a"), "b": lambda: case("b")}, rounds=2, warmup=1, progress=said.append)
    assert [sorted(calls[index : index + 2]) for index in (0, 2, 4)] == [["a", "b"]] * 3
    assert sorted(sample["call"] for case in samples.values() for sample in case) == [3.0, 4.0, 5.0, 6.0]
    assert said == ["round 1 of 3 (warm-up)", "round 2 of 3", "round 3 of 3"]


@pytest.mark.parametrize(
    ("bar", "more_is_better", "met", "status"),
    [
        (0.8, True, True, 0),
        (0.97, True, False, 1),
        (0.97, False, True, 0),
        (0.8, False, False, 1),
        (None, True, None, 0),
    ],
)
def test_a_missed_bar_shows_in_table_and_exit_status(
    bar: float | None, more_is_better: bool, met: bool | None, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report = scripted_report(bar, more_is_better=more_is_better)
    assert report.lines[0].met is met
    assert finish(report, keep=False) == status
    shown = capsys.readouterr().out
    assert ("MISSED" in shown) == (met is False)
    assert "0.9 (0.9 to 0.9)" in shown


def test_what_is_kept_can_be_read_again(tmp_path: Path) -> None:
    path = scripted_report(0.97).save(tmp_path)
    kept = json.loads(path.read_text())
    assert path.name == "sample.json"
    assert kept["samples"] == scripted_samples()
    assert kept["settings"] == {"rows": 1}
    assert kept["lines"][0]["ratio"]["median"] == pytest.approx(0.9)
    assert kept["lines"][0]["met"] is False
    assert {"date", "commit", "python", "cpu", "cores", "blas", "packages"} <= kept["environment"].keys()


def test_a_record_of_a_day_is_kept_under_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = environment.record()
    keep_record("ends", "How they ended", where, {"clean": 3}, tmp_path / "new")
    path = tmp_path / "new" / f"ends-{where['date'][:10]}.json"
    assert capsys.readouterr().out == f"kept in {path}\n"
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told == {"name": "ends", "title": "How they ended", "environment": where, "clean": 3}


def test_the_environment_names_versions_but_no_host() -> None:
    import platform

    seen = environment.record()
    assert seen["packages"]["mlx-notebook"]
    assert seen["cores"] >= 1
    assert platform.node() not in json.dumps(seen["system"])


def test_a_table_has_even_columns() -> None:
    table = markdown_table([["", "a"], ["long name", "1"]])
    assert len({len(line) for line in table.splitlines()}) == 1
    assert table.splitlines()[1] == "|-----------|---|"

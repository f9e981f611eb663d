"""Runs things beside each other, and keeps what came out: a table for the reader, a JSON for later.

Each benchmark is a module with one command (`python -m benchmarks.one_row`). The harness interleaves
its cases, changes their order every round, and leaves judging to the pairs' ratios.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environment
from benchmarks.stats import paired_ratio, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.stats import Ratio, Spread

RESULTS = Path(__file__).parent / "results"

Samples = dict[str, list[dict[str, float]]]


def orders(names: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """The order of each round: rotated, and reversed every other time, so that no case always comes first."""
    for index in range(rounds):
        turn = index // 2 % len(names)
        rotated = [*names[turn:], *names[:turn]]
        yield rotated[::-1] if index % 2 else rotated


def interleave(
    cases: Mapping[str, Callable[[], dict[str, float]]],
    *,
    rounds: int,
    warmup: int = 1,
    progress: Callable[[str], None] = print,
) -> Samples:
    """Run every case once a round and collect what each returns: its measurements by name.

    The first `warmup` rounds are run and thrown away (first shapes, first pages, caches).
    """
    samples: Samples = {name: [] for name in cases}
    for index, order in enumerate(orders(list(cases), rounds + warmup)):
        for name in order:
            measured = cases[name]()
            if index >= warmup:
                samples[name].append(measured)
        progress(f"round {index + 1} of {rounds + warmup}{' (warm-up)' if index < warmup else ''}")
    return samples


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison of the table.

    Attributes:
        what: the measured thing, for the reader.
        unit: of the two spreads.
        ours: ours over the rounds.
        theirs: the peer's, or the baseline's.
        peer: who that is.
        ratio: ours over theirs, by pairs.
        bar: what the ratio has to reach, if there is such a claim.
        more_is_better: which side of the bar is the good one.
    """

    what: str
    unit: str
    ours: Spread
    theirs: Spread
    peer: str
    ratio: Ratio
    bar: float | None = None
    more_is_better: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the median ratio reaches the bar; None without one."""
        if self.bar is None:
            return None
        return self.ratio.median >= self.bar if self.more_is_better else self.ratio.median <= self.bar


def compare(
    samples: Samples,
    measure: str,
    *,
    ours: str,
    theirs: str,
    what: str,
    unit: str,
    bar: float | None = None,
    more_is_better: bool = True,
) -> Line:
    """The line that sets `measure` of the case `ours` beside that of `theirs`."""
    mine = [sample[measure] for sample in samples[ours]]
    others = [sample[measure] for sample in samples[theirs]]
    return Line(what, unit, spread(mine), spread(others), theirs, paired_ratio(mine, others), bar, more_is_better)


@dataclass(frozen=True, slots=True)
class Report:
    """A benchmark's outcome: what `show` prints and `save` keeps.

    Attributes:
        name: the module's, and the file's.
        title: one line for the reader.
        lines: the comparisons.
        samples: every measurement, by case and round.
        settings: what was run: model, prompt and output lengths.
    """

    name: str
    title: str
    lines: list[Line]
    samples: Samples
    settings: dict[str, Any] = field(default_factory=dict)

    def show(self) -> str:
        """A Markdown table."""
        head = ["", "unit", "ours", "beside", "", "ratio (95%)", "bar"]
        return f"{self.title}\n\n{markdown_table([head, *map(_cells, self.lines)])}"

    def save(self, folder: Path = RESULTS) -> Path:
        """Write `<name>.json` with the environment; history is in the repository."""
        kept = {"environment": environment.record(), **asdict(self)}
        for line, source in zip(kept["lines"], self.lines, strict=True):
            line["met"] = source.met
        return write_result(self.name, kept, folder)


def write_result(file_name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result as `<file_name>.json`; where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def keep_record(
    name: str, title: str, where: Mapping[str, Any], found: Mapping[str, Any], folder: Path = RESULTS
) -> None:
    """Keep what is no comparison but the record of a day: `<name>-<date>.json`, with the machine it was made on."""
    day = where["date"][:10]
    kept = write_result(f"{name}-{day}", {"name": name, "title": title, "environment": where, **found}, folder)
    print(f"kept in {kept}")


def finish(report: Report, *, keep: bool) -> int:
    """Print the table, keep the JSON if asked, and give the exit status: 1 when a bar was missed."""
    print(f"\n{report.show()}")
    if keep:
        print(f"\nkept in {report.save()}")
    return int(any(line.met is False for line in report.lines))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table with even columns; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cells(line: Line) -> list[str]:
    ratio = f"{line.ratio.median:.3g} ({line.ratio.low:.3g} to {line.ratio.high:.3g})"
    return [line.what, line.unit, _spread(line.ours), _spread(line.theirs), line.peer, ratio, _bar(line)]


def _spread(value: Spread) -> str:
    return f"{value.median:.3g} ({value.low:.3g} to {value.high:.3g})"


def _bar(line: Line) -> str:
    if line.bar is None:
        return ""
    return f"{'at least' if line.more_is_better else 'at most'} {line.bar:g}: {'met' if line.met else 'MISSED'}"

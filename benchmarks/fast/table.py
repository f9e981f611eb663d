"""One table as it comes to be: every line is told as soon as it is known, and kept."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from benchmarks.harness import Report, compare, interleave

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.work import Timed, Work
    from benchmarks.harness import Line, Samples

OURS = "ours"


class Table:
    """Lines and samples of one table for one shape.

    Args:
        name: the table's.
        title: for the reader; the shape's is added.
        loaded: the model.
        work: the sizes.
        folder: where it is kept, None for nowhere.
    """

    def __init__(self, name: str, title: str, loaded: Loaded, work: Work, folder: Path | None) -> None:
        settings = {
            "table": name,
            "shape": loaded.name,
            "model": loaded.shape.title,
            "device": device(),
            "command": command(),
            **asdict(work),
        }
        self.name = name
        self.report = Report(f"fast_{name}_{loaded.name}", f"{title}: {loaded.shape.title}", [], {}, settings)
        self._folder = folder

    @property
    def lines(self) -> list[Line]:
        """What is known so far."""
        return self.report.lines

    @property
    def samples(self) -> Samples:
        """What was measured so far."""
        return self.report.samples

    def measure(self, cases: Mapping[str, Timed], rounds: int, warmup: int = 1) -> None:
        """Run the cases in turn; what they return is kept under their names."""
        self.report.samples.update(interleave(cases, rounds=rounds, warmup=warmup, progress=lambda _text: None))

    def line(self, measure: str, ours: str, theirs: str, what: str, unit: str, **how: Any) -> Line:
        """Compare two cases; tell and keep."""
        found = compare(self.report.samples, measure, ours=ours, theirs=theirs, what=what, unit=unit, **how)
        found = replace(found, peer=theirs.partition(", ")[0])  # how many rows it had stands in `what`
        self.report.lines.append(found)
        bar = "" if found.bar is None else f", bar {found.bar:g} {'met' if found.met else 'MISSED'}"
        print(
            f"{self.report.settings['shape']} {self.name}: {what}: {found.ours.median:.4g} {unit}, {found.peer} "
            f"{found.theirs.median:.4g}, ratio {found.ratio.median:.3f} "
            f"({found.ratio.low:.3f} to {found.ratio.high:.3f}){bar}",
            flush=True,
        )
        self.keep()
        return found

    def keep(self) -> None:
        """Write what there is."""
        if self._folder is not None and self.report.lines:
            self.report.save(self._folder)


def device() -> str:
    """What MLX computes on."""
    info = mx.device_info()
    named = [str(info[key]) for key in ("device_name", "architecture") if key in info]
    return ", ".join([mx.default_device().type.name.upper(), *named])


def command() -> str:
    """How this was started, without the folder of the checkout."""
    words = sys.argv[1:]
    if "--to" in words:  # where it was kept says nothing
        at = words.index("--to")
        del words[at : at + 2]
    return " ".join(["python -m benchmarks.fast", *words])

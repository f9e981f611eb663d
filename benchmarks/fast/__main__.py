"""The command: `python -m benchmarks.fast TABLE [TABLE ...] --shape SHAPE`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fast.shapes import SHAPES
from benchmarks.fast.sides import Sides
from benchmarks.fast.table import Table
from benchmarks.fast.tables import LETTERS, TABLES, named_by
from benchmarks.fast.work import Work
from benchmarks.harness import RESULTS, markdown_table

if TYPE_CHECKING:
    from collections.abc import Sequence

MISSED, FAILED = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the tables in turn over one model, print, keep; the exit status says whether bars were missed."""
    options = _parser().parse_args(arguments)
    work = Work(**{field.name: getattr(options, field.name) for field in fields(Work)})
    folder = None if options.no_keep else options.to
    return measure(named_by(options.tables), options.shape, work, folder)


def measure(names: Sequence[str], shape: str, work: Work, folder: Path | None) -> int:
    """Those tables, one after the other; a table that fails does not keep the others from being measured."""
    sides = Sides(shape)
    status = 0
    try:
        for name in names:
            title, function = TABLES[name]
            table, began = Table(name, title, sides.loaded, work, folder), time.perf_counter()
            try:
                function(table, sides, work)
            except Exception:  # noqa: BLE001 - on a lent machine the other tables have no second chance
                traceback.print_exc()
                status = FAILED
            status = max(status, int(any(line.met is False for line in table.lines)))
            if table.lines:
                print(f"\n{table.report.show()}")
            print(f"\n{shape} {name}: {time.perf_counter() - began:.1f} s\n", flush=True)
    finally:
        sides.close()
    return status


def _parser() -> argparse.ArgumentParser:
    known = markdown_table([["letter", "tables"], *([letter, ", ".join(names)] for letter, names in LETTERS.items())])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fast",
        description=__doc__,
        epilog=known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", choices=[*LETTERS, *TABLES], metavar="TABLE", help="letters or names")
    parser.add_argument("--shape", default="tiny", choices=list(SHAPES))
    parser.add_argument("--rows", type=_counts, default=None, help="rows or requests at once: 1,8,32")
    for field in fields(Work):
        if field.name != "rows":
            kind = float if isinstance(field.default, float) else int
            parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    parser.add_argument("--no-keep", action="store_true", help="print only")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the folder where results are kept")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


if __name__ == "__main__":
    sys.exit(main())

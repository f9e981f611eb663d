"""The full run of how processes with a live gateway end: `python -m benchmarks.lifecycle`.

Not a speed: a count of clean ends, each way of ending tried many times. Keeps
`results/lifecycle-<date>.json` with the machine's description; the exit status says whether all were clean.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks import environment
from benchmarks.harness import keep_record
from tests.lifecycle.running import MODES, End, run_child, run_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator


def ends(runs: int) -> Iterator[End]:
    """Every way of ending `runs` times, in rounds, so that a machine's bad hour meets all of them."""
    for _ in range(runs):
        for mode in MODES:
            yield run_child(mode)
        yield from run_kernel()


def main() -> int:
    """Run, print a line for each way of ending, keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="how often each way of ending is tried")
    parser.add_argument("--no-keep", action="store_true", help="only print")
    options = parser.parse_args()
    from mlx_notebook.models.backend_check import import_mlx

    import_mlx()  # so that the record says which BLAS the children use, too
    where = environment.record()
    tried: Counter[str] = Counter()
    clean: Counter[str] = Counter()
    problems: list[dict[str, object]] = []
    for end in ends(options.runs):
        tried[end.what] += 1
        clean[end.what] += not end.problems
        if end.problems:
            problems.append({"what": end.what, "try": tried[end.what], "problems": list(end.problems)})
            print(f"NOT CLEAN: {end.what}: {end.problems}", flush=True)
    for what, count in tried.items():
        print(f"{what:24} {clean[what]} of {count} clean")
    if not options.no_keep:
        found = {
            "ends": {what: {"tried": count, "clean": clean[what]} for what, count in tried.items()},
            "problems": problems,
        }
        keep_record("lifecycle", "Processes with a live gateway that ended cleanly", where, found)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""(j) A decode step as the number of rows doubles, and as their lengths double."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.fast.steps import PEER, named, ours_steps, peer_steps
from benchmarks.fast.table import OURS

if TYPE_CHECKING:
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Timed, Work

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
LONG_ROWS = 8


def growth(table: Table, sides: Sides, work: Work) -> None:
    """Rows first, all of one length; then a few rows, longer and longer."""
    sizes = [(rows, work.prompt) for rows in work.rows_or(*ROWS)]
    few = min(LONG_ROWS, max(rows for rows, _ in sizes))
    sizes += [(few, length) for length in doubled(work.prompt, work.grown)]

    with sides.served("native") as (ours,):
        for rows, length in dict.fromkeys(sizes):
            about = f"{named('', rows)} of {length:,}"
            cases: dict[str, Timed] = {
                f"{OURS}, {about}": ours_steps(ours, sides.loaded, [length] * rows, work.steps),
                f"{PEER}, {about}": peer_steps(sides.loaded, [length] * rows, work.steps),
            }
            table.measure(cases, work.rounds)
            cases.clear()
            ours.drop(rows)
            what = f"decode step, {about} tokens"
            table.line("step", f"{OURS}, {about}", f"{PEER}, {about}", what=what, unit="ms", more_is_better=False)


def doubled(start: int, end: int) -> list[int]:
    """Start, twice that, and so on up to `end`."""
    found = [start]
    while found[-1] * 2 <= end:
        found.append(found[-1] * 2)
    return found

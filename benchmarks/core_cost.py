"""What deciding a step costs, without a model: `python -m benchmarks.core_cost`.

The scheduler, its ring and its decision log run as in an engine; nothing is computed. Beside them stands a loop in
plain Python that does a thousand look-ups, additions and stores, so that the figure means something elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Report, compare, finish, interleave
from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.placement import Capabilities, resolve
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.ring import Ring
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = (1, 32, 512)
STEPS = 200
LOOP = "a thousand turns of plain Python"
TARGET_US = {32: 150, 512: 2000}
WAITING = 10_000
"""Rows in the line, as many as a gateway lets wait; beside 32 that write."""

CROWDS = ("the batch is full", "the next does not fit", "one joins at each step")


class Bench:
    """A scheduler with `rows` rows that write, each for longer than anybody measures."""

    def __init__(self, rows: int, settings: SchedulerSettings | None = None) -> None:
        self.scheduler = Scheduler(settings or SchedulerSettings(max_rows=rows), Ring())
        self.decisions = DecisionLog()
        self.outcomes = tuple(ev.RowOutcome(row, 7, "x") for row in range(1, rows + 1))
        capabilities = Capabilities(vocab_size=100, continuous=True, max_rows=rows)
        shape = RequestShape((1, 2, 3), SamplingOptions(max_tokens=1 << 30))
        self.placement = resolve(shape, capabilities, 0)
        for row in range(1, rows + 1):
            self.tell(ev.Submitted(0, 0, Request(row, shape), self.placement))
        self.tell(ev.LeaseGranted(0, 0))
        while any(row.status != "decode" for row in self.scheduler.rows.values()):
            self.step()

    def tell(self, event: ev.Event) -> list[ev.Instruction]:
        """One event, recorded and decided."""
        self.decisions.add(event)
        return self.scheduler.handle(event)

    def step(self) -> None:
        """A turn, and what the device would answer to it."""
        now = time.monotonic_ns()
        for instruction in self.tell(ev.Turn(now)):
            if isinstance(instruction, ev.Prefill):
                self.tell(ev.PrefillDone(now, now, instruction.parts, {}))
            elif isinstance(instruction, ev.Decode):
                self.tell(ev.StepDone(now, now, self.outcomes_of(instruction.row_ids)))

    def outcomes_of(self, ids: tuple[int, ...]) -> tuple[ev.RowOutcome, ...]:
        """What a step gives these rows."""
        everybody = len(ids) == len(self.outcomes)
        return self.outcomes if everybody else tuple(self.outcomes[row - 1] for row in ids)


class Crowd(Bench):
    """The same with WAITING rows behind them; `how` is one of CROWDS."""

    def __init__(self, how: str, rows: int = 32) -> None:
        full, blocked, self.joining = (how == one for one in CROWDS)
        cost = CacheCost(1) if blocked else CacheCost()
        settings = SchedulerSettings(max_rows=rows + (not full), cost=cost, context_length=BLOCK, budget=rows * BLOCK)
        if self.joining:
            settings = SchedulerSettings(max_rows=rows)
        super().__init__(rows, settings)
        self.rows = rows
        self.next = rows + 1
        self.told = dict(enumerate(self.outcomes, 1))
        for _ in range(WAITING):
            self.come()

    def come(self) -> None:
        """One more in the line."""
        shape = RequestShape((1, 2, 3), SamplingOptions(max_tokens=1 << 30))
        self.tell(ev.Submitted(0, 0, Request(self.next, shape), self.placement))
        self.told[self.next] = ev.RowOutcome(self.next, 7, "x")
        self.next += 1

    def outcomes_of(self, ids: tuple[int, ...]) -> tuple[ev.RowOutcome, ...]:
        """What a step gives these rows; where one joins, the oldest of the batch ends and another comes."""
        outcomes = [self.told[row] for row in ids]
        if self.joining and len(ids) == self.rows:
            outcomes[0] = outcomes[0]._replace(finish=(FinishReason.LENGTH, FinishDetail.MAX_TOKENS))
            self.come()
        return tuple(outcomes)


def us_a_call(call: Callable[[], None], calls: int) -> float:
    """Microseconds that one call takes, over `calls` of them."""
    began = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - began) / calls / 1000


def calibrated_loop() -> None:
    """The yardstick."""
    table = {index: index for index in range(10)}
    for index in range(1000):
        table[index % 10] += index


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-keep", action="store_true")
    options = parser.parse_args()
    benches: dict[str, Bench] = {f"{rows} rows": Bench(rows) for rows in ROWS}
    benches |= {f"{WAITING:,} waiting, {how}": Crowd(how) for how in CROWDS}
    figures = dict(zip(benches, (*map(str, ROWS), *CROWDS), strict=True))

    def loop() -> dict[str, float]:
        return dict.fromkeys(figures.values(), us_a_call(calibrated_loop, STEPS))

    def ours(name: str) -> dict[str, float]:
        return {figures[name]: us_a_call(benches[name].step, STEPS)}

    cases = {name: partial(ours, name) for name in benches}
    samples = interleave({**cases, LOOP: loop}, rounds=options.rounds)
    lines = [
        compare(
            samples,
            str(rows),
            ours=f"{rows} rows",
            theirs=LOOP,
            what=f"a step of {rows} {'row' if rows == 1 else 'rows'}",
            unit="µs",
            more_is_better=False,
        )
        for rows in ROWS
    ]
    lines += [
        compare(
            samples,
            how,
            ours=f"{WAITING:,} waiting, {how}",
            theirs=LOOP,
            what=f"a step of 32 rows, {WAITING:,} waiting: {how}",
            unit="µs",
            more_is_better=False,
        )
        for how in CROWDS
    ]
    settings = {"steps a round": STEPS, "targets (µs)": {str(rows): most for rows, most in TARGET_US.items()}}
    return finish(Report("core_cost", "What deciding a step costs", lines, samples, settings), keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

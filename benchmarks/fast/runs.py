"""(b) Whole runs: all requests there at once; and (c) the same with prompts of mixed lengths."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.fast.peers import GENERATE, GENERATOR, run_generate, run_generator
from benchmarks.fast.steps import named
from benchmarks.fast.table import OURS
from benchmarks.fast.work import GREEDY, checked, log_spaced, prompt, shuffled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Timed, Work
    from mlx_notebook import Gateway

BARS = {32: 4.0, 128: 3.0}


def run_ours(gateway: Gateway, prompts: Sequence[list[int]], answer: int) -> dict[str, float]:
    """All prompts at once through the gateway: tokens a second from asking to the last result."""
    began = time.perf_counter()
    handles = gateway.submit(list(prompts), max_tokens=answer, **GREEDY)
    counts = [result.generated_tokens for result in handles.results()]
    spent = time.perf_counter() - began
    return {"rate": checked(counts, answer, OURS) / spent, "seconds": spent}


def runs(table: Table, sides: Sides, work: Work) -> None:
    """Requests of equal length, all at once, beside both of mlx-lm's ways."""
    counts = work.rows_or(8, 32, 128)
    sides.gateway(max(counts))  # one for all of them
    for rows in counts:
        prompts = [prompt(number, work.prompt, sides.loaded.vocab) for number in range(rows)]
        _measure(table, sides, work, prompts, named("", rows))
        what = f"{rows} requests of {work.prompt}+{work.answer}, all at once"
        bar = BARS.get(rows) if sides.loaded.shape.bars else None
        for peer in (GENERATOR, GENERATE):
            ours, theirs = named(OURS, rows), named(peer, rows)
            table.line("rate", ours, theirs, what=what, unit="tokens/s", bar=bar if peer == GENERATOR else None)


def mixed(table: Table, sides: Sides, work: Work) -> None:
    """Prompts from short to long, the same factor between one and the next, in an order that helps nobody."""
    count = work.rows_or(work.requests)[-1]
    lengths = shuffled(log_spaced(work.shortest, work.longest, count))
    prompts = [prompt(number, length, sides.loaded.vocab) for number, length in enumerate(lengths)]
    _measure(table, sides, work, prompts, "mixed")
    what = f"{count} requests of {work.shortest} to {work.longest:,} tokens, +{work.answer}"
    for peer in (GENERATOR, GENERATE):
        table.line("rate", f"{OURS}, mixed", f"{peer}, mixed", what=what, unit="tokens/s")


def _measure(table: Table, sides: Sides, work: Work, prompts: list[list[int]], which: str) -> None:
    gateway = sides.gateway(len(prompts))
    cases: dict[str, Timed] = {
        f"{OURS}, {which}": partial(run_ours, gateway, prompts, work.answer),
        f"{GENERATOR}, {which}": sides.peer(partial(run_generator, sides.loaded, prompts, work.answer)),
        f"{GENERATE}, {which}": sides.peer(partial(run_generate, sides.loaded, prompts, work.answer)),
    }
    table.measure(cases, work.rounds)

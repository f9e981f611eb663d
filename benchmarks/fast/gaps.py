"""(d) A long prompt joins a full batch: how long a row that writes waits between two of its tokens.

Clocks are read where tokens are made, on both sides.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.fast.peers import GENERATOR, generator_of
from benchmarks.fast.table import OURS
from benchmarks.fast.work import GREEDY, prompt
from benchmarks.joining import gaps_of
from benchmarks.stats import quantile
from mlx_notebook.core.chunks import TARGET_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Timed, Work
    from mlx_notebook import Gateway

ROWS, BEFORE, ENDLESS = 32, 48, 4_000
LIMIT = "target and two steps"
JOINER = 10_000  # its number: no row of the batch has it


def gaps(table: Table, sides: Sides, work: Work) -> None:
    """The 99th percentile and the worst, beside what ours promises and beside the peer."""
    rows = work.rows_or(ROWS)[-1]
    gateway = sides.gateway(rows)
    cases: dict[str, Timed] = {
        OURS: partial(ours_gaps, gateway, sides.loaded, rows, work),
        GENERATOR: sides.peer(partial(peer_gaps, sides.loaded, rows, work)),
    }
    table.measure(cases, work.rounds)
    table.samples[LIMIT] = [{"p99": TARGET_NS / 1e6 + 2 * sample["normal"]} for sample in table.samples[OURS]]
    what = f"gap while {work.joiner:,} tokens join {rows - 1} rows"
    table.line("p99", OURS, LIMIT, what=f"p99 {what}", unit="ms", bar=1.0, more_is_better=False)
    for measure, label in (("p99", "p99"), ("worst", "worst")):
        table.line(measure, OURS, GENERATOR, what=f"{label} {what}", unit="ms", more_is_better=False)


def figures(before: Sequence[float], within: Sequence[float]) -> dict[str, float]:
    """Milliseconds: a normal gap, and those of the joining."""
    found = gaps_of(list(within))
    normal = statistics.median(gaps_of(list(before)))
    return {
        "p99": 1e3 * quantile(found, 0.99),
        "worst": 1e3 * max(found),
        "normal": 1e3 * normal,
        "gaps": float(len(found)),
    }


def ours_gaps(gateway: Gateway, loaded: Loaded, rows: int, work: Work) -> dict[str, float]:
    """Through the gateway, from asking for the long row to its first token."""
    times: list[float] = []
    shorts = [prompt(number, work.prompt, loaded.vocab) for number in range(rows - 1)]
    running = [gateway.submit(ids, max_tokens=ENDLESS, **GREEDY) for ids in shorts[1:]]
    running.append(
        gateway.submit(shorts[0], max_tokens=ENDLESS, on_token=lambda *_: times.append(time.perf_counter()), **GREEDY)
    )
    while len(times) < BEFORE and not running[-1].done():
        time.sleep(0.002)
    asked = time.perf_counter()
    gateway.submit(prompt(JOINER, work.joiner, loaded.vocab), max_tokens=1, **GREEDY).result()
    ended = time.perf_counter()
    still = sum(not handle.done() for handle in running)
    for handle in running:
        handle.cancel()
    gateway.wait_idle()
    if still < rows - 1:
        raise RuntimeError(f"{rows - 1 - still} of the running rows ended before the long prompt had joined")
    last = max(at for at in times if at <= asked)  # what they wait for began there
    return figures(times[BEFORE // 2 : BEFORE], [at for at in times if last <= at <= ended])


def peer_gaps(loaded: Loaded, rows: int, work: Work) -> dict[str, float]:
    """The same in `BatchGenerator`."""
    generator = generator_of(loaded, rows, ENDLESS)
    shorts = [prompt(number, work.prompt, loaded.vocab) for number in range(rows - 1)]
    watched = generator.insert(shorts)[0]
    while len(generator.next()[1]) < rows - 1:
        pass
    before = []
    for _ in range(BEFORE // 2):
        generator.next()
        before.append(time.perf_counter())
    times = [before[-1]]
    (joiner,) = generator.insert([prompt(JOINER, work.joiner, loaded.vocab)], max_tokens=[1])
    seen: set[int] = set()
    while joiner not in seen:
        seen = {response.uid for response in generator.next()[1]}
        if watched in seen:
            times.append(time.perf_counter())
    generator.close()
    return figures(before, times)

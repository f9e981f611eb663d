"""(f) Requests that share a long beginning: whole runs, the beginning known from before, and seen for the first time.

`BatchGenerator` keeps nothing by itself. It is measured so, and with what a user can do by hand: compute the
beginning once and insert the rest of each prompt with that cache. It copies the cache when it makes its batch.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from benchmarks.fast.first import cache_of
from benchmarks.fast.peers import GENERATOR, run_generator
from benchmarks.fast.table import OURS
from benchmarks.fast.work import checked, prompt

if TYPE_CHECKING:
    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work
    from mlx_notebook import Gateway

OWN = 32
BY_HAND = f"{GENERATOR} with a cache made by hand"
SHARED = 7_000  # numbers of beginnings; no other table counts so far


def shared(table: Table, sides: Sides, work: Work) -> None:
    """Tokens of the answers a second."""
    rows = work.rows_or(work.requests)[-1]
    loaded, fresh = sides.loaded, itertools.count(SHARED)
    table.measure(
        {
            f"{OURS}, known": lambda: run_known(sides.gateway(rows), loaded, next(fresh), rows, work),
            f"{BY_HAND}, known": sides.peer(lambda: by_hand(loaded, next(fresh), rows, work, known=True)),
        },
        work.rounds,
    )
    what = f"{rows} requests of {work.shared:,} shared and {OWN} own tokens, +{work.answer}"
    table.line("rate", f"{OURS}, known", f"{BY_HAND}, known", what=f"{what}, known before", unit="tokens/s")
    table.measure(
        {
            f"{OURS}, new": lambda: run_shared(sides.gateway(rows), loaded, next(fresh), rows, work),
            f"{GENERATOR}, new": sides.peer(
                lambda: run_generator(loaded, prompts_of(loaded, next(fresh), rows, work), work.answer)
            ),
            f"{BY_HAND}, new": sides.peer(lambda: by_hand(loaded, next(fresh), rows, work, known=False)),
        },
        work.rounds,
    )
    for peer in (GENERATOR, BY_HAND):
        table.line("rate", f"{OURS}, new", f"{peer}, new", what=f"{what}, seen first", unit="tokens/s")


def prompts_of(loaded: Loaded, number: int, rows: int, work: Work) -> list[list[int]]:
    """A beginning of its own for each number, and for each row an end of its own."""
    beginning = prompt(number, work.shared, loaded.vocab)
    return [[*beginning, *prompt(row, OWN, loaded.vocab)] for row in range(rows)]


def run_shared(gateway: Gateway, loaded: Loaded, number: int, rows: int, work: Work) -> dict[str, float]:
    """All at once through the gateway, which may keep and reuse what it likes."""
    prompts = prompts_of(loaded, number, rows, work)
    began = time.perf_counter()
    results = gateway.submit(prompts, max_tokens=work.answer, temperature=0.0).results()
    spent = time.perf_counter() - began
    made = checked([result.generated_tokens for result in results], work.answer, OURS)
    return {"rate": made / spent, "cached": float(sum(result.cached_tokens for result in results))}


def run_known(gateway: Gateway, loaded: Loaded, number: int, rows: int, work: Work) -> dict[str, float]:
    """The same, after a request that was the beginning alone."""
    gateway.submit(prompt(number, work.shared, loaded.vocab), max_tokens=1, temperature=0.0).result()
    measured = run_shared(gateway, loaded, number, rows, work)
    checked([int(measured["cached"])], rows * work.shared, f"{OURS}, tokens from the cache")
    return measured


def by_hand(loaded: Loaded, number: int, rows: int, work: Work, *, known: bool) -> dict[str, float]:
    """`BatchGenerator` going on from one cache of the beginning; making it counts unless it is known."""
    prompts = prompts_of(loaded, number, rows, work)
    began = time.perf_counter()
    cache = cache_of(loaded, prompts[0][: work.shared])
    making = 0.0 if known else time.perf_counter() - began
    run = run_generator(loaded, [ids[work.shared :] for ids in prompts], work.answer, [cache] * rows)
    return {"rate": rows * work.answer / (run["seconds"] + making)}

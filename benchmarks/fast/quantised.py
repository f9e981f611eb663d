"""(h) Keys and values in 8 and 4 bits: a decode step and the memory held, beside none quantised and beside the peers.

`BatchGenerator` has no quantised caches, so it stands beside with plain ones; `stream_generate` has them for one row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from benchmarks.fast.steps import PEER, named, ours_steps, peer_steps, step_of
from benchmarks.fast.table import OURS
from benchmarks.fast.work import prompt

if TYPE_CHECKING:
    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Served, Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Timed, Work

PLAIN, SCHEMES = "native", {"8bit": 8, "4bit": 4}
SHARE = 4  # prompts are this part of the longest: keys and values must weigh something
ALONE = "stream_generate, so too"


def quantised(table: Table, sides: Sides, work: Work) -> None:
    """Each scheme beside none."""
    length = max(1, work.longest // SHARE)

    with sides.served(PLAIN, *SCHEMES) as found:
        ours = dict(zip((PLAIN, *SCHEMES), found, strict=True))
        for rows in work.rows_or(8, 32):
            _several(table, sides, work, ours, [length] * rows)
        _one(table, sides, work, ours, length)


def _several(table: Table, sides: Sides, work: Work, ours: dict[str, Served], lengths: list[int]) -> None:
    rows = len(lengths)
    cases: dict[str, Timed] = {
        named(scheme, rows): _with_memory(ours_steps(served, sides.loaded, lengths, work.steps), served)
        for scheme, served in ours.items()
    }
    cases[named(PEER, rows)] = peer_steps(sides.loaded, lengths, work.steps)
    table.measure(cases, work.rounds)
    cases.clear()
    for served in ours.values():
        served.drop(rows)
    about = f"{named('', rows)} of {lengths[0]:,} tokens"
    less: dict[str, Any] = {"more_is_better": False}
    for scheme in SCHEMES:
        mine = named(scheme, rows)
        table.line("step", mine, named(PLAIN, rows), what=f"{scheme}, decode step, {about}", unit="ms", **less)
        table.line("held", mine, named(PLAIN, rows), what=f"{scheme}, held, {about}", unit="MB", **less)
        table.line("step", mine, named(PEER, rows), what=f"{scheme}, decode step, {about}", unit="ms", **less)


def _one(table: Table, sides: Sides, work: Work, ours: dict[str, Served], length: int) -> None:
    """One row beside the peer that quantises too, where it can: it does not quantise windows."""
    caches = make_prompt_cache(sides.loaded.model)
    if any(type(cache) is RotatingKVCache for cache in caches):
        print(f"{sides.shape} {table.name}: mlx-lm quantises no windows: nothing to set beside one row", flush=True)
        return
    for scheme, bits in SCHEMES.items():
        mine, theirs = f"{OURS} alone in {scheme}", f"{ALONE}, {scheme}"
        cases: dict[str, Timed] = {
            mine: ours_steps(ours[scheme], sides.loaded, [length], work.steps),
            theirs: alone_steps(sides.loaded, length, work.steps, bits),
        }
        table.measure(cases, work.rounds)
        cases.clear()
        ours[scheme].drop(1)
        what = f"{scheme}, decode step, 1 row of {length:,} tokens"
        table.line("step", mine, theirs, what=what, unit="ms", more_is_better=False)


def _with_memory(timed: Timed, served: Served) -> Timed:
    return lambda: {**timed(), "held": served.backend.held_bytes() / 1e6}


def alone_steps(loaded: Loaded, length: int, steps: int, bits: int) -> Timed:
    """What `stream_generate` runs on, without text; quantised from the first token on."""
    ids = mx.array(prompt(0, length, loaded.vocab))
    tokens = generate_step(ids, loaded.model, max_tokens=-1, kv_bits=bits, quantized_kv_start=0)
    next(tokens)

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        made = sum(1 for _ in zip(range(steps), tokens, strict=False))
        return step_of(made, steps, 1, time.perf_counter() - began, ALONE)

    return timed

"""(e) Time to the first token, as the caller sees it: warm, cold, and where the beginning of the prompt is known.

Both sides are asked for one token and timed till it is there. Cold is a length that nobody has used, for ours the
first request of a new gateway too; the load itself is not counted. Known is a prompt whose state was kept: ours keeps
it by itself, the peer is given a cache that was made for it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx_lm
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.fast.steps import CHUNK
from benchmarks.fast.table import OURS
from benchmarks.fast.work import GREEDY, checked, prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work
    from mlx_notebook import Gateway

PEER = "stream_generate"
ROWS, WARM, TAIL = 32, 5, 16
KNOWN = 5_000  # numbers of prompts whose beginnings are known; no other table counts so far


def first(table: Table, sides: Sides, work: Work) -> None:
    """All three."""
    loaded = sides.loaded
    ids = prompt(0, work.prompt, loaded.vocab)
    gateway = sides.gateway(ROWS)
    table.measure(
        {
            f"{OURS}, warm": partial(_middle, partial(ours_first, gateway, ids)),
            f"{PEER}, warm": sides.peer(partial(_middle, partial(peer_first, loaded, ids))),
        },
        work.rounds,
    )
    _line(table, "warm", f"{work.prompt} tokens, warm")
    new, known = itertools.count(1), itertools.count(KNOWN)
    table.measure(
        {
            f"{OURS}, known": lambda: ours_known(sides.gateway(ROWS), loaded, next(known), work.shared),
            f"{PEER}, known": sides.peer(lambda: peer_known(loaded, next(known), work.shared)),
        },
        work.rounds,
    )
    _line(table, "known", f"{TAIL} tokens after {work.shared:,} known ones")
    table.measure(
        {
            f"{OURS}, cold": lambda: ours_cold(sides, new, work.prompt),
            f"{PEER}, cold": sides.peer(lambda: {"first": peer_first(loaded, _unseen(new, work.prompt, loaded))}),
        },
        work.rounds,
    )
    _line(table, "cold", f"{work.prompt} tokens and some, a new length")


def _line(table: Table, which: str, what: str) -> None:
    table.line("first", f"{OURS}, {which}", f"{PEER}, {which}", what=what, unit="ms", more_is_better=False)


def _middle(once: Any) -> dict[str, float]:
    return {"first": statistics.median(once() for _ in range(WARM))}


def _unseen(new: Iterator[int], length: int, loaded: Loaded) -> list[int]:
    """A prompt a little longer than any that was asked here."""
    return prompt(0, length + next(new), loaded.vocab)


# ------------------------------------------------------------ each side


def ours_first(gateway: Gateway, ids: Sequence[int]) -> float:
    """Milliseconds from asking to having the result of one token."""
    began = time.perf_counter()
    result = gateway.submit(list(ids), max_tokens=1, **GREEDY).result()
    spent = time.perf_counter() - began
    checked([result.generated_tokens], 1, OURS)
    return spent * 1e3


def peer_first(loaded: Loaded, ids: Sequence[int], cache: list[Any] | None = None) -> float:
    """The same through `stream_generate`."""
    began = time.perf_counter()
    answers = mlx_lm.stream_generate(loaded.model, loaded.tokenizer, list(ids), max_tokens=1, prompt_cache=cache)
    counts = [response.generation_tokens for response in answers]
    spent = time.perf_counter() - began
    checked(counts, 1, PEER)
    return spent * 1e3


def ours_cold(sides: Sides, new: Iterator[int], length: int) -> dict[str, float]:
    """The first request of a new gateway."""
    sides.close()
    return {"first": ours_first(sides.gateway(ROWS), _unseen(new, length, sides.loaded))}


def ours_known(gateway: Gateway, loaded: Loaded, number: int, length: int) -> dict[str, float]:
    """A prompt is asked; then, timed, one that goes on from it."""
    ids = prompt(number, length + TAIL, loaded.vocab)
    gateway.submit(ids[:length], max_tokens=1, temperature=0.0).result()
    began = time.perf_counter()
    result = gateway.submit(ids, max_tokens=1, temperature=0.0).result()
    spent = time.perf_counter() - began
    checked([result.generated_tokens, result.cached_tokens - length + 1], 1, OURS)
    return {"first": spent * 1e3}


def peer_known(loaded: Loaded, number: int, length: int) -> dict[str, float]:
    """The same with a prompt cache of the peer's own."""
    ids = prompt(number, length + TAIL, loaded.vocab)
    return {"first": peer_first(loaded, ids[length:], cache_of(loaded, ids[:length]))}


def cache_of(loaded: Loaded, ids: Sequence[int]) -> list[Any]:
    """mlx-lm's caches after these tokens, evaluated."""
    cache: list[Any] = make_prompt_cache(loaded.model)
    for at in range(0, len(ids), CHUNK):
        loaded.model(mx.array([list(ids[at : at + CHUNK])]), cache=cache)
        mx.eval([layer.state for layer in cache])
    return cache

"""Thousands of short requests through one gateway, and what the process holds after every wave of them.

All waves are alike but for their tokens: so whatever is there after each of them, once everything bounded
is full (kept handles, prompt cache, past tenures of the device), should be there in the same number.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx

from mlx_notebook.core import events as ev
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.errors import Cancelled, RowFailed
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.registry import registry
from tests.small_models import SPECIALS, VOCAB, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.handle import Handle

ROWS = 64
PROMPT_CACHE = 1_000_000
KINDS = (
    "greedy",
    "seeded",
    "penalised",
    "logprobs",
    "stops",
    "fails",
    "cut",
    "gives up",
    "late",
    "fresh",
    "watched",
    "shaped",
)
"""What the requests of a wave are, in turn."""
STATUSES = ("finished", "cancelled", "failed")


class Sample(NamedTuple):
    """What there is after so many requests, with nothing running.

    Attributes:
        requests: over by then.
        active_bytes: held by MLX without the prompt cache's entries.
        threads: of the process, those that Python does not know included.
        objects: that the garbage collector knows, without the kept handles'.
        entry_bytes: of the prompt cache, before its entries went.
        kept_handles: reachable by number, before they were let go.
    """

    requests: int
    active_bytes: int
    threads: int
    objects: int
    entry_bytes: int
    kept_handles: int


@dataclass
class Soak:
    """What came of it: how each kind of request ended, what was wrong, and the samples, one number after another."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    figures: array[int] = field(default_factory=lambda: array("q"))  # no object a sample: objects are what is counted
    most_rows: int = 0

    @property
    def samples(self) -> list[Sample]:
        """The samples, first to last."""
        width = len(Sample._fields)
        return [Sample(*self.figures[at : at + width]) for at in range(0, len(self.figures), width)]

    def slope(self, what: str, after: int) -> float:
        """Growth of a sample's figure a request, by least squares, over the samples from `after` requests on."""
        points = [(s.requests, getattr(s, what)) for s in self.samples if s.requests >= after]
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        return float(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)


def soak(requests: int, wave: int, tell: Callable[[Sample], None] = lambda _sample: None) -> Soak:
    """Submit at least so many requests, a wave at a time, each wave all at once; account for every one of them."""
    model, tokenizer = small("llama")
    found = Soak(ends=Counter({f"{kind}: {status}": 0 for kind in KINDS for status in STATUSES}))
    with Gateway.from_loaded(model, tokenizer, batch=ROWS, prompt_cache=PROMPT_CACHE) as gateway:
        for _ in range(device_lease().past.maxlen or 0):
            gateway.run_exclusive(int)
        done = 0
        while done < requests:
            _run_wave(gateway, wave, random.Random(done), found)
            done += wave
            found.figures.extend(sample(gateway, done))
            tell(found.samples[-1])
        found.most_rows = int(_rows_of_steps(gateway).max())
        if matchers.live:
            found.wrong.append(f"{matchers.live} matchers are left")
        counters = gateway._loop.scheduler.counters
        if counters.submitted != done or counters.finished + counters.cancelled + counters.failed != done:
            found.wrong.append(f"{done} requests, but the gateway counted {counters}")
    return found


def _run_wave(gateway: Gateway, wave: int, random: random.Random, found: Soak) -> None:
    told: Counter[int] = Counter()
    rows: list[tuple[str, Handle]] = []
    for number in range(wave):
        kind = KINDS[number % len(KINDS)]
        handle = _ask(gateway, kind, number, random)
        handle.add_done_callback(lambda over: told.update([over.id]))
        rows.append((kind, handle))
        if kind == "cut":
            handle.cancel()
    for kind, handle in rows:
        error = handle.exception()
        if not _is_right(kind, handle, error):
            found.wrong.append(f"{kind}: {handle!r} {error!r}")
        found.ends[f"{kind}: {handle.status}"] += 1
    gateway.wait_idle()
    if told != Counter(handle.id for _, handle in rows):
        found.wrong.append("not every row was told to be over exactly once")


def _ask(gateway: Gateway, kind: str, number: int, random: random.Random) -> Handle:
    prompt = [random.randrange(len(SPECIALS), VOCAB) for _ in range(3 + number % 29)]
    options: dict[str, Any] = {"max_tokens": 1 + number % 7}
    own: list[Handle] = []
    how: dict[str, dict[str, Any]] = {
        "seeded": {"temperature": 0.9, "seed": number, "top_p": 0.95},
        "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
        "logprobs": {"logprobs": 2, "max_tokens": 1},  # one token each time, so that it keeps as many objects
        "stops": {"on_token": lambda *_: False},
        "fails": {"on_token": lambda *_: 1 / 0},
        "gives up": {"on_token": lambda *_: [mine.cancel() for mine in own], "max_tokens": 400},
        "late": {"deadline": 1e-9},
        "fresh": {"cache_prompt": False},
        "watched": {"logits_processors": [lambda _tokens, logits: logits]},
        "shaped": {"regex": "[a-z]+"},
    }
    handle: Handle = gateway.submit(prompt, raw=True, **{**options, **how.get(kind, {})})
    own.append(handle)
    return handle


def _is_right(kind: str, handle: Handle, error: Exception | None) -> bool:
    if kind == "late":
        return isinstance(error, Cancelled)
    if kind in ("cut", "gives up"):
        return error is None or isinstance(error, Cancelled)
    if kind == "fails":  # a token that ends the row is not given to the callback
        return isinstance(error, RowFailed) or (error is None and handle.result().finish_detail == "eos")
    return error is None and 0 < handle.result().generated_tokens <= int(handle.options["max_tokens"])


def _rows_of_steps(gateway: Gateway) -> Any:
    from mlx_notebook.core.ring import Kind

    batch = gateway.events()
    return batch["a"][batch["kind"] == Kind.STEP]


def sample(gateway: Gateway, requests: int) -> tuple[int, ...]:
    """Look, on the engine thread, at rest.

    What is bounded by itself is counted and let go first, so that the rest has to be the same to the byte:
    kept handles, and the prompt cache's entries, whose buffers may be some kilobytes larger than what is in them.
    """
    loop, entry_bytes = gateway._loop, gateway.stats().prompt_cache.bytes
    kept = len(list(registry.handles()))
    registry._handles.clear()
    budget = loop.scheduler.memory.budget
    _set_budget(gateway, 0)

    def look() -> tuple[int, ...]:
        loop.synchronize()
        gc.collect()
        return requests, mx.get_active_memory(), threads(), len(gc.get_objects()), entry_bytes, kept

    looked: tuple[int, ...] = gateway.run_exclusive(look)
    _set_budget(gateway, budget)
    return looked


def _set_budget(gateway: Gateway, nbytes: int) -> None:
    """As the ledger does when gateways come and go; the second call returns after the first was heard."""
    gateway._engine.call_soon(lambda at: gateway._loop.feed(ev.BudgetSet(at, nbytes)))
    gateway.run_exclusive(int)


def threads() -> int:
    """Threads of this process."""
    tasks = Path("/proc/self/task")
    return sum(1 for _ in tasks.iterdir()) if tasks.is_dir() else threading.active_count()


def main() -> None:
    """`python -m tests.gateway.soaking REQUESTS WAVE`: the soak in a process of its own, as JSON."""
    found = soak(int(sys.argv[1]), int(sys.argv[2]))
    told = {"ends": found.ends, "wrong": found.wrong, "figures": found.figures.tolist(), "most_rows": found.most_rows}
    print(json.dumps(told))


if __name__ == "__main__":
    main()

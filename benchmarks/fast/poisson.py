"""(b) Whole runs of requests that arrive one by one, at the same moments on both sides.

The moments are drawn once, from a fixed seed. How close together they lie follows from what the peer answers when all
requests are there at once: at a load of 2 they arrive twice as fast as that.
"""

from __future__ import annotations

import random
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from benchmarks.fast.peers import GENERATOR, generator_of, run_generator
from benchmarks.fast.steps import named
from benchmarks.fast.table import OURS
from benchmarks.fast.work import GREEDY, checked, prompt
from benchmarks.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work
    from mlx_notebook import Gateway

SEED = 7


def poisson(table: Table, sides: Sides, work: Work) -> None:
    """Tokens a second, and how long requests took from their arrival."""
    counts = work.rows_or(8, 32, 128)
    for rows in counts:
        prompts = [prompt(number, work.prompt, sides.loaded.vocab) for number in range(rows)]
        gateway = sides.gateway(max(counts))
        with sides.theirs():  # the first builds kernels, the second counts
            *_, at_once = [run_generator(sides.loaded, prompts, work.answer)["seconds"] for _ in range(2)]
        due = arrivals(rows, at_once / work.load)
        table.report.settings[f"arrivals of {rows} (s)"] = due
        table.measure(
            {
                named(OURS, rows): partial(ours_stream, gateway, prompts, due, work.answer),
                named(GENERATOR, rows): sides.peer(partial(peer_stream, sides.loaded, prompts, due, work.answer)),
            },
            work.rounds,
        )
        sizes = f"{rows} requests of {work.prompt}+{work.answer} within {due[-1]:.3g} s"
        for measure, label, unit in (("rate", "tokens/s", "tokens/s"), ("mean", "mean", "s"), ("p99", "p99", "s")):
            what = sizes if measure == "rate" else f"{sizes}: {label} latency"
            more = measure == "rate"
            table.line(measure, named(OURS, rows), named(GENERATOR, rows), what=what, unit=unit, more_is_better=more)


def arrivals(count: int, span: float, seed: int = SEED) -> list[float]:
    """Moments of a Poisson stream, the first at 0, in seconds; the mean gap is `span / count`."""
    draw = random.Random(seed)
    moments = [0.0]
    for _ in range(count - 1):
        moments.append(moments[-1] + draw.expovariate(count / span))
    return moments


def figures(latencies: Sequence[float], tokens: int, seconds: float) -> dict[str, float]:
    """What a stream came to."""
    mean = sum(latencies) / len(latencies)
    return {"rate": tokens / seconds, "mean": mean, "p99": quantile(latencies, 0.99), "seconds": seconds}


def ours_stream(gateway: Gateway, prompts: Sequence[list[int]], due: Sequence[float], answer: int) -> dict[str, float]:
    """Each prompt is submitted when it is due; the clock is read when its row is over."""
    over: SimpleQueue[tuple[int, float]] = SimpleQueue()
    handles = []
    began = time.perf_counter()
    for number, (ids, moment) in enumerate(zip(prompts, due, strict=True)):
        time.sleep(max(0.0, began + moment - time.perf_counter()))
        handle = gateway.submit(ids, max_tokens=answer, **GREEDY)
        handle.add_done_callback(lambda _, number=number: over.put((number, time.perf_counter())))
        handles.append(handle)
    ended = dict(over.get() for _ in handles)
    tokens = checked([handle.result().generated_tokens for handle in handles], answer, OURS)
    latencies = [ended[number] - began - moment for number, moment in enumerate(due)]
    return figures(latencies, tokens, max(ended.values()) - began)


def peer_stream(loaded: Loaded, prompts: Sequence[list[int]], due: Sequence[float], answer: int) -> dict[str, float]:
    """What is due is inserted between two calls of `next`; where nothing is under way, it waits for the next."""
    generator = generator_of(loaded, len(prompts), answer)
    waiting = list(zip(due, prompts, strict=True))[::-1]
    arrived: dict[int, float] = {}
    made: dict[int, int] = {}
    latencies: list[float] = []
    began = time.perf_counter()
    while waiting or len(latencies) < len(made):
        now = time.perf_counter() - began
        if waiting and len(latencies) == len(made):
            time.sleep(max(0.0, waiting[-1][0] - now))
            now = time.perf_counter() - began
        while waiting and waiting[-1][0] <= now:
            moment, ids = waiting.pop()
            (uid,) = generator.insert([ids])
            arrived[uid], made[uid] = moment, 0
        for response in generator.next()[1]:
            made[response.uid] += 1
            if response.finish_reason is not None:
                latencies.append(time.perf_counter() - began - arrived[response.uid])
    spent = time.perf_counter() - began
    generator.close()
    return figures(latencies, checked(list(made.values()), answer, GENERATOR), spent)

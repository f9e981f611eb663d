"""Rows that join while others write, beside `BatchGenerator`: `python -m benchmarks.joining`.

First a stream of short rows, one every few steps: the peer copies its batch at each. Then a long prompt among running
rows: how long they wait between two tokens. Clocks are read where tokens are made, on both sides. Running rows grow
while it joins, by a token a step, and so do their steps: what a gap is set beside are the same rows' steps at that
length, from a run in which nobody joins.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.batching import OURS, PEER, Both, checked, prompts_of, smollm2
from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments
from benchmarks.stats import quantile
from mlx_notebook.core.chunks import TARGET_NS

if TYPE_CHECKING:
    from mlx_notebook.gateway.handle import Handle

EVERY, JOINERS, SHORT_PROMPT, SHORT_ANSWER = 4, 24, 28, 32
RUNNING, LONG_PROMPT, BEFORE = 7, 6_000, 24
LIMIT, EARLY, WORST = "target and two steps", "target and two steps before it came", f"{PEER}, worst"
ENDLESS = 4_000
UNDISTURBED = 1_600
"""Tokens of the run in which nobody joins: about as many as rows write while the long prompt does."""

AROUND = 16
"""Steps on each side whose median is the normal step of a length."""
GREEDY: dict[str, Any] = {"raw": True, "temperature": 0.0, "cache_prompt": False}


def lines(samples: Samples) -> list[Line]:
    """The table's lines; those of gaps are milliseconds, so less is better."""
    stream = f"{JOINERS} rows of {SHORT_PROMPT}+{SHORT_ANSWER}, one every {EVERY} steps"
    gap = f"p99 gap while {LONG_PROMPT:,} tokens join {RUNNING} rows"
    less: dict[str, Any] = {"more_is_better": False, "ours": OURS}
    return [
        compare(samples, "rate", ours=f"{OURS}, stream", theirs=f"{PEER}, stream", what=stream, unit="tokens/s"),
        compare(samples, "share", theirs=LIMIT, bar=1.0, what=f"{gap}, of what it may be", unit="share", **less),
        compare(samples, "gap_ms", theirs=EARLY, what=gap, unit="ms", **less),
        compare(samples, "gap_ms", theirs=WORST, bar=0.25, what=gap, unit="ms", **less),
    ]


# ------------------------------------------------------------ a stream of short rows


def stream_ours(both: Both) -> dict[str, float]:
    """One row writes all the time; at every few of its tokens the next of the others is submitted."""
    first, *others = prompts_of(both.tokenizer, [SHORT_PROMPT] * (1 + JOINERS))
    waiting, joined = iter(others), []
    seen = itertools.count(1)

    def beat(*_: object) -> None:
        if next(seen) % EVERY == 0 and (prompt := next(waiting, None)) is not None:
            joined.append(both.gateway.submit(prompt, max_tokens=SHORT_ANSWER, **GREEDY))

    length = EVERY * JOINERS + SHORT_ANSWER
    began = time.perf_counter()
    made = both.gateway.submit(first, max_tokens=length, on_token=beat, **GREEDY).result().generated_tokens
    counts = [handle.result().generated_tokens for handle in joined]
    spent = time.perf_counter() - began
    return {"rate": (checked([made], length, OURS) + checked(counts, SHORT_ANSWER, OURS)) / spent}


def stream_peer(both: Both) -> dict[str, float]:
    """The same, rows inserted between two calls of `next`."""
    from mlx_lm.generate import BatchGenerator

    first, *others = prompts_of(both.tokenizer, [SHORT_PROMPT] * (1 + JOINERS))
    waiting = iter(others)
    length = EVERY * JOINERS + SHORT_ANSWER
    began = time.perf_counter()
    generator = BatchGenerator(both.model, completion_batch_size=32, prefill_batch_size=8)
    (beat,) = generator.insert([first], max_tokens=[length])
    made = {beat: 0}
    left = 1 + JOINERS
    while left:
        for response in generator.next()[1]:
            made[response.uid] += 1
            left -= response.finish_reason is not None
            if response.uid == beat and made[beat] % EVERY == 0 and (prompt := next(waiting, None)) is not None:
                made |= dict.fromkeys(generator.insert([prompt], max_tokens=[SHORT_ANSWER]), 0)
    generator.close()
    spent = time.perf_counter() - began
    counts = [count for uid, count in made.items() if uid != beat]
    return {"rate": (checked([made[beat]], length, PEER) + checked(counts, SHORT_ANSWER, PEER)) / spent}


# ------------------------------------------------------------ a long prompt joins


def normal_steps(both: Both) -> list[float]:
    """Seconds of a step by how many tokens the running rows wrote before it, while nobody joins."""
    times: list[float] = []
    shorts = prompts_of(both.tokenizer, [SHORT_PROMPT] * RUNNING)
    running = start(both, shorts, times, UNDISTURBED)
    for handle in running:
        handle.result()
    gaps = gaps_of(times)
    return [statistics.median(gaps[max(0, at - AROUND) : at + AROUND + 1]) for at in range(len(gaps))]


def start(both: Both, prompts: list[list[int]], times: list[float], length: int) -> list[Handle]:
    """Rows that write; `times` gets the clock at each token of the first."""
    options = GREEDY | {"max_tokens": length}
    rows = [both.gateway.submit(prompt, **options) for prompt in prompts[1:]]
    return [*rows, both.gateway.submit(prompts[0], on_token=lambda *_: times.append(time.perf_counter()), **options)]


def gaps_ours(both: Both, normal: list[float]) -> dict[str, float]:
    """A running row's gaps, from asking for the long row to its first token.

    `gap_ms` is their 99th percentile, `share` that of each gap over what it may be then: the time target of a chunk
    and two steps of rows of that length, which `normal` has. `early_ms` is what a gap might be before the row came.
    """
    *shorts, long = prompts_of(both.tokenizer, [SHORT_PROMPT] * RUNNING + [LONG_PROMPT])
    times: list[float] = []
    running = start(both, shorts, times, ENDLESS)
    while len(times) < BEFORE:
        time.sleep(0.01)
    before = statistics.median(gaps_of(times[BEFORE // 2 :]))
    began = time.perf_counter()
    both.gateway.submit(long, max_tokens=1, **GREEDY).result()
    ended = time.perf_counter()
    for handle in running:
        handle.cancel()
    both.gateway.wait_idle()
    first = next(at for at, moment in enumerate(times) if moment >= began)
    within = gaps_of([at for at in times if began <= at <= ended])
    shares = [gap / allowed(normal[min(first + at, len(normal) - 1)]) for at, gap in enumerate(within)]
    return {
        "share": quantile(shares, 0.99),
        "gap_ms": 1e3 * quantile(within, 0.99),
        "worst_ms": 1e3 * max(within),
        "early_ms": 1e3 * allowed(before),
        "tokens": len(within),
    }


def allowed(step: float) -> float:
    """Seconds that a gap may last where a step takes so long."""
    return TARGET_NS / 1e9 + 2 * step


def gaps_peer(both: Both) -> dict[str, float]:
    """The worst gap of the peer's running rows, till the long row's first token."""
    from mlx_lm.generate import BatchGenerator

    *shorts, long = prompts_of(both.tokenizer, [SHORT_PROMPT] * RUNNING + [LONG_PROMPT])
    generator = BatchGenerator(both.model, max_tokens=ENDLESS, completion_batch_size=32, prefill_batch_size=8)
    watched = generator.insert(shorts)[0]
    while len(generator.next()[1]) < RUNNING:
        pass
    for _ in range(BEFORE):
        generator.next()
    (joiner,) = generator.insert([long], max_tokens=[1])
    times = [time.perf_counter()]
    seen: set[int] = set()
    while joiner not in seen:
        seen = {response.uid for response in generator.next()[1]}
        if watched in seen:
            times.append(time.perf_counter())
    generator.close()
    return {"gap_ms": 1e3 * max(gaps_of(times))}


def gaps_of(times: list[float]) -> list[float]:
    """Seconds between one and the next."""
    return [after - before for before, after in itertools.pairwise(times)]


def measured(both: Both, rounds: int) -> Samples:
    """Both parts."""
    samples = interleave(
        {f"{OURS}, stream": partial(stream_ours, both), f"{PEER}, stream": partial(stream_peer, both)},
        rounds=2 * rounds,
    )
    normal = normal_steps(both)
    samples |= interleave(
        {OURS: partial(gaps_ours, both, normal), WORST: partial(gaps_peer, both)}, rounds=rounds, warmup=0
    )
    samples[EARLY] = [{"gap_ms": sample["early_ms"]} for sample in samples[OURS]]
    samples[LIMIT] = [{"share": 1.0} for _ in samples[OURS]]
    return samples


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=3)
    both = smollm2()
    try:
        samples = measured(both, options.rounds)
    finally:
        both.gateway.close()
    settings = {"model": "SmolLM2-135M-Instruct, float32", "every": EVERY, "long_prompt": LONG_PROMPT}
    report = Report("joining", "Rows that join", lines(samples), samples, settings)
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

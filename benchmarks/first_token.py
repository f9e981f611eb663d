"""Time to the first text, cold and warm, beside mlx-lm's `stream_generate`: `python -m benchmarks.first_token`.

Cold is a new process: from its first line (imports, loading) and from the request. Warm is a later
request of that process. What is measured is when the caller has the text, not when the token existed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

PEER = "stream_generate"
WARM_REQUESTS = 5
CHECKOUT = Path(__file__).resolve().parent.parent


def child(side: str, began: float) -> dict[str, float]:
    """One new process' life: load, one cold request, and the median of some warm ones."""
    ready, request = {"gateway": _start_ours, PEER: _start_peer}[side]()
    cold = request()
    warm = sorted(request() for _ in range(WARM_REQUESTS))[WARM_REQUESTS // 2]
    return {"from_start_s": ready - began + cold, "cold_s": cold, "warm_s": warm}


def _start_ours() -> tuple[float, Callable[[], float]]:
    import mlx_notebook as mn
    from benchmarks.smollm2 import PROMPT

    gateway = mn.Gateway("smollm2", dtype="float32")

    def request() -> float:
        began = time.perf_counter()
        handle = gateway.submit(PROMPT, max_tokens=4, temperature=0.0, cache_prompt=False)
        next(iter(handle))
        first = time.perf_counter() - began
        handle.result()
        return first

    return time.perf_counter(), request


def _start_peer() -> tuple[float, Callable[[], float]]:
    from benchmarks.smollm2 import load_model, prompt_ids

    model, tokenizer = load_model()
    import mlx_lm

    def request() -> float:
        began = time.perf_counter()
        stream = mlx_lm.stream_generate(model, tokenizer, prompt_ids(tokenizer), max_tokens=4)
        next(stream)
        first = time.perf_counter() - began
        for _ in stream:
            pass
        return first

    return time.perf_counter(), request


def in_new_process(side: str) -> dict[str, float]:
    """What a child of this module measured."""
    command = [sys.executable, "-m", "benchmarks.first_token", "--child", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=CHECKOUT)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def lines(samples: Samples) -> list[Line]:
    """The table's lines: seconds, so less is better."""
    named = {
        "from_start_s": "new process, from its first line",
        "cold_s": "its first request",
        "warm_s": "a later request",
    }
    return [
        compare(samples, measure, ours="gateway", theirs=PEER, what=what, unit="s", more_is_better=False)
        for measure, what in named.items()
    ]


def main() -> int:
    """Measure, print, keep."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], time.perf_counter())))
        return 0
    options = arguments(__doc__, rounds=7)
    cases = {side: partial(in_new_process, side) for side in ("gateway", PEER)}
    samples = interleave(cases, rounds=options.rounds)
    report = Report(
        "first_token",
        "Time to the first text",
        lines(samples),
        samples,
        {"model": "SmolLM2-135M-Instruct, float32", "warm_requests": WARM_REQUESTS},
    )
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

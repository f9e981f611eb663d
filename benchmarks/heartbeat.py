"""How late the kernel's main thread wakes while the engine decodes: `python -m benchmarks.heartbeat`.

Beside it: the same model decoded by `stream_generate` on a bare thread, and a machine at rest.
"""

from __future__ import annotations

import sys
import time

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.main_thread import InThread, beat, lateness
from benchmarks.smollm2 import MAX_TOKENS, Shared, arguments, load_shared, run_peer, settings

PEER = "stream_generate on a thread"
REST = "nothing running"
REST_S = 3.0


def while_ours(shared: Shared) -> dict[str, float]:
    """The main thread's lateness while the gateway decodes one row."""
    handle = shared.gateway.submit(shared.prompt, max_tokens=MAX_TOKENS, temperature=0.0, cache_prompt=False)
    late = beat(handle.done)
    handle.result()
    return lateness(late)


def while_peer(shared: Shared) -> dict[str, float]:
    """The same beside a bare thread."""
    work = InThread(lambda: run_peer(shared).measures())
    late = beat(work.done)
    work.result()
    return lateness(late)


def at_rest() -> dict[str, float]:
    """What this machine does to a thread that only sleeps."""
    end = time.perf_counter() + REST_S
    return lateness(beat(lambda: time.perf_counter() > end))


def lines(samples: Samples) -> list[Line]:
    """99th percentile and middle, beside the peer and beside rest; less is better."""
    table = [
        (PEER, "late_p99_ms", "99th percentile"),
        (PEER, "late_p50_ms", "middle"),
        (REST, "late_p99_ms", "99th percentile"),
    ]
    return [
        compare(samples, measure, ours="gateway", theirs=peer, what=what, unit="ms late", more_is_better=False)
        for peer, measure, what in table
    ]


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=10)
    shared = load_shared()
    try:
        cases = {"gateway": lambda: while_ours(shared), PEER: lambda: while_peer(shared), REST: at_rest}
        samples = interleave(cases, rounds=options.rounds)
    finally:
        shared.gateway.close()
    title = "The main thread's heartbeat while one row decodes"
    report = Report("heartbeat", title, lines(samples), samples, settings(shared))
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

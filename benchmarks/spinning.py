"""The engine's rate while a cell computes in pure Python: `python -m benchmarks.spinning`.

Both threads want the interpreter's lock, so the switch interval decides. Beside it: the engine's
rate while the cell only waits, and `stream_generate` on a bare thread, spun at and not.
"""

from __future__ import annotations

import sys
import time

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.main_thread import InThread, spin
from benchmarks.smollm2 import Run, Shared, arguments, load_shared, run_peer, settings

WAITING = "waiting"
PEER = "stream_generate, spinning"
PEER_WAITING = "stream_generate, waiting"
ALONE = "spinning alone"
ALONE_S = 2.0
MAX_TOKENS = 48  # enough for a rate; a spun-at row is slow


def ours(shared: Shared, *, spinning: bool) -> dict[str, float]:
    """Tokens a second of one row, and the loop's own speed where the main thread spins."""
    began = time.perf_counter()
    handle = shared.gateway.submit(shared.prompt, max_tokens=MAX_TOKENS, temperature=0.0, cache_prompt=False)
    measured = {"turns": spin(handle.done)} if spinning else {}
    result = handle.result()
    return measured | {
        "decode_rate": result.decode_tps,
        "rate": result.generated_tokens / (time.perf_counter() - began),
    }


def peer(shared: Shared, *, spinning: bool) -> dict[str, float]:
    """The same through `stream_generate` on a bare thread."""

    def work() -> dict[str, float]:
        run: Run = run_peer(shared, MAX_TOKENS)
        return run.measures()

    running = InThread(work)
    measured = {"turns": spin(running.done)} if spinning else {}
    return measured | running.result()


def alone() -> dict[str, float]:
    """The loop's speed with nothing else running."""
    end = time.perf_counter() + ALONE_S
    return {"turns": spin(lambda: time.perf_counter() > end)}


def lines(samples: Samples) -> list[Line]:
    """Rates kept by each side, ours beside the peer's, and what the cell pays."""
    kept = "decode rate kept while the cell spins"
    return [
        compare(samples, "decode_rate", ours="spinning", theirs=WAITING, what=kept, unit="tokens/s"),
        compare(samples, "decode_rate", ours=PEER, theirs=PEER_WAITING, what=f"the peer's {kept}", unit="tokens/s"),
        compare(
            samples, "decode_rate", ours="spinning", theirs=PEER, what="decode rate, both spun at", unit="tokens/s"
        ),
        compare(samples, "turns", ours="spinning", theirs=ALONE, what="the cell's own speed", unit="1000 turns/s"),
    ]


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=8)
    shared = load_shared()
    try:
        cases = {
            "spinning": lambda: ours(shared, spinning=True),
            WAITING: lambda: ours(shared, spinning=False),
            PEER: lambda: peer(shared, spinning=True),
            PEER_WAITING: lambda: peer(shared, spinning=False),
            ALONE: alone,
        }
        samples = interleave(cases, rounds=options.rounds)
    finally:
        shared.gateway.close()
    title = "One row's rate while a cell spins in Python"
    report = Report(
        "spinning", title, lines(samples), samples, settings(shared) | {"max_tokens": MAX_TOKENS} | switch_interval()
    )
    return finish(report, keep=not options.no_keep)


def switch_interval() -> dict[str, float]:
    """How long a thread may hold the interpreter while another wants it, in seconds."""
    return {"switch_interval_s": sys.getswitchinterval()}


if __name__ == "__main__":
    sys.exit(main())

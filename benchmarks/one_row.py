"""One request's speed beside mlx-lm's `stream_generate`, on the same weights: `python -m benchmarks.one_row`."""

from __future__ import annotations

import sys

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments, check_same_work, load_shared, run_ours, run_peer, settings

PEER = "stream_generate"
BAR = 0.97


def lines(samples: Samples) -> list[Line]:
    """The table's lines from the measurements of both sides."""
    return [
        compare(samples, "rate", ours="gateway", theirs=PEER, what="whole request", unit="tokens/s", bar=BAR),
        compare(samples, "decode_rate", ours="gateway", theirs=PEER, what="after the first token", unit="tokens/s"),
    ]


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=10)
    shared = load_shared()
    try:
        check_same_work(run_ours(shared), run_peer(shared))
        samples = interleave(
            {"gateway": lambda: run_ours(shared).measures(), PEER: lambda: run_peer(shared).measures()},
            rounds=options.rounds,
        )
    finally:
        shared.gateway.close()
    report = Report("one_row", "One row's tokens per second", lines(samples), samples, settings(shared))
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

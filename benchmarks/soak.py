"""The full soak: `python -m benchmarks.soak`, ten thousand short requests through one gateway, 64 rows at once.

Not a speed: what the process holds after each wave of them, and how each of them ended. Keeps
`results/soak-<date>.json` with the machine's description; the exit status says whether nothing grew and nothing
was lost.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks import environment
from benchmarks.harness import keep_record

STEADY = {"active_bytes": 1.0, "threads": 0.001, "objects": 0.01}
"""Growth a request that still counts as none: less than a byte, a thread in a thousand, an object in a hundred."""


def main() -> int:
    """Run, print a line a wave, keep the samples and their slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--wave", type=int, default=500, help="requests that are submitted at once")
    parser.add_argument("--warm-up", type=int, default=2_000, help="requests before the slopes begin")
    parser.add_argument("--no-keep", action="store_true", help="only print")
    options = parser.parse_args()
    from mlx_notebook.models.backend_check import import_mlx

    import_mlx()
    from tests.gateway.soaking import ROWS, soak

    where = environment.record()
    began = time.monotonic()
    found = soak(options.requests, options.wave, lambda sample: print(sample, flush=True))
    seconds = time.monotonic() - began
    slopes = {name: found.slope(name, options.warm_up) for name in STEADY}
    problems = [f"{name} grow by {slopes[name]} a request" for name in STEADY if abs(slopes[name]) > STEADY[name]]
    problems += found.wrong
    for line in (*(f"{name:14} {slope:+.6f} a request" for name, slope in slopes.items()), *problems):
        print(line)
    if not options.no_keep:
        title = f"Short requests through one gateway, {ROWS} rows at once: what is held after each wave"
        record = {
            "model": "llama, 2 layers of width 64, random weights, float32",
            "requests": found.samples[-1].requests,
            "wave": options.wave,
            "warm_up": options.warm_up,
            "seconds": round(seconds, 1),
            "most_rows": found.most_rows,
            "ends": {end: count for end, count in found.ends.items() if count},
            "slopes_per_request": slopes,
            "samples": [sample._asdict() for sample in found.samples],
            "problems": problems,
        }
        keep_record("soak", title, where, record)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

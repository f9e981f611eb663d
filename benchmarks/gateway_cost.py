"""What the gateway alone costs a token, without a model: `python -m benchmarks.gateway_cost`.

A scripted backend says letters, one for each row in a step; everything else is as for a real model: the loop, the
scheduler with its log, each row's record and handle, the recorder. Nobody reads while they write. Beside it stands the
loop in plain Python of `core_cost`, so that the figure means something elsewhere. The scripted backend's own share is
in it, and told apart.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import mlx_notebook as mn
from benchmarks.batching import checked
from benchmarks.core_cost import LOOP, calibrated_loop, us_a_call
from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments
from mlx_notebook.core.events import Decode
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.engine.backend import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = (1, 8, 64, 512)
TOKENS = 65_536
"""Tokens of a sample, of all rows together; no row makes more than LONGEST."""

LONGEST = 4_096
AIM_US = {64: 15}
CAN = Capabilities(vocab_size=0x110000, context_length=32_768, max_rows=max(ROWS), continuous=True)
TURNS = 500


def lines(samples: Samples, rows: Sequence[int] = ROWS) -> list[Line]:
    """Microseconds a token of each number of rows."""
    return [
        compare(
            samples,
            f"{count}",
            ours=named(count),
            theirs=LOOP,
            what=f"a token of {named(count)}",
            unit="µs",
            more_is_better=False,
        )
        for count in rows
    ]


def named(rows: int) -> str:
    """A case's name."""
    return f"{rows} {'row' if rows == 1 else 'rows'}"


def whole(gateway: mn.Gateway, rows: int, tokens: int) -> dict[str, float]:
    """Microseconds a token, from asking for all rows to the last result.

    Raises:
        RuntimeError: rows of this gateway would run one after the other.
    """
    if gateway.stats().mode != "continuous":
        raise RuntimeError("rows run one after the other: what a step costs would be told as the cost of a token")
    each = min(LONGEST, tokens // rows)
    began = time.perf_counter()
    results = gateway.submit(["a fox and a hen"] * rows, max_tokens=each, raw=True).results()
    spent = time.perf_counter() - began
    made = checked([result.generated_tokens for result in results], each, "gateway")
    return {f"{rows}": spent / made * 1e6}


def backend_alone(rows: int, tokens: int) -> float:
    """Microseconds a token that the scripted backend takes by itself."""
    backend = ScriptedBackend(CAN)
    for number in range(rows):
        backend.open(Request(number, RequestShape((1,), SamplingOptions(max_tokens=1 << 30))))
    instruction = Decode(tuple(range(rows)))

    def step() -> None:
        backend.decode(instruction)

    return us_a_call(step, max(1, tokens // rows)) / rows


def measured(rounds: int, rows: Sequence[int] = ROWS, tokens: int = TOKENS) -> Samples:
    """Every number of rows, and the loop."""

    def loop() -> dict[str, float]:
        return dict.fromkeys(map(str, rows), us_a_call(calibrated_loop, TURNS))

    with mn.Gateway.from_backend(ScriptedBackend(CAN), batch=max(rows)) as gateway:
        cases = {named(count): partial(whole, gateway, count, tokens) for count in rows}
        return interleave({**cases, LOOP: loop}, rounds=rounds)


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=7)
    samples = measured(options.rounds)
    settings = {
        "tokens a sample": TOKENS,
        "aim (µs a token)": {str(rows): most for rows, most in AIM_US.items()},
        "of it the scripted backend (µs a token)": {str(rows): backend_alone(rows, TOKENS) for rows in ROWS},
    }
    report = Report("gateway_cost", "What the gateway alone costs", lines(samples), samples, settings)
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

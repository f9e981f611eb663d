"""Rows of equal length at once, beside `BatchGenerator` and a loop: `python -m benchmarks.batch_decode`."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.batching import LOOP, OURS, PEER, Both, prompts_of, run_loop, run_ours, run_peer, smollm2
from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments

PROMPT_TOKENS, ANSWER = 28, 128
ROWS = (1, 8, 32)
BATCH_BAR, LOOP_BAR = 0.98, 4.2
BARRED = 8


def named(side: str, rows: int) -> str:
    """A case's name."""
    return f"{side}, {rows} {'row' if rows == 1 else 'rows'}"


def lines(samples: Samples) -> list[Line]:
    """The table's lines from the measurements of all sides."""
    found = []
    for rows in ROWS:
        for peer, bar in ((PEER, BATCH_BAR), (LOOP, LOOP_BAR)):
            if named(peer, rows) in samples:
                found.append(
                    compare(
                        samples,
                        "rate",
                        ours=named(OURS, rows),
                        theirs=named(peer, rows),
                        what=f"{rows} x {PROMPT_TOKENS}+{ANSWER} tokens",
                        unit="tokens/s",
                        bar=bar if rows == BARRED else None,
                    )
                )
    return found


def measured(both: Both, rounds: int) -> Samples:
    """Every number of rows on every side; the loop only up to the barred number: it gains nothing by more."""
    samples: Samples = {}
    for rows in ROWS:
        prompts = prompts_of(both.tokenizer, [PROMPT_TOKENS] * rows)
        cases = {
            named(OURS, rows): partial(run_ours, both, prompts, ANSWER),
            named(PEER, rows): partial(run_peer, both, prompts, ANSWER),
        }
        if rows <= BARRED:
            cases[named(LOOP, rows)] = partial(run_loop, both, prompts, ANSWER)
        samples |= interleave(cases, rounds=rounds)
    return samples


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=6)
    both = smollm2()
    try:
        samples = measured(both, options.rounds)
    finally:
        both.gateway.close()
    settings = {"model": "SmolLM2-135M-Instruct, float32", "prompt_tokens": PROMPT_TOKENS, "max_tokens": ANSWER}
    report = Report("batch_decode", "Rows at once, tokens per second", lines(samples), samples, settings)
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

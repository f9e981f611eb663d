"""Rows with a schema beside free rows, alone and in one batch: `python -m benchmarks.grammars`.

Each case decodes the same number of rows for the same number of tokens; what differs is how many of them have a schema.
The schema is an array that does not end within the limit, of objects with texts, numbers and choices, so that its masks
are of every sort. Rates are of single rows: tokens after the first, over the time that they took.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import Shared, arguments, load_shared, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook import Result

ROWS = 8
MAX_TOKENS = 64
BAR = 0.97
"""Free rows beside rows with a schema keep at least this share of their rate."""

ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "price": {"type": "number", "minimum": 0, "maximum": 1000},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "mood": {"enum": ["good", "bad", "mixed"]},
    },
    "required": ["name", "price", "stars", "mood"],
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 50}


def run(shared: Shared, free: int, shaped: int) -> dict[str, float]:
    """So many rows of each kind at once; the mean rate of each kind, in tokens a second and row."""
    options: dict[str, Any] = {"max_tokens": MAX_TOKENS, "cache_prompt": False}
    handles = [shared.gateway.submit(shared.prompt, **options) for _ in range(free)]
    handles += [shared.gateway.submit(shared.prompt, json_schema=SCHEMA, **options) for _ in range(shaped)]
    results = [handle.result() for handle in handles]
    if any(result.generated_tokens != MAX_TOKENS for result in results):
        raise RuntimeError("a row ended early: the cases would not be of the same size")
    measured = {}
    if free:
        measured["free"] = rate_of(results[:free])
    if shaped:
        measured["shaped"] = rate_of(results[free:])
    return measured


def rate_of(results: list[Result]) -> float:
    """Tokens a second of one row, the mean over rows."""
    return sum(result.decode_tps or 0.0 for result in results) / len(results)


def cases(shared: Shared) -> dict[str, Callable[[], dict[str, float]]]:
    """Every case by its name in the table."""
    half = ROWS // 2

    def first(free: int, shaped: int) -> Callable[[], dict[str, float]]:
        def measure() -> dict[str, float]:
            found = run(shared, free, shaped)
            return {**found, "either": found.get("shaped", found.get("free", 0.0))}

        return measure

    return {
        "one free row": first(1, 0),
        "one with a schema": first(0, 1),
        f"{ROWS} free rows": first(ROWS, 0),
        "half and half": first(half, half),
        f"{ROWS} with a schema": first(0, ROWS),
    }


def lines(samples: Samples) -> list[Line]:
    """The table's lines."""
    free = f"{ROWS} free rows"
    mixed = compare(
        samples, "free", ours="half and half", theirs=free, what="free rows of a mixed batch", unit="tokens/s", bar=BAR
    )
    alone = compare(
        samples, "either", ours="one with a schema", theirs="one free row", what="one row alone", unit="tokens/s"
    )
    shaped = compare(
        samples, "either", ours=f"{ROWS} with a schema", theirs=free, what="all rows with a schema", unit="tokens/s"
    )
    beside = compare(
        samples, "either", ours="half and half", theirs=free, what="shaped rows of a mixed batch", unit="tokens/s"
    )
    return [mixed, beside, alone, shaped]


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=10)
    shared = load_shared()
    try:
        samples = interleave(cases(shared), rounds=options.rounds)
    finally:
        shared.gateway.close()
    about = {**settings(shared), "max_tokens": MAX_TOKENS, "rows": ROWS}
    report = Report("grammars", "Rows with a schema beside free rows", lines(samples), samples, about)
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())

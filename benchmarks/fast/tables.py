"""Which tables there are, by letter and by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.fast.first import first
from benchmarks.fast.gaps import gaps
from benchmarks.fast.growth import growth
from benchmarks.fast.poisson import poisson
from benchmarks.fast.quantised import quantised
from benchmarks.fast.runs import mixed, runs
from benchmarks.fast.server import server
from benchmarks.fast.shared import shared
from benchmarks.fast.steps import capacity, steps
from benchmarks.fast.transformers_peer import transformers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work

TABLES: dict[str, tuple[str, Callable[[Table, Sides, Work], None]]] = {
    "steps": ("A decode step", steps),
    "capacity": ("Room for a long row", capacity),
    "runs": ("Whole runs, all requests at once", runs),
    "poisson": ("Whole runs, requests arrive one by one", poisson),
    "mixed": ("Whole runs, prompts of mixed lengths", mixed),
    "gaps": ("A long prompt joins", gaps),
    "first": ("Time to the first token", first),
    "shared": ("Requests that share a long beginning", shared),
    "quantised": ("Quantised keys and values", quantised),
    "growth": ("A decode step as rows and lengths double", growth),
    "server": ("Whole runs beside a server", server),
    "transformers": ("Whole runs beside Transformers", transformers),
}
LETTERS: dict[str, tuple[str, ...]] = {
    "a": ("steps", "capacity"),
    "b": ("runs", "poisson"),
    "c": ("mixed",),
    "d": ("gaps",),
    "e": ("first",),
    "f": ("shared",),
    "h": ("quantised",),
    "j": ("growth",),
}


def named_by(asked: Sequence[str]) -> list[str]:
    """The tables' names, each once, in the order asked for."""
    found = [name for one in asked for name in LETTERS.get(one, (one,))]
    return list(dict.fromkeys(found))

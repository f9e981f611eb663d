"""What a compiled grammar is said to take, beside how a process grows that keeps many of them and writes with each."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.grammar import GrammarKind
from tests.engine.shaping import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.grammar import Compiled

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's size from /proc"),
]

STEPS = 200
KEPT = 12


def fields(count: int, mark: int, one: Any, *, required: bool = True) -> dict[str, Any]:
    properties = {f"p{mark}_{at}": one for at in range(count)}
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


MADE: dict[str, tuple[str, Callable[[int], Any]]] = {
    "one field": ("json_schema", lambda mark: fields(1, mark, {"type": "integer"})),
    "three hundred fields": ("json_schema", lambda mark: fields(300, mark, {"type": "integer"})),
    "nine hundred optional": ("json_schema", lambda mark: fields(900, mark, {}, required=False)),
    "one of sixty": (
        "json_schema", lambda mark: {**fields(60, mark, {}, required=False), "minProperties": 1}
    ),
    "long texts": (
        "json_schema", lambda mark: fields(3, mark, {"type": "string", "maxLength": 2000 + mark})
    ),
    "times": ("json_schema", lambda mark: fields(5, mark, {"type": "string", "format": "date-time"})),
    "multiples": ("json_schema", lambda mark: {"type": "integer", "multipleOf": 5001 + mark}),
    "choices": ("choices", lambda mark: [f"choice {mark} number {at}" for at in range(3000)]),
    "a counting pattern": ("regex", lambda mark: f"x{mark}[a-z ]{{0,400}}"),
    "many words": ("grammar", lambda mark: "start: " + " ".join(f'"a{mark}_{at}"' for at in range(2000))),
    "rules": (
        "grammar",
        lambda mark: "start: r0+\n" + "\n".join(f'r{at}: "k{mark}" r{at + 1}? | WORD' for at in range(100))
        + '\nr100: "x"\nWORD: /[a-z]+/',
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MADE)
def test_an_estimate_is_no_less_than_what_is_taken(what: str) -> None:
    kind, make = MADE[what]
    kept = [written(compiled(**{kind: make(-1)}), 0)]  # what is made once for all of a kind
    before = held()
    kept += [written(compiled(**{kind: make(mark)}), mark) for mark in range(KEPT)]
    taken = (held() - before) / KEPT
    assert kept[0].spec.kind is GrammarKind(kind)
    assert taken <= 1.15 * kept[-1].nbytes


def written(made: Compiled, seed: int) -> Compiled:
    """The grammar, after a row has gone some way at random."""
    native, _ = made.prototype.copy()
    chooser = random.Random(seed)
    for _ in range(STEPS):
        mask = native.compute_bitmask()
        allowed = [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        if native.is_error() or not allowed or not native.consume_token(chooser.choice(allowed)):
            break
        if native.is_stopped():
            break
    return made


def held() -> int:
    """Bytes of this process in main memory, with nothing kept that is free."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

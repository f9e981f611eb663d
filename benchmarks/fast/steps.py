"""(a) A decode step: ours, `BatchGenerator`'s, and a bare loop's; and what room for a long row costs short ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.fast.table import OURS
from benchmarks.fast.work import checked, prompt
from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepDone
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.sides import Served, Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Timed, Work
    from mlx_notebook.engine.mlx_backend import MlxBackend

PEER, BARE = "BatchGenerator", "bare loop"
BARE_BAR, LIMIT_BAR = 1.05, 1.5
BARS = {"1B": {1: 0.65, 8: 0.7, 32: 0.5, 128: 0.5}, "8B": {1: 0.85, 8: 0.7, 32: 0.5, 128: 0.5}}
BANDWIDTH = {"H200": 4.8e12}
"""Bytes a second that the maker names, by a part of the device's name."""

CAPACITY_ROWS, ROOM_BAR = 128, 1.3
SHORT_ROOM, LONG_ROOM = 256, 1_024
CHUNK = 2_048
TOGETHER = 32


def steps(table: Table, sides: Sides, work: Work) -> None:
    """Rows of equal length beside both peers."""

    with sides.served("native") as (ours,):
        for rows in work.rows_or(1, 8, 32, 128):
            lengths = [work.prompt] * rows
            cases = {
                named(OURS, rows): ours_steps(ours, sides.loaded, lengths, work.steps),
                named(PEER, rows): peer_steps(sides.loaded, lengths, work.steps),
                named(BARE, rows): bare_steps(sides.loaded, rows, work.prompt, work.steps),
            }
            table.measure(cases, work.rounds)
            cases.clear()  # the peers' caches
            ours.drop(rows)
            _lines(table, rows, sides.loaded)


def _lines(table: Table, rows: int, loaded: Loaded) -> None:
    bars = BARS.get(loaded.shape.bars, {})
    less: dict[str, Any] = {"what": f"decode step, {named('', rows)}", "unit": "ms", "more_is_better": False}
    table.line("step", named(OURS, rows), named(PEER, rows), bar=bars.get(rows), **less)
    table.line("step", named(OURS, rows), named(BARE, rows), bar=BARE_BAR if bars else None, **less)
    speed = next((value for name, value in BANDWIDTH.items() if name in table.report.settings["device"]), None)
    if rows == 1 and speed is not None:
        limit = named("reading the weights once", rows)
        table.samples[limit] = [{"step": loaded.nbytes / speed * 1e3} for _ in table.samples[named(OURS, rows)]]
        table.line("step", named(OURS, rows), limit, bar=LIMIT_BAR if loaded.shape.bars == "8B" else None, **less)


def capacity(table: Table, sides: Sides, work: Work) -> None:
    """Short rows of which one is long enough that a table of pages has room for many columns; all short beside it."""
    rows = work.rows_or(CAPACITY_ROWS)[-1]
    ahead = (work.rounds + 1) * work.steps + 2  # every row writes so many
    short, long = SHORT_ROOM - ahead, LONG_ROOM // 2 + 1
    if short < 1:
        raise ValueError(f"{ahead} steps do not fit into {SHORT_ROOM} columns: ask for fewer rounds or steps")

    one, other = f"room for {LONG_ROOM:,}", f"room for {SHORT_ROOM}"
    mixed = [*[short] * (rows - 1), long]
    with sides.served("native") as (ours,):
        cases = {
            one: ours_steps(ours, sides.loaded, mixed, work.steps),
            other: ours_steps(ours, sides.loaded, [short] * rows, work.steps, first=rows),
        }
        table.measure(cases, work.rounds)
    what = f"decode step, {rows} rows of {short} tokens, one of them {long}"
    bar = ROOM_BAR if sides.loaded.shape.bars else None
    table.line("step", one, other, what=what, unit="ms", bar=bar, more_is_better=False)


def named(side: str, rows: int) -> str:
    """A case's name, or only its rows."""
    count = f"{rows} {'row' if rows == 1 else 'rows'}"
    return f"{side}, {count}" if side else count


# ------------------------------------------------------------ each side


def ours_steps(ours: Served, loaded: Loaded, lengths: Sequence[int], steps: int, first: int = 0) -> Timed:
    """Open rows of these lengths, numbered from `first`; what times a step of all of them."""
    prompts = {number: prompt(number, length, loaded.vocab) for number, length in enumerate(lengths, first)}
    return ours.case(lambda backend: _ours_steps(backend, prompts, steps))


def _ours_steps(backend: MlxBackend, prompts: dict[int, list[int]], steps: int) -> Timed:
    for number, tokens in prompts.items():
        backend.open(Request(number, RequestShape(tuple(tokens), SamplingOptions(max_tokens=1 << 20))))
    parts = [PrefillPart(number, 0, len(tokens), last=True) for number, tokens in prompts.items()]
    for forward in forwards(parts):
        errors = backend.prefill(forward).errors
        if errors:
            raise RuntimeError(next(iter(errors.values()))[1])
    ids = tuple(prompts)
    backend.decode(Decode(ids))  # feeds the last token of the prompts: as yet nothing can be read

    def timed() -> dict[str, float]:
        made = 0
        began = time.perf_counter()
        for _ in range(steps):
            outcome = backend.decode(Decode(ids))
            if not isinstance(outcome, StepDone):
                raise RuntimeError(outcome.error[1])  # noqa: TRY004 - the step failed; its type only says so
            made += len(outcome.outcomes)
        return step_of(made, steps, len(ids), time.perf_counter() - began, OURS)

    return timed


def forwards(parts: Sequence[PrefillPart]) -> list[Prefill]:
    """Short prompts of one length some at a time, others alone, in chunks."""
    found: list[Prefill] = []
    together: list[PrefillPart] = []
    for part in parts:
        if part.stop > CHUNK // 8:
            starts = range(0, part.stop, CHUNK)
            found += [
                Prefill((PrefillPart(part.row_id, at, min(at + CHUNK, part.stop), last=at + CHUNK >= part.stop),))
                for at in starts
            ]
        else:
            together.append(part)
    found += [Prefill(tuple(together[at : at + TOGETHER])) for at in range(0, len(together), TOGETHER)]
    return found


def peer_steps(loaded: Loaded, lengths: Sequence[int], steps: int) -> Timed:
    """The same in `BatchGenerator`."""
    rows = len(lengths)
    generator = BatchGenerator(
        loaded.model, max_tokens=1 << 20, completion_batch_size=rows, prefill_batch_size=min(rows, TOGETHER)
    )
    generator.insert([prompt(number, length, loaded.vocab) for number, length in enumerate(lengths)])
    while len(generator.next()[1]) < rows:
        pass

    def timed() -> dict[str, float]:
        began = time.perf_counter()
        made = sum(len(generator.next()[1]) for _ in range(steps))
        return step_of(made, steps, rows, time.perf_counter() - began, PEER)

    return timed


def bare_steps(loaded: Loaded, rows: int, length: int, steps: int) -> Timed:
    """A loop in lockstep: plain caches, argmax, one step ahead of its reads, and nothing else."""
    model = loaded.model
    cache = make_prompt_cache(model)
    tokens = mx.array([prompt(number, length, loaded.vocab) for number in range(rows)])
    model(tokens[:, :-1], cache=cache)
    mx.eval([layer.state for layer in cache])
    held = [mx.argmax(model(tokens[:, -1:], cache=cache)[:, -1, :], axis=-1)]
    mx.eval(held)

    def timed() -> dict[str, float]:
        made = 0
        began = time.perf_counter()
        for _ in range(steps):
            following = mx.argmax(model(held[0][:, None], cache=cache)[:, -1, :], axis=-1)
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            made += len(held[0].tolist())  # type: ignore[arg-type]
            held[0] = following
        return step_of(made, steps, rows, time.perf_counter() - began, BARE)

    return timed


def step_of(made: int, steps: int, rows: int, seconds: float, side: str) -> dict[str, float]:
    """Milliseconds a step, once all rows are known to have made their tokens."""
    checked([made], steps * rows, side)
    return {"step": seconds / steps * 1e3}

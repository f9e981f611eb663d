"""Which store serves a model, found by trying: two rows of different length together against each alone.

A model may read its caches in ways that no store foresees. So a few tokens go through at load, both ways, and
a store is used only if the logits agree within float noise. What is wrong is wrong by far more: a lost mask or
position changes logits by as much as they vary at all. Where keys and values are to be quantised, the same is tried
with rows that convert on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isnan
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from mlx_notebook.core.kv_scheme import KVScheme
from mlx_notebook.engine.kv.convert import convert_due, refusal
from mlx_notebook.engine.stores.caches import arrays_of, make_caches
from mlx_notebook.engine.stores.rows import WASTE, RowsStore
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.stores.store import Store

PROMPTS = ((7, 3, 11, 5, 2, 9), (4, 8, 6))
ANSWERS = ((3, 10, 5), (12, 2, 7))
"""Any ids do; those of the smallest vocabulary."""

CONVERTS = (1, 3)
"""After how many forwards each row converts where a scheme is tried: within its prompt, and after its first token. So
rows before and after their conversion meet in chunks and in steps."""

NOISE = 2e-3
NOISE_OF_HALVES = 0.1
NOISE_OF_STEPS = 0.5
"""Largest difference that passes, as a share of the logits' standard deviation: single and half precision, and
quantised (where noise moves a value over an edge, it moves by a whole step)."""

MARGIN = 2.0
"""In half precision what is noise depends on the model: this many times what two equal rows side by side differ from
one, by mlx-lm's own means; never more than NOISE_OF_STEPS."""


@dataclass(slots=True, eq=False)
class ProbeRow:
    """A row without a request."""

    cache: list[Any]
    fed: int = 0


@dataclass(slots=True)
class Choice:
    """What serves a model.

    Attributes:
        store: None where rows can only run one at a time; then `why_not` says what was found.
        cohorts: whether prompts of different lengths may share a forward.
    """

    store: Store | None
    cohorts: bool = False
    why_not: str = ""
    findings: list[str] = field(default_factory=list)


def choose_store(
    model: Any,
    slots: int | None = None,
    first: Sequence[Callable[[], Store]] = (),
    scheme: KVScheme | None = None,
) -> Choice:
    """The first store that agrees with rows alone; what was found wrong with others on the way.

    Args:
        model: its attention is routed to us.
        slots: places that the batch always has (deterministic mode): then only rows by themselves will do.
        first: makers of stores to try before the rows store, such as a pool where its kernel runs.
        scheme: how rows store keys and values.

    Raises:
        ModelLoadError: even a row alone cannot be computed with keys and values stored so.
    """
    ways = [KVScheme()]
    if scheme is not None and not scheme.native:
        ways.append(replace(scheme, start=0))
    alone = [_each_alone(model, way) for way in ways]
    limits = [_limit(model, expected, way) for way, expected in zip(ways, alone, strict=True)]
    findings: list[str] = []

    def agrees(what: str, make: Callable[[], Store], *, cohorts: bool) -> bool:
        for way, expected, limit in zip(ways, alone, limits, strict=True):
            try:
                found = _differs(expected, _together(model, make(), way, cohorts=cohorts), limit)
            except Exception as error:  # noqa: BLE001 - a model may do anything with a cache that it does not know
                found = as_text(error)[0]
            if found:
                findings.append(f"{what}{'' if way.native else ', quantised'}: {found}")
                return False
        return True

    def rows(waste: float | None) -> Callable[[], Store]:
        return lambda: RowsStore(model, slots, waste)

    for make in first:
        if agrees("pool", make, cohorts=True):
            return Choice(make(), True, "", findings)
    for cohorts in (True, False):
        if agrees("prompts in one forward" if cohorts else "rows", rows(None), cohorts=cohorts):
            packs = slots is None and agrees("packs", rows(WASTE), cohorts=cohorts)
            return Choice(RowsStore(model, slots, WASTE if packs else None), cohorts, "", findings)
    if slots is None and agrees("rectangle", rows(inf), cohorts=False):
        return Choice(RowsStore(model, None, inf), False, "", findings)
    return Choice(None, False, findings[-1], findings)


def _chunks(at: int, scheme: KVScheme) -> list[tuple[int, ...]]:
    """Of what a row's prompt is read, all but its last token: in two pieces where the row converts after the first."""
    body = PROMPTS[at][:-1]
    return [body] if scheme.native else [body[:1], body[1:]]


def _answer(at: int) -> tuple[int, ...]:
    """What is fed token by token."""
    return (PROMPTS[at][-1], *ANSWERS[at][:-1])


def _each_alone(model: Any, scheme: KVScheme) -> list[list[mx.array]]:
    try:
        return [_alone(model, at, scheme) for at in range(len(PROMPTS))]
    except Exception as error:
        if scheme.native:
            raise
        raise refusal(model, scheme, error) from error


def _alone(model: Any, at: int, scheme: KVScheme) -> list[mx.array]:
    """Logits [V] of one row, after the prompt and after each answer token but the last."""
    caches = make_caches(model)
    logits: list[mx.array] = []
    for number, ids in enumerate([*_chunks(at, scheme), *((token,) for token in _answer(at))], 1):
        logits.append(model(mx.array([ids], dtype=mx.int32), cache=caches)[0, -1])
        if not scheme.native and number == CONVERTS[at]:
            convert_due(caches, scheme)
    logits = logits[-len(ANSWERS[at]) :]
    mx.eval(logits)
    return logits


def _together(model: Any, store: Store, scheme: KVScheme, *, cohorts: bool) -> list[list[mx.array]]:
    rows = [ProbeRow(make_caches(model)) for _ in PROMPTS]
    chunks = [_chunks(at, scheme) for at in range(len(rows))]
    for number, bodies in enumerate(zip(*chunks, strict=True), 1):
        _read(store, rows, bodies, cohorts=cohorts)
        _convert(store, rows, scheme, number)
    logits: list[list[mx.array]] = [[] for _ in rows]
    for number, tokens in enumerate(zip(*map(_answer, range(len(rows))), strict=True), 1 + len(chunks[0])):
        inputs = {id(row): token for row, token in zip(rows, tokens, strict=True)}
        places = store.order(rows)
        out = store.step(places, mx.array([[0 if row is None else inputs[id(row)]] for row in places], dtype=mx.int32))
        mx.eval(out)
        for at, row in enumerate(rows):
            row.fed += 1
            logits[at].append(out[next(p for p, other in enumerate(places) if other is row)])
        _convert(store, rows, scheme, number)
    for row in rows:
        store.forget(row)
    return logits


def _read(store: Store, rows: list[ProbeRow], bodies: Sequence[tuple[int, ...]], *, cohorts: bool) -> None:
    """Feed a piece of each prompt, in one forward or one after the other."""
    if cohorts:
        width = max(map(len, bodies))
        padded = [[*body, *([0] * (width - len(body)))] for body in bodies]
        store.prefill(rows, mx.array(padded, dtype=mx.int32), [len(body) for body in bodies])
    else:
        for row, body in zip(rows, bodies, strict=True):
            store.prefill([row], mx.array([body], dtype=mx.int32), [len(body)])
    for row, body in zip(rows, bodies, strict=True):
        row.fed += len(body)
        mx.eval(arrays_of(row.cache))


def _convert(store: Store, rows: list[ProbeRow], scheme: KVScheme, forwards: int) -> None:
    """Convert those whose time it is after so many forwards."""
    for row, due in zip(rows, CONVERTS, strict=True):
        if not scheme.native and forwards == due:
            store.settle(row)
            convert_due(row.cache, scheme)


def _limit(model: Any, alone: list[list[mx.array]], scheme: KVScheme) -> float:
    if not scheme.native:
        return NOISE_OF_STEPS
    if alone[0][0].dtype == mx.float32:
        return NOISE
    try:
        beside = _beside_itself(model)
    except Exception:  # noqa: BLE001 - a model that takes no batch has no such noise; the stores will show what it takes
        return NOISE_OF_HALVES
    return min(NOISE_OF_STEPS, max(NOISE_OF_HALVES, MARGIN * _apart(alone[:1], [beside])))


def _beside_itself(model: Any) -> list[mx.array]:
    """Logits of the first row where the batch is that row twice: no store, nothing ragged, only other shapes."""
    caches = make_caches(model)
    logits = [
        model(mx.array([ids] * 2, dtype=mx.int32), cache=caches)[0, -1]
        for ids in (*_chunks(0, KVScheme()), *((token,) for token in _answer(0)))
    ][-len(ANSWERS[0]) :]
    mx.eval(logits)
    return logits


def _differs(alone: list[list[mx.array]], together: list[list[mx.array]], limit: float) -> str:
    """What is wrong, or nothing."""
    worst = _apart(alone, together)
    return "" if worst <= limit else f"logits differ by {worst:.3g} of their spread (at most {limit:.3g} is noise)"


def _apart(alone: list[list[mx.array]], together: list[list[mx.array]]) -> float:
    """The largest difference, as a share of the logits' standard deviation."""
    worst = 0.0
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            spread = cast(float, mx.std(a.astype(mx.float32)).item())
            apart = cast(float, mx.max(mx.abs(a.astype(mx.float32) - b.astype(mx.float32))).item())
            share = apart / spread if spread > 0 else apart
            worst = max(worst, inf if isnan(share) else share)
    return worst

"""Which store serves a model, found by trying: two rows of different length together against each alone.

A model may read its caches in ways that no store foresees. So a few tokens go through at load, both ways, and
a store is used only if the logits agree within float noise. What is wrong is wrong by far more: a lost mask or
position changes logits by as much as they vary at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from mlx_notebook.engine.stores.caches import arrays_of, make_caches
from mlx_notebook.engine.stores.rows import WASTE, RowsStore
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.stores.store import Store

PROMPTS = ((7, 3, 11, 5, 2, 9), (4, 8, 6))
ANSWERS = ((3, 10, 5), (12, 2, 7))
"""Any ids do; those of the smallest vocabulary."""

NOISE = 2e-3
NOISE_OF_HALVES = 0.1
"""Largest difference that passes, as a share of the logits' standard deviation: single and half precision."""


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


def choose_store(model: Any, slots: int | None = None, first: Sequence[Callable[[], Store]] = ()) -> Choice:
    """The first store that agrees with rows alone; what was found wrong with others on the way.

    Args:
        model: its attention is routed to us.
        slots: places that the batch always has (deterministic mode): then only rows by themselves will do.
        first: makers of stores to try before the rows store, such as a pool where its kernel runs.
    """
    alone = [_alone(model, *pair) for pair in zip(PROMPTS, ANSWERS, strict=True)]
    findings: list[str] = []

    def agrees(what: str, make: Callable[[], Store], *, cohorts: bool) -> bool:
        try:
            found = _differs(alone, _together(model, make(), cohorts=cohorts))
        except Exception as error:  # noqa: BLE001 - a model may do anything with a cache that it does not know
            found = as_text(error)[0]
        if found:
            findings.append(f"{what}: {found}")
        return not found

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


def _alone(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[mx.array]:
    """Logits [V] after the prompt and after each answer token but the last."""
    caches = make_caches(model)
    model(mx.array([prompt[:-1]], dtype=mx.int32), cache=caches)
    inputs = [mx.array([[token]], dtype=mx.int32) for token in (prompt[-1], *answer[:-1])]
    logits: list[mx.array] = [model(token, cache=caches)[0, -1] for token in inputs]
    mx.eval(logits)
    return logits


def _together(model: Any, store: Store, *, cohorts: bool) -> list[list[mx.array]]:
    rows = [ProbeRow(make_caches(model)) for _ in PROMPTS]
    bodies = [prompt[:-1] for prompt in PROMPTS]
    if cohorts:
        width = max(map(len, bodies))
        padded = [[*body, *([0] * (width - len(body)))] for body in bodies]
        store.prefill(rows, mx.array(padded, dtype=mx.int32), [len(body) for body in bodies])
    else:
        for row, body in zip(rows, bodies, strict=True):
            store.prefill([row], mx.array([body], dtype=mx.int32), [len(body)])
    for row, body in zip(rows, bodies, strict=True):
        row.fed = len(body)
        mx.eval(arrays_of(row.cache))
    logits: list[list[mx.array]] = [[], []]
    for step in range(len(ANSWERS[0])):
        inputs = {id(row): (p[-1], *a)[step] for row, p, a in zip(rows, PROMPTS, ANSWERS, strict=True)}
        places = store.order(rows)
        tokens = [[0 if row is None else inputs[id(row)]] for row in places]
        out = store.step(places, mx.array(tokens, dtype=mx.int32))
        mx.eval(out)
        for at, row in enumerate(rows):
            row.fed += 1
            logits[at].append(out[next(p for p, other in enumerate(places) if other is row)])
    for row in rows:
        store.forget(row)
    return logits


def _differs(alone: list[list[mx.array]], together: list[list[mx.array]]) -> str:
    """What is wrong, or nothing."""
    worst = 0.0
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            spread = cast(float, mx.std(a.astype(mx.float32)).item())
            apart = cast(float, mx.max(mx.abs(a.astype(mx.float32) - b.astype(mx.float32))).item())
            share = apart / spread if spread > 0 else apart
            if not share <= worst:  # also where it is no number
                worst = share
    limit = NOISE if alone[0][0].dtype == mx.float32 else NOISE_OF_HALVES
    return "" if worst <= limit else f"logits differ by {worst:.3g} of their spread (at most {limit:g} is noise)"

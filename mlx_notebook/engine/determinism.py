"""Whether a model's rows are bitwise independent of their neighbours here: tried at load, in deterministic mode.

With a fixed number of places a step's shapes never change, and each row's attention looks at that row alone; what
is left to prove is that the library's kernels compute each row of `[R, ...]` by itself on this device, for this
architecture and type. So the same row is run in an empty batch, and again in another place among other rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.kv_scheme import KVScheme
from mlx_notebook.core.placement import Reason
from mlx_notebook.engine.kv.convert import convert_due
from mlx_notebook.engine.parity import ProbeRow
from mlx_notebook.engine.stores.caches import arrays_of, make_caches
from mlx_notebook.engine.stores.rows import RowsStore
from mlx_notebook.errors import UnsupportedRequest
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT, ANSWER = (7, 3, 11, 5, 2, 9, 4), (3, 10, 5, 8)
STRANGERS = ((12, 6), (4, 8, 6, 1, 13), (10, 9, 3))


def check_deterministic(model: Any, slots: int, scheme: KVScheme | None = None) -> None:
    """Raise unless a row's logits are bitwise the same alone and among others, with keys and values as they are stored.

    Raises:
        UnsupportedRequest: with reason `determinism-unproven`, saying what was seen.
    """
    try:
        found = _differs(model, slots, scheme or KVScheme())
    except Exception as error:  # noqa: BLE001 - some types do not run on some devices at all
        found = as_text(error)[0]
    if found:
        kind = type(model).__module__.rpartition(".")[2]
        text = (
            f"deterministic=True is not proven for {kind} on {mx.default_device().type.name}: {found}; "
            "leave deterministic out, or use another type of weights."
        )
        raise UnsupportedRequest(text, reasons=[Reason("determinism-unproven", text)])


def _differs(model: Any, slots: int, scheme: KVScheme) -> str:
    alone = _logits(model, RowsStore(model, slots), (), scheme)
    for before in range(1, min(slots, len(STRANGERS) + 1)):
        others = _logits(model, RowsStore(model, slots), STRANGERS[:before], scheme)
        for step, (one, other) in enumerate(zip(alone, others, strict=True)):
            if not mx.array_equal(one, other).item():
                return f"logits of token {step} depend on whether {before} other rows are there"
    return ""


def _logits(model: Any, store: RowsStore, strangers: Sequence[tuple[int, ...]], scheme: KVScheme) -> list[mx.array]:
    """Logits of the row's tokens, where the strangers came first and took the first places."""
    rows = [_filled(model, store, prompt, scheme) for prompt in (*strangers, PROMPT)]
    found = []
    for token in ANSWER:
        places = store.order(rows)
        inputs = mx.array([[0 if row is None else token + at] for at, row in enumerate(places)], dtype=mx.int32)
        own = next(at for at, row in enumerate(places) if row is rows[-1])
        inputs[own, 0] = token
        logits = store.step(places, inputs)
        mx.eval(logits)
        found.append(logits[own])
        for row in rows:
            row.fed += 1
    return found


def _filled(model: Any, store: RowsStore, prompt: tuple[int, ...], scheme: KVScheme) -> ProbeRow:
    row = ProbeRow(make_caches(model))
    store.prefill([row], mx.array([prompt], dtype=mx.int32), [len(prompt)])
    mx.eval(arrays_of(row.cache))
    row.fed = len(prompt)
    convert_due(row.cache, replace(scheme, start=0))
    return row

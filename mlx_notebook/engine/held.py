"""The draws that had to wait for a token on the host: rows with processors of the user's, and rows with a grammar.

A grammar's mask depends on the tokens so far, so it is filled once the last of them is known, while the device computes
the logits that it is laid over. Nothing here waits for those, except where a processor looks at them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
import numpy as np

from mlx_notebook.engine.apart import together_or_apart
from mlx_notebook.engine.logprobs import normalise
from mlx_notebook.engine.masks import MaskFiller, masked
from mlx_notebook.engine.sampling import draw_rows
from mlx_notebook.engine.usercode import processed
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from mlx_notebook.engine.row import RowState
    from mlx_notebook.engine.sampling import Drawn

Failed = list[tuple["RowState", tuple[str, str]]]


def draw_held(rows: Sequence[RowState], masks: MaskFiller, *, apart: bool = False) -> Failed:
    """Draw the next token of each of these rows, with `apart` one by one and waiting; those that failed, and why.

    The mask comes after everything else that changes the logits: no bias and no processor reaches past it.
    """
    failed: Failed = []
    seen: dict[int, mx.array] = {}  # processors first: what they do to this thread's streams, only built arrays feel
    _each([row for row in rows if row.hosted], failed, lambda row: seen.__setitem__(id(row), _processed(row)))
    ready = [row for row in rows if not row.hosted or id(row) in seen]
    allowed = _masks(ready, masks, failed)
    failures = {id(row) for row, _ in failed}
    ready = [row for row in ready if id(row) not in failures]

    def draw(some: Sequence[RowState]) -> None:
        hosted = some[0].hosted
        changed = hosted or any(row.sampler.adjusts for row in some)
        logits = mx.concatenate([seen[id(row)] for row in some]) if hosted else _adjusted(some, changed=changed)
        found = _draw(some, logits, [allowed.get(id(row)) for row in some], changed=changed)
        waits = [array for one in found for array in one.arrays]
        if apart or hosted:
            mx.eval(waits)
        else:
            mx.async_eval(waits)  # type: ignore[no-untyped-call]
        for row, one in zip(some, found, strict=True):  # only now: what fails leaves no trace, and is drawn again
            row.ready, row.drawable, row.branches = one.ready, one.drawable, one.branches

    for group in _drawn_together(ready, seen):
        failed += together_or_apart(group, draw, apart=apart)
    for row in rows:
        row.logits = None
    return failed


def _drawn_together(rows: Sequence[RowState], seen: dict[int, mx.array]) -> list[list[RowState]]:
    """Rows that are drawn together: those without processors, and those whose processors gave the same type.

    A neighbour's wider one must not change how a row's numbers are rounded.
    """
    groups: dict[mx.Dtype | None, list[RowState]] = {}
    for row in rows:
        groups.setdefault(seen[id(row)].dtype if row.hosted else None, []).append(row)
    return list(groups.values())


def _each(rows: Sequence[RowState], failed: Failed, work: Callable[[RowState], None]) -> None:
    """Do `work` for each of these rows; of those for which it did not go well, why not."""
    for row in rows:
        try:
            work(row)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything; it is this row's failure
            failed.append((row, as_text(error)))


def _processed(row: RowState) -> mx.array:
    """A row's logits [1, V] after bias, penalties and processors."""
    logits, place = _placed(row)
    own = processed(row, logits[place : place + 1])
    mx.eval(own)  # now, so that what a processor made is this row's failure if it cannot be computed
    return own


def _adjusted(rows: Sequence[RowState], *, changed: bool) -> mx.array:
    """Logits [R, V] of rows without processors, with their bias and penalties where any has some."""
    if not changed:
        return _gathered(rows)
    pieces = []
    for row in rows:
        logits, place = _placed(row)
        pieces.append(row.sampler.adjust(row.history, logits[place : place + 1]))
    return mx.concatenate(pieces)


def _placed(row: RowState) -> tuple[mx.array, int]:
    if row.logits is None:
        raise RuntimeError(f"row {row.request.id} has no logits to draw from")
    return row.logits


def _gathered(rows: Sequence[RowState]) -> mx.array:
    """Logits [R, V] of rows that stand in one array, untouched."""
    logits, _ = _placed(rows[0])
    places = [_placed(row)[1] for row in rows]
    if places == list(range(logits.shape[0])):
        return logits
    return logits[mx.array(places)]


def _masks(rows: Sequence[RowState], masks: MaskFiller, failed: Failed) -> dict[int, npt.NDArray[np.bool_]]:
    """The mask [V] of each row that has a grammar, by the row's identity."""
    found: dict[int, npt.NDArray[np.bool_]] = {}
    shaped = [(row, row.grammar) for row in rows if row.grammar is not None]
    if not shaped:
        return found
    width = _placed(shaped[0][0])[0].shape[-1]
    try:
        filled = list(masks.fill([grammar for _, grammar in shaped], width))
    except BaseException:  # noqa: BLE001 - the library panics; whose grammar it was shows when each is asked alone
        filled = []
    for at, (row, grammar) in enumerate(shaped):
        try:
            mask = filled[at] if filled else masks.fill([grammar], width)[0]
            while grammar.renewed():
                mask = masks.fill([grammar], width)[0]
            grammar.check(mask)
        except BaseException as error:  # noqa: BLE001 - that row has no way on; the others do
            failed.append((row, as_text(error)))
        else:
            found[id(row)] = mask
    return found


class _Next(NamedTuple):
    """A row's next token, whether it could be drawn at all, and what else the grammar allowed."""

    ready: Drawn
    drawable: mx.array | None
    branches: tuple[list[int], mx.array] | None

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be evaluated."""
        more = self.drawable, None if self.branches is None else self.branches[1]
        return [*self.ready.arrays, *(array for array in more if array is not None)]


def _draw(
    rows: Sequence[RowState], logits: mx.array, allowed: Sequence[npt.NDArray[np.bool_] | None], *, changed: bool
) -> list[_Next]:
    """Draw for rows in order from logits [R, V].

    Where logits were `changed`, nothing may be left to draw from: the likeliest of nothing is token 0, which the
    grammar may well allow. So it is kept whether what was drawn could be.
    """
    if any(mask is not None for mask in allowed):
        everything = np.ones(logits.shape[-1], dtype=np.bool_)
        logits = masked(logits, np.stack([everything if mask is None else mask for mask in allowed]))
    drawn = draw_rows([row.sampler for row in rows], [row.produced for row in rows], logits)
    possible: mx.array | None = None
    if changed:
        possible = mx.take_along_axis(logits, drawn[0].together.tokens[:, None], axis=-1)[:, 0] > -mx.inf
    found: list[_Next] = []
    for at, (row, one, mask) in enumerate(zip(rows, drawn, allowed, strict=True)):
        drawable = possible[at] if row.grammar is not None and possible is not None else None
        branches = None
        if row.grammar is not None and row.grammar.tally is not None and mask is not None and not row.grammar.waits:
            ids = np.flatnonzero(mask)
            logprobs = normalise(logits[at : at + 1].astype(mx.float32))[0, mx.array(ids)]
            branches = ids.tolist(), logprobs
        found.append(_Next(one, drawable, branches))
    return found

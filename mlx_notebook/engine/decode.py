"""One decode step: dispatch the forward of the next token, read this one, commit it row by row.

The device is never left waiting for Python: by the time a token is read, the next forward is under way, and
for rows without host code in between so is the next draw. At a row's end by its own doing that one forward is
wasted, never more, and no user code runs after the last token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from mlx_notebook.core.events import RowOutcome
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.engine.usercode import processed, wants_more
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.engine.row import RowState

Finish = tuple[FinishReason, FinishDetail]
Read = tuple[int, "TokenLogprob | None"]


def dispatch(model: Any, row: RowState, context_length: int | None) -> None:
    """Start the forward of the token after `ready`, unless `ready` is the last by length."""
    if row.ready is None:
        raise RuntimeError(f"row {row.request.id} is decoded before its prompt was computed")
    if row.is_last(context_length):
        return
    token = row.ready.token
    logits = model(token[None], cache=row.cache)[:, -1, :]
    row.fed += 1
    row.remember(token)
    if row.hosted:
        row.logits = logits
        mx.async_eval(logits)  # type: ignore[no-untyped-call]
    else:
        row.ahead = row.sampler.draw(row.sampler.adjust(row.history, logits), len(row.committed) + 1)
        mx.async_eval(row.ahead.arrays)  # type: ignore[no-untyped-call]


def read(row: RowState) -> Read:
    """Wait for `ready` and take it off the device."""
    if row.ready is None:
        raise RuntimeError(f"row {row.request.id} has no token to read")
    token_id = int(cast(int, row.ready.token.item()))
    logprobs = row.ready.logprobs
    return token_id, logprobs.read(token_id) if logprobs else None


def commit(row: RowState, token_id: int, logprob: TokenLogprob | None, context_length: int | None) -> RowOutcome:
    """Make the token the row's own; whatever its user code raises ends this row and no other."""
    row.committed.append(token_id)
    shown: list[str] = []
    try:
        finish = _advance(row, token_id, logprob, shown, context_length)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too; it is this row's failure
        failure = as_text(error)
        shown.append(row.text.flush())
        return RowOutcome(row.request.id, token_id, "".join(shown), logprob, error=failure)
    return RowOutcome(row.request.id, token_id, "".join(shown), logprob, finish=finish)


def _advance(
    row: RowState, token_id: int, logprob: TokenLogprob | None, shown: list[str], context_length: int | None
) -> Finish | None:
    """Text, end, callback, and the next draw where it had to wait. `shown` collects text, also up to a failure."""
    ends = token_id in row.request.shape.eos_ids
    finish: Finish | None = (FinishReason.STOP, FinishDetail.EOS) if ends else None
    if not ends:
        shown.append(row.text.push(token_id))
        finish = _stop_or_length(row, context_length)
    if finish is not None:
        shown.append(row.text.flush())
        if row.text.stop.matched:  # also where the last held text completed it
            finish = (FinishReason.STOP, FinishDetail.STOP_STRING)
    if not ends and not wants_more(row, token_id, "".join(shown), logprob) and finish is None:
        shown.append(row.text.flush())
        finish = (FinishReason.STOP, FinishDetail.CALLBACK)
    if finish is None:
        _draw_next(row)
    return finish


def _stop_or_length(row: RowState, context_length: int | None) -> Finish | None:
    if row.text.stop.matched:
        return FinishReason.STOP, FinishDetail.STOP_STRING
    if len(row.committed) >= row.request.shape.sampling.max_tokens:
        return FinishReason.LENGTH, FinishDetail.MAX_TOKENS
    if context_length is not None and len(row.request.shape.prompt_ids) + len(row.committed) >= context_length:
        return FinishReason.LENGTH, FinishDetail.CONTEXT
    return None


def _draw_next(row: RowState) -> None:
    if row.logits is not None:
        row.ahead = row.sampler.draw(processed(row, row.logits), len(row.committed))
        row.logits = None
        mx.eval(row.ahead.arrays)  # now, so that what a processor made is this row's failure if it cannot be computed
    row.ready, row.ahead = row.ahead, None

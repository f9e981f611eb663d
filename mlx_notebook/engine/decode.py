"""One decode step of a batch: dispatch the forward of the next tokens, read these, commit them row by row.

The device is never left waiting for Python: by the time a token is read, the next forward is under way, and
for rows without host code in between so is the next draw (`held` has the others). At a row's end by its own doing
its part of that one forward is wasted, never more, and no user code runs after the last token.

A row that was just prefilled has nothing to commit yet: its first step feeds the last prompt token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import mlx.core as mx

from mlx_notebook.core.events import RowOutcome
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.engine.apart import together_or_apart
from mlx_notebook.engine.held import draw_held
from mlx_notebook.engine.matcher import nothing_left
from mlx_notebook.engine.sampling import draw_rows
from mlx_notebook.engine.usercode import take_time, wants_more
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.engine.apart import Failure
    from mlx_notebook.engine.masks import MaskFiller
    from mlx_notebook.engine.matcher import Matcher
    from mlx_notebook.engine.row import RowState
    from mlx_notebook.engine.stores.store import Store

Finish = tuple[FinishReason, FinishDetail]
Read = tuple[int, "TokenLogprob | None"]
Places = list["RowState | None"]
Undrawn = list[tuple["RowState", "Failure"]]


def dispatch(store: Store, rows: Sequence[RowState], context_length: int | None, *, apart: bool = False) -> Undrawn:
    """Start the forward of the tokens after `ready`, except for rows whose `ready` is the last by length.

    The rows whose next token could not be drawn, and why. With `apart`, the forward and then each draw is waited for,
    so that what fails where it is computed is told too.
    """
    going = [row for row in rows if not row.is_last(context_length)]
    if not going:
        return []
    places = store.order(going)
    logits = store.step(places, _next_tokens(places))
    waits: list[mx.array] = []
    for row in going:
        row.fed += 1
        if row.ready is None:
            row.remember_known()
        elif row.reach != 0:
            row.remember(row.ready.token)
    if apart:
        mx.eval(logits)
    free = [(place, row) for place, row in enumerate(places) if row is not None and not row.held]
    undrawn = _draw_free(free, logits, waits, apart=apart) if free else []
    held = [(place, row) for place, row in enumerate(places) if row is not None and row.held]
    for place, row in held:
        row.logits = logits, place
        if row.reach != 0:
            waits.append(row.history)
    if held:
        waits.append(logits)
    mx.async_eval(waits)  # type: ignore[no-untyped-call]
    return undrawn


def _next_tokens(places: Places) -> mx.array:
    """Each place's next input, [R, 1]: a drawn token, perhaps still being computed, or the last known one."""
    drawn = [row.ready for row in places if row is not None and row.ready is not None]
    if drawn and len(drawn) == len(places) == drawn[0].together.tokens.shape[0]:
        first = drawn[0].together
        if all(one.together is first and one.place == at for at, one in enumerate(drawn)):
            return first.tokens[:, None]
    known: list[int] = []
    sources: dict[int, int] = {}
    pieces: list[mx.array] = []
    order: list[int] = []
    total = 0
    for row in places:  # where in all the sources side by side the place's token stands; known ones come last
        if row is not None and row.ready is not None:
            together, place = row.ready
            if id(together) not in sources:
                sources[id(together)] = total
                pieces.append(together.tokens.astype(mx.int32))
                total += together.tokens.shape[0]
            order.append(sources[id(together)] + place)
        else:
            order.append(-1 - len(known))
            known.append(0 if row is None else row.last_known)
    if known:
        pieces.append(mx.array(known, dtype=mx.int32))
    order = [at if at >= 0 else total - 1 - at for at in order]
    side_by_side = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
    return side_by_side[mx.array(order)][:, None]


def _draw_free(
    rows: Sequence[tuple[int, RowState]], logits: mx.array, waits: list[mx.array], *, apart: bool
) -> Undrawn:
    """Draw for rows without host code; `waits` gets what is to be evaluated. The rows whose own draw fails, and why."""

    def draw(some: Sequence[tuple[int, RowState]]) -> None:
        arrays = _draw_ahead(some, logits)
        if apart:
            mx.eval(arrays)
        waits.extend(arrays)

    return [(row, error) for (_, row), error in together_or_apart(rows, draw, apart=apart)]


def _draw_ahead(rows: Sequence[tuple[int, RowState]], logits: mx.array) -> list[mx.array]:
    """Draw for rows without host code, before anybody reads the tokens that were fed; what is to be evaluated."""
    if any(row.sampler.adjusts for _, row in rows):
        pieces = [
            row.sampler.adjust(row.history, logits[place : place + 1])
            if row.sampler.adjusts
            else logits[place : place + 1]
            for place, row in rows
        ]
        logits = pieces[0] if len(pieces) == 1 else mx.concatenate(pieces)
    elif len(rows) < logits.shape[0]:
        logits = logits[mx.array([place for place, _ in rows])]
    drawn = draw_rows([row.sampler for _, row in rows], [row.produced for _, row in rows], logits)
    for (_, row), one in zip(rows, drawn, strict=True):
        row.ahead = one
    return drawn[0].arrays


def read(rows: Sequence[RowState]) -> list[Read | None]:
    """Wait for each row's `ready` and take it off the device; None for rows that have none yet."""
    return [None if row.ready is None else row.ready.read() for row in rows]


def commit(
    rows: Sequence[RowState],
    tokens: Sequence[Read | None],
    context_length: int | None,
    masks: MaskFiller,
    undrawn: Undrawn,
    *,
    apart: bool = False,
) -> list[RowOutcome]:
    """Make each token its row's own; whatever goes wrong in one row ends that row and no other.

    Rows that are `undrawn` end too, unless this token ends them anyway.
    """
    outcomes: dict[int, RowOutcome] = {}
    go_on: list[RowState] = []
    for row, token in zip(rows, tokens, strict=True):
        if token is not None:
            outcome = _commit_row(row, *token, context_length)
            outcomes[row.request.id] = outcome
            if outcome.finish is not None or outcome.error is not None:
                continue
        row.ready, row.ahead = row.ahead, None
        go_on.append(row)
    ended = [(row, error) for row, error in undrawn if row in go_on]
    ended += draw_held([row for row in go_on if row.logits is not None], masks, apart=apart)
    for row, error in ended:
        told = outcomes.get(row.request.id, RowOutcome(row.request.id, None))
        outcomes[row.request.id] = RowOutcome(
            row.request.id, told.token_id, told.text + _rest_of(row), told.logprob, error=error
        )
    for row in rows:
        spent = take_time(row) if row.user_ns else 0
        if spent and row.request.id in outcomes:
            outcomes[row.request.id] = outcomes[row.request.id]._replace(user_ns=spent)
    return list(outcomes.values())


def _commit_row(row: RowState, token_id: int, logprob: TokenLogprob | None, context_length: int | None) -> RowOutcome:
    """Take one token through grammar, text, end and callback. Whatever goes wrong on the way is this row's failure."""
    shown: list[str] = []
    came = False  # a draw that the grammar does not allow never becomes the row's
    try:
        if row.grammar is not None:
            _accept(row, row.grammar, token_id)
        row.committed.append(token_id)
        came = True
        finish = _advance(row, token_id, logprob, shown, context_length)
        shares = _shares(row, finish)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, SystemExit too; native code panics
        failure = as_text(error)
        text = "".join(shown) + _rest_of(row)
        if not came:
            return RowOutcome(row.request.id, None, text, error=failure)
        return RowOutcome(row.request.id, token_id, text, logprob, error=failure)
    return RowOutcome(row.request.id, token_id, "".join(shown), logprob, finish=finish, shares=shares)


def _rest_of(row: RowState) -> str:
    """Text that was held back, at the end of a row that failed; "" where even that cannot be had."""
    try:
        return row.text.flush()
    except BaseException:  # noqa: BLE001 - the row has its failure already
        return ""


def _shares(row: RowState, finish: Finish | None) -> tuple[float, ...]:
    """The probabilities of choices, where they are summed and the answer is whole."""
    if row.grammar is None or row.grammar.tally is None or not _is_whole(finish):
        return ()
    return row.grammar.tally.shares()


def _is_whole(finish: Finish | None) -> bool:
    return finish is not None and finish[1] in (FinishDetail.GRAMMAR, FinishDetail.EOS)


def _accept(row: RowState, grammar: Matcher, token_id: int) -> None:
    """Move the row's grammar on; with it the sums over choices, if they are kept."""
    if row.drawable is not None and not row.drawable.item():
        raise nothing_left(token_id)
    grammar.accept(token_id)
    if grammar.tally is not None and row.branches is not None:
        ids, logprobs = row.branches
        grammar.tally.step(ids, cast("list[float]", logprobs.tolist()), token_id)


def _advance(
    row: RowState, token_id: int, logprob: TokenLogprob | None, shown: list[str], context_length: int | None
) -> Finish | None:
    """Text, end, callback. `shown` collects text, also up to a failure."""
    ends = token_id in row.request.shape.eos_ids
    finish: Finish | None = (FinishReason.STOP, FinishDetail.EOS) if ends else None
    if not ends:
        shown.append(row.text.push(token_id))
        finish = _stop_or_length(row, context_length)
    if finish is not None:
        shown.append(row.text.flush())
        if row.text.stop.matched:  # also where the last held text completed it
            finish = (FinishReason.STOP, FinishDetail.STOP_STRING)
    on_token = None if ends else row.request.code.on_token
    if on_token is not None and not wants_more(row, on_token, token_id, "".join(shown), logprob) and finish is None:
        shown.append(row.text.flush())
        finish = (FinishReason.STOP, FinishDetail.CALLBACK)
    return finish


def _stop_or_length(row: RowState, context_length: int | None) -> Finish | None:
    if row.text.stop.matched:
        return FinishReason.STOP, FinishDetail.STOP_STRING
    if row.grammar is not None and row.grammar.satisfied:
        return FinishReason.STOP, FinishDetail.GRAMMAR
    if len(row.committed) >= row.request.shape.sampling.max_tokens:
        return FinishReason.LENGTH, FinishDetail.MAX_TOKENS
    if context_length is not None and len(row.request.shape.prompt_ids) + len(row.committed) >= context_length:
        return FinishReason.LENGTH, FinishDetail.CONTEXT
    return None

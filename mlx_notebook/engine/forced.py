"""Text that a grammar forces: for a row that decodes alone, its tokens go into one forward.

Where the grammar leaves one way to go on, tokens are known before anything is computed. They are fed together with the
token before them, and the steps that follow commit them one by one, without a forward. So a row can be ahead of what
it committed: `row.forced` are the tokens to come, and what they left in its caches is cut off where it ends meanwhile.

Among others a row would need a forward of its own beside theirs, which costs more than it saves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.engine.sampling import certain
from mlx_notebook.engine.stores.caches import keeps_past, leaves, make_room, tidy_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.kv_scheme import KVScheme
    from mlx_notebook.core.placement import Capabilities
    from mlx_notebook.engine.row import RowState
    from mlx_notebook.engine.stores.store import Store

TOGETHER = 16
"""Tokens of one forward at most: so many already cost little each, and nobody who joins or cancels waits for more."""

NARROW = 32
"""Where a mask leaves no more tokens than this, and one of them would force others, it is waited for which one came.

Elsewhere, as inside of free text, that is rare, and the next forward is under way before the token is read.
"""


class ForcedText:
    """Looks for what is forced.

    Args:
        store: where the rows of a model are.
        facts: the model's vocabulary and context.
        scheme: how keys and values are stored.
    """

    def __init__(self, store: Store, facts: Capabilities, scheme: KVScheme) -> None:
        self._store = store
        self._vocab_size = facts.vocab_size
        self._context_length = facts.context_length
        self._scheme = scheme

    def behind(self, rows: Sequence[RowState]) -> list[int]:
        """What may be fed together with the next token of these rows; nothing unless it is one row, and forced."""
        if len(rows) != 1 or not self._store.spans or not self._is_for(rows[0]):
            return []
        row = rows[0]
        room = min(TOGETHER - 1, row.limit(self._context_length) - 1 - row.produced)
        if room <= 0 or row.grammar is None:
            return []
        first = None
        if row.ready is not None:
            if not any(row.grammar.forced(token_id, 1) for token_id in row.narrow):
                return []
            first = row.ready.token_id()
        ends = row.request.shape.eos_ids
        found: list[int] = []
        for token_id in row.grammar.forced(first, room):
            if token_id in ends or token_id >= self._vocab_size:
                break
            found.append(token_id)
        return found

    def _is_for(self, row: RowState) -> bool:
        """Whether a row's forced tokens may be fed ahead.

        Not where bias, penalties or processors have a say, nor where a column would not be stored as it is step by
        step. What cannot be cut back could not be kept if the row ended within.
        """
        if row.grammar is None or row.hosted or row.sampler.adjusts:
            return False
        if not self._scheme.native and not row.converted:
            return False
        ends_within = bool(row.request.shape.sampling.stop) or row.request.code.on_token is not None
        return not ends_within or all(keeps_past(leaf) for leaf in leaves(row.cache))


def feed_together(store: Store, row: RowState, following: list[int]) -> mx.array:
    """Start one forward of a row's next token and those that are forced behind it; logits [1, V] after the last."""
    first = row.last_known if row.ready is None else row.ready.token_id()
    store.settle(row)
    make_room(row.cache, 1 + len(following))
    logits = store.step(store.order([row]), mx.array([[first, *following]], dtype=mx.int32))
    tidy_windows(row.cache)
    row.fed += 1 + len(following)
    row.forced = following
    row.logits = logits, 0
    mx.async_eval(logits)  # type: ignore[no-untyped-call]
    return logits


def take_next(row: RowState) -> None:
    """The next of the tokens that were fed ahead is the one to be committed: of all that may come, it is the only."""
    token_id, *row.forced = row.forced
    row.ready = certain(token_id, row.sampler.options.logprobs)
    row.drawable = None
    if row.grammar is not None and row.grammar.tally is not None:
        row.branches = [token_id], mx.zeros(1)

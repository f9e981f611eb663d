"""Computing prompts: one row's chunk, or the bodies of several short prompts in one forward.

The schedule of one row is mlx-lm's, so that its numbers are too: every position but the last goes through in
chunks; the last one is fed by itself, by the row's first decode step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.engine.stores.caches import arrays_of, detach, make_room, tidy_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.events import PrefillPart
    from mlx_notebook.engine.row import RowState
    from mlx_notebook.engine.stores.store import Store

Body = tuple["RowState", tuple[int, ...]]


def body_of(row: RowState, part: PrefillPart) -> tuple[int, ...]:
    """The tokens of a part that go through now.

    Raises:
        RuntimeError: the part does not go on where the row stands.
    """
    if row.fed != part.start or part.stop <= part.start:
        raise RuntimeError(f"row {row.request.id}: {part} after {row.fed} tokens")
    ids = row.known[part.start : part.stop]
    # A token that waits (kept over a rewind) is the next to be fed: then all that is known goes through.
    return ids[:-1] if part.last and row.ready is None else ids


def feed(store: Store, bodies: Sequence[Body]) -> None:
    """Run these tokens through the model for their state alone, rows padded to the longest; evaluates the caches."""
    bodies = [(row, ids) for row, ids in bodies if ids]
    if not bodies:
        return
    lengths = [len(ids) for _, ids in bodies]
    width = max(lengths)
    padded = [[*ids, *([0] * (width - len(ids)))] for _, ids in bodies]
    for (row, _), length in zip(bodies, lengths, strict=True):
        store.settle(row)
        make_room(row.cache, length, len(row.known) - row.fed)
    store.prefill([row for row, _ in bodies], mx.array(padded, dtype=mx.int32), lengths)
    for (row, _), length in zip(bodies, lengths, strict=True):
        row.fed += length
        tidy_windows(row.cache)
    if len(bodies) == 1:
        mx.eval(arrays_of(bodies[0][0].cache))
    else:
        # A slice of the cohort's arrays would keep all of them alive.
        detach([cache for row, _ in bodies for cache in row.cache])
    mx.clear_cache()  # activations of a long chunk are of a size that no other step will use again


def step_through(store: Store, row: RowState, token_id: int) -> None:
    """Feed one token as a decode step would, among idle places, for its state alone.

    In a step a token's bits are not what they are in a chunk: an answer that is read again goes as it first went.
    """
    places = store.order([row])
    tokens = [[0 if other is None else token_id] for other in places]
    mx.eval(store.step(places, mx.array(tokens, dtype=mx.int32)))
    row.fed += 1


def check_ids(token_ids: Sequence[int], vocab_size: int, what: str) -> None:
    """MLX reads out of bounds without a word, and writes there too: nothing unchecked gets that far.

    Raises:
        ValueError: an id is outside [0, vocab_size).
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{what} {token_id} is outside the model's vocabulary (0 to {vocab_size - 1})")

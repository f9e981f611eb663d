"""Computing a prompt: chunks as instructed, the last prompt token alone, and the draw of the first token.

The schedule is mlx-lm's, so that one row's numbers are too: every position but the last goes through in
chunks, the last one is fed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.engine.usercode import processed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.row import RowState


def feed(model: Any, row: RowState, token_ids: Sequence[int]) -> None:
    """Run prompt tokens through the model for their state alone; evaluates the caches."""
    model(mx.array([list(token_ids)], dtype=mx.int32), cache=row.cache)
    row.fed += len(token_ids)
    mx.eval([layer.state for layer in row.cache])
    mx.clear_cache()  # activations of a long chunk are of a size that no other step will use again


def first_token(model: Any, row: RowState, token_id: int) -> None:
    """Feed the last known token and draw the one after it into `row.ready`, unless it stands there already."""
    logits = model(mx.array([[token_id]], dtype=mx.int32), cache=row.cache)[:, -1, :]
    row.fed += 1
    row.remember_known()
    if row.ready is None:
        drawn = row.sampler.draw(processed(row, logits), len(row.committed))
        mx.eval(drawn.arrays)
        row.ready = drawn
    else:
        mx.eval([layer.state for layer in row.cache])


def check_ids(token_ids: Sequence[int], vocab_size: int, what: str) -> None:
    """MLX reads out of bounds without a word, and writes there too: nothing unchecked gets that far.

    Raises:
        ValueError: an id is outside [0, vocab_size).
    """
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{what} {token_id} is outside the model's vocabulary (0 to {vocab_size - 1})")

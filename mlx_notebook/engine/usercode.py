"""Running a row's own Python, on the engine thread, in the context of whoever submitted it.

Nothing is caught here: callers commit a row under a guard that turns whatever comes, of any kind, into that
row's failure. One thing that such code may do to all rows is looked for: MLX can clear the streams of a thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.segments import SLOW_CODE_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.engine.row import RowState


def processed(row: RowState, logits: mx.array) -> mx.array:
    """Logits [1, V] after the row's bias and penalties, then its own processors in order.

    Raises:
        TypeError: a processor gave something else than an array of real numbers.
        ValueError: it gave an array of another shape.
    """
    logits = row.sampler.adjust(row.history, logits)
    shape = logits.shape
    for place, processor in enumerate(row.request.code.logits_processors):
        # Another object over the same values: what the processor does to it in place stays with it.
        tokens = row.history.reshape(-1)
        given = _run(row, f"logits processor {place} ({processor!r})", processor, tokens, logits)
        if not isinstance(given, mx.array):
            raise TypeError(
                f"logits processor {place} ({processor!r}) returned {type(given).__name__}; it must return the logits, "
                f"an mlx.core.array of shape {list(shape)}"
            )
        if given.shape != shape:
            raise ValueError(
                f"logits processor {place} ({processor!r}) returned shape {list(given.shape)}; expected {list(shape)}"
            )
        if mx.issubdtype(given.dtype, mx.complexfloating):  # it has no likeliest token
            raise TypeError(f"logits processor {place} ({processor!r}) returned complex numbers; expected real ones")
        logits = given
    return logits


def wants_more(
    row: RowState, on_token: Callable[..., Any], token_id: int, text: str, logprob: TokenLogprob | None
) -> bool:
    """Call the row's `on_token`; False if it said so."""
    return _run(row, "on_token", on_token, token_id, text, logprob) is not False


def _run(row: RowState, name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call a row's own code, and take its time.

    Raises:
        RuntimeError: it cleared this thread's streams. They are mended; what was under way on them is not lost.
    """
    began = time.monotonic_ns()
    kept = False
    try:
        found = row.context.run(function, *given)
    finally:
        row.user_ns += time.monotonic_ns() - began
        kept = row.streams_are_there()
    if not kept:
        raise RuntimeError(
            f"{name} cleared the streams of the engine thread (mx.clear_streams()), on which all rows are computed;"
            " leave them alone"
        )
    return found


def take_time(row: RowState) -> int:
    """Nanoseconds of the row's own code since the last time, 0 where it was not slow enough for a word."""
    spent, row.user_ns = row.user_ns, 0
    return spent if spent >= SLOW_CODE_NS else 0

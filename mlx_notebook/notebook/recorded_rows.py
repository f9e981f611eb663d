"""Rows of a recorded run as a stream's view reads them: all there is to come is there already."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlx_notebook.core.results import TokenLogprob
from mlx_notebook.gateway.handle import Progress
from mlx_notebook.notebook.run_words import ending, waiting
from mlx_notebook.trace.frames import figures_ms

if TYPE_CHECKING:
    from mlx_notebook.trace.trace import Trace

NO_ID = -1
"""Which token it was: a row's words are read, not its ids."""


class RecordedRow:
    """One request of a trace that has text.

    Raises:
        LookupError: the trace has no such request, or not its text.
        ValueError: the trace was made without text.
    """

    def __init__(self, trace: Trace, row_id: int) -> None:
        if not trace.with_text:
            raise ValueError(
                "this trace has no text to show: make it with trace(text=True) or save_trace(..., text=True)"
            )
        if row_id not in trace.recording.requests:
            raise LookupError(f"the trace has no request {row_id}")
        if row_id not in trace.about:
            raise LookupError(f"request {row_id}: {trace.title_of(row_id)}")
        self.id = row_id
        self.trace = trace
        self._about = trace.about[row_id]
        self.prompt_text = self._about.title or self._about.prompt
        self.text_so_far = "".join(self._about.pieces)

    def text_from(self, position: int, /) -> str:
        """The text after a position in characters."""
        return self.text_so_far[position:]

    def pieces(self, after: int = 0) -> list[str]:
        """The text that each token after the first `after` brought."""
        return list(self._about.pieces[after:])

    def logprobs_so_far(self, after: int = 0) -> list[TokenLogprob]:
        """Log-probabilities of its tokens, not a number where one is not known; a trace keeps no alternatives."""
        known = self._about.logprobs[after:]
        return [TokenLogprob(NO_ID, math.nan if one is None else one) for one in known]

    def progress(self) -> Progress:
        """Where it stood at the end of the record."""
        recording = self.trace.recording
        row = recording.requests[self.id]
        figures = figures_ms(row)
        tpot = figures["tpot_ms"]
        return Progress(
            status=row.status,
            prompt_tokens=row.prompt_tokens,
            prefilled=row.prefilled,
            cached_tokens=row.cached_tokens,
            generated_tokens=row.generated_tokens,
            decode_tps=1000 / tpot if tpot else None,
            ttft_ms=figures["ttft_ms"],
            elapsed_ms=max(0, row.over_ns(recording.now_ns) - row.submit_ns) / 1e6,
            finish_reason=None if row.reason is None else str(row.reason),
            finish_detail=None if row.detail is None else str(row.detail),
            error=ending(row) or None,
            waiting=waiting(recording, row),
        )

    def cancel(self) -> bool:
        """Nothing in a recorded run can be changed."""
        return False

    def done(self) -> bool:
        """Always: nothing more will come."""
        return True

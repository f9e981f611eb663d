"""Short sentences of a run's rows: what one waits for now, how one ended. `core.explain` has the long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.core.ring import WaitCause
from mlx_notebook.core.rows import FinishReason
from mlx_notebook.core.segments import CODES_OF_CAUSES, ROWS_OWN

if TYPE_CHECKING:
    from mlx_notebook.core.recording import Recording, RequestTrace


def waiting(recording: Recording, row: RequestTrace) -> str:
    """What a queued row waits for now, as far as the log tells."""
    if row.rewinds and len(row.returns) < len(row.rewinds):
        return "a step failed; it is computed again"
    waits = recording.waits
    if not len(waits):
        return "about to begin"
    cause, head, about = WaitCause(waits["cause"][-1]), waits["row"][-1], waits["about"][-1]
    before = "" if head in (0, row.id) else f", behind row {head}"
    if cause in _ROWS_OWN and row.shares and row.shares[-1][1]:
        _, reader, tokens = row.shares[-1]
        return f"row {reader} reads the beginning that both share ({tokens:,} tokens)"
    return _in_line(cause, about, before)


def _in_line(cause: WaitCause, about: int, before: str) -> str:
    if cause is WaitCause.NONE:
        return "about to begin"
    if cause is WaitCause.BATCH_FULL:
        return f"{'the one place is' if about == 1 else f'all {about} places are'} taken{before}"
    if cause is WaitCause.ALONE:
        return f"row {about} runs alone{before}"
    if cause is WaitCause.SHARED:
        return f"row {about} reads the beginning that both share{before}"
    return f"{_OTHERS[cause]}{before}"


_ROWS_OWN = tuple(cause for cause, code in CODES_OF_CAUSES.items() if code in ROWS_OWN)

_OTHERS = {
    WaitCause.BUDGET: "for memory: it does not fit beside the rows that run",
    WaitCause.FENCE: "somebody else asked for the device before",
    WaitCause.EMPTY: "it runs alone, once nobody else does",
    WaitCause.STATIC: "the policy lets nobody join a running batch",
    WaitCause.DEVICE: "for the device",
    WaitCause.PAUSED: "paused",
}


def ending(row: RequestTrace) -> str:
    """How a row ended, where that is worth a word."""
    if row.reason is None or row.detail is None:
        return "failed" if row.reason is FinishReason.ERROR else ""
    return _ENDINGS.get(str(row.detail), "").format(limit=f"{row.max_tokens:,}")


_ENDINGS = {
    "max_tokens": "cut at max_tokens ({limit})",
    "context": "cut: the model's context was full",
    "callback": "ended by its on_token",
    "user": "cancelled",
    "deadline": "cancelled: its deadline passed",
    "closed": "cancelled: the gateway was closed",
}

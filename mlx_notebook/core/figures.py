"""A row's figures: milliseconds and rates from the times that the engine thread stamped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_notebook.core.rows import Row


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in milliseconds, rates in tokens per second; None where the event never came.

    prompt_tps = (prompt - cached) / prefill; decode_tps = (generated - 1) / decode;
    ttft: from asking to the first token; tpot: decode time per token after the first.
    """

    queue_ms: float
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tps: float | None
    decode_tps: float | None


def figures_of(row: Row, now_ns: int) -> Figures:
    """The figures of a row; what is still going on counts up to `now_ns`."""
    end = row.ended_ns or now_ns
    queue_ms = max(0, (row.admitted_ns or end) - row.queued_ns) / 1e6
    prefill_ms = (row.first_token_ns - row.admitted_ns) / 1e6 if row.first_token_ns else None
    decode_ms = (end - row.first_token_ns) / 1e6 if row.first_token_ns else None
    later = row.generated_tokens - 1
    return Figures(
        queue_ms=queue_ms,
        prefill_ms=prefill_ms,
        decode_ms=decode_ms,
        ttft_ms=(row.first_token_ns - row.queued_ns) / 1e6 if row.first_token_ns else None,
        tpot_ms=decode_ms / later if decode_ms is not None and later > 0 else None,
        prompt_tps=(row.prompt_tokens - row.cached_tokens) / prefill_ms * 1e3 if prefill_ms else None,
        decode_tps=later / decode_ms * 1e3 if decode_ms and later > 0 else None,
    )

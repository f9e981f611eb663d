"""Spans of one request: where its time went, from the facts that its row recorded.

Names: `queue` (asked to admitted), `lease_wait` (of that, waiting for the device), `prefill` with
one `prefill_chunk` a chunk, `first_token` (an instant), `decode`, `delivery` (last token committed to
handle settled), and `request` around all. Times are monotonic nanoseconds of one process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_notebook.core.rows import Row


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of time; `start_ns == end_ns` is an instant. No text of the user's is in it."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def ms(self) -> float:
        """Length in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


def spans_of(row: Row, *, lease_granted_ns: int = 0, settled_ns: int = 0, now_ns: int) -> tuple[Span, ...]:
    """The spans of a row so far, in order of their start; what is not over ends at `now_ns`."""
    over_ns = settled_ns or now_ns
    queue_end = row.admitted_ns or row.ended_ns or now_ns
    spans = [
        Span("request", row.queued_ns, over_ns, {"row": row.id, "status": str(row.status)}),
        Span("queue", row.queued_ns, queue_end),
    ]
    if row.lease_wanted_ns and lease_granted_ns > row.lease_wanted_ns:
        spans.append(Span("lease_wait", max(row.lease_wanted_ns, row.queued_ns), min(lease_granted_ns, queue_end)))
    if row.admitted_ns:
        prefill_end = row.first_token_ns or row.ended_ns or now_ns
        spans.append(
            Span(
                "prefill",
                row.admitted_ns,
                prefill_end,
                {"prompt_tokens": row.prompt_tokens, "cached_tokens": row.cached_tokens},
            )
        )
        spans += [Span("prefill_chunk", c.began_ns, c.ended_ns, {"start": c.start, "stop": c.stop}) for c in row.chunks]
    if row.first_token_ns:
        spans.append(Span("first_token", row.first_token_ns, row.first_token_ns))
        spans.append(
            Span("decode", row.first_token_ns, row.ended_ns or now_ns, {"generated_tokens": row.generated_tokens})
        )
    if row.ended_ns and settled_ns:
        spans.append(Span("delivery", row.ended_ns, settled_ns))
    return tuple(sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)))

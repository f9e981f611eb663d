"""Why a request waited and where its time went: the log's words, and what only the gateway knows.

From outside the log: a missing BLAS, a prompt cache that had nothing (or was off), who held the device, a turn of a
chat that had to come first. Codes: missing-blas, cache-miss, cache-off, not-submitted, and those of `core.explain`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.explain import TimedReason, explain, figure
from mlx_notebook.core.figures import figures_of
from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.core.recording import recording_of
from mlx_notebook.core.segments import segments_of
from mlx_notebook.gateway.lease import device_lease

if TYPE_CHECKING:
    from mlx_notebook.core.recording import Recording
    from mlx_notebook.gateway.record import RowRecord
    from mlx_notebook.gateway.thread import Engine


def recording_now(engine: Engine) -> Recording:
    """What the engine's log holds now."""
    if engine.loop is None:
        return recording_of([])
    taken = engine.loop.ring.since(0)
    return recording_of([taken.columns], taken.missed)


def explain_row(
    engine: Engine,
    record: RowRecord,
    options: dict[str, Any],
    at_ns: int | None = None,
    recording: Recording | None = None,
) -> list[TimedReason]:
    """The reasons of one request, or of one moment of it; never waits."""
    recording = recording_now(engine) if recording is None else recording
    now = time.monotonic_ns()
    if record.id not in recording.requests:
        return [_unknown(engine, record, now)]
    reasons = explain(recording, record.id, at_ns=at_ns, now_ns=now)
    reasons = [
        _with_holders(engine, recording, record.id, one) if one.code == "queue-device" else one for one in reasons
    ]
    if at_ns is not None:
        return reasons
    endings = [one for one in reasons if one.code.startswith("ended-")]
    others = [one for one in reasons if not one.code.startswith("ended-")]
    return [*others, *_cache(engine, record, options), *_blas(engine), *endings]


def _unknown(engine: Engine, record: RowRecord, now_ns: int) -> TimedReason:
    if not record.row.admitted_ns and not record.done:
        return TimedReason("not-submitted", f"Not in the queue yet: {engine.why_waiting(record.id)}.")
    figures = figures_of(record.row, now_ns)
    parts = {"in the queue": figures.queue_ms, "reading the prompt": figures.prefill_ms, "writing": figures.decode_ms}
    known = [f"{figure(ms)} {what}" for what, ms in parts.items() if ms is not None]
    return TimedReason("log-overwritten", f"The log is bounded and has forgotten this request: {', '.join(known)}.")


def _with_holders(engine: Engine, recording: Recording, row_id: int, reason: TimedReason) -> TimedReason:
    """Name who held the device meanwhile."""
    stretches = [
        (one.start_ns / 1e9, one.end_ns / 1e9)
        for one in segments_of(recording, row_id, time.monotonic_ns())
        if one.code == "queue-device"
    ]
    lease = device_lease()
    held = [
        f"{past.owner} ({past.kind})"
        for past in list(lease.past)
        if (past.owner, past.kind) != (engine.name, "rows")
        and any(past.start < end and past.end > start for start, end in stretches)
    ]
    holder = lease.holder
    now = time.monotonic()
    if holder is not None and holder.owner != engine.name and any(end > now - holder.age_s for _, end in stretches):
        held.append(f"{holder.owner} ({holder.kind})")
    names = list(dict.fromkeys(held))
    return replace(reason, text=f"{reason.text} It was held by {' and '.join(names)}.") if names else reason


def _cache(engine: Engine, record: RowRecord, options: dict[str, Any]) -> list[TimedReason]:
    row = record.row
    if not row.admitted_ns or row.cached_tokens or engine.loop is None:
        return []
    settings = engine.loop.scheduler.settings
    # Whole chunks in deterministic mode, and one token is always left to read.
    least = max(MIN_REUSE, settings.chunk or 0) if settings.deterministic else MIN_REUSE
    if row.prompt_tokens <= least or not engine.loop.scheduler.memory.prefixes.ceiling:
        return []
    if not options.get("cache_prompt", True):
        return [TimedReason("cache-off", "The whole prompt was read: cache_prompt=False.")]
    text = f"The whole prompt was read: nothing that was kept could spare its first {least} tokens."
    return [TimedReason("cache-miss", text)]


def _blas(engine: Engine) -> list[TimedReason]:
    facts = engine.loaded
    if facts is None or getattr(facts, "model", None) is None or not str(facts.device).startswith("CPU"):
        return []
    from mlx_notebook.models.blas import preload_blas

    status = preload_blas()
    if not status.slow:
        return []
    return [TimedReason("missing-blas", f"Every step is slow: MLX runs without a fast BLAS. Mend it: {status.advice}")]

"""Why a request waited and where its time went: the log's words, and what only the gateway knows.

From outside the log: a missing BLAS, a prompt cache that had nothing (or was off), who held the device, a turn of a
chat that had to come first. Codes: missing-blas, cache-miss, cache-off, not-submitted, and those of `core.explain`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.explain import Tenure, TimedReason, explain, figure
from mlx_notebook.core.figures import figures_of
from mlx_notebook.core.placement import Reason
from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.core.recording import recording_of
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
    beside = beside_the_log(engine, record, options)
    return explain(recording, record.id, at_ns=at_ns, now_ns=now, tenures=tenures_beside(engine), beside=beside)


def beside_the_log(engine: Engine, record: RowRecord, options: dict[str, Any]) -> list[Reason]:
    """What is known of a request's time that no record of the log says."""
    return [*_cache(engine, record, options), *_blas(engine)]


def tenures_beside(engine: Engine) -> list[Tenure]:
    """Who held the device beside this engine's rows, as far back as the device's line remembers."""
    lease = device_lease()
    held = [
        Tenure(past.owner, past.kind, int(past.start * 1e9), int(past.end * 1e9))
        for past in list(lease.past)
        if (past.owner, past.kind) != (engine.name, "rows")
    ]
    holder, now = lease.holder, time.monotonic()
    if holder is not None and (holder.owner, holder.kind) != (engine.name, "rows"):
        held.append(Tenure(holder.owner, holder.kind, int((now - holder.age_s) * 1e9), int(now * 1e9)))
    return held


def _unknown(engine: Engine, record: RowRecord, now_ns: int) -> TimedReason:
    if not record.row.admitted_ns and not record.done:
        return TimedReason("not-submitted", f"Not in the queue yet: {engine.why_waiting(record.id)}.")
    figures = figures_of(record.row, now_ns)
    parts = {"in the queue": figures.queue_ms, "reading the prompt": figures.prefill_ms, "writing": figures.decode_ms}
    known = [f"{figure(ms)} {what}" for what, ms in parts.items() if ms is not None]
    return TimedReason("log-overwritten", f"The log is bounded and has forgotten this request: {', '.join(known)}.")


def _cache(engine: Engine, record: RowRecord, options: dict[str, Any]) -> list[Reason]:
    row = record.row
    if not row.admitted_ns or row.cached_tokens or engine.loop is None:
        return []
    settings = engine.loop.scheduler.settings
    # Whole chunks in deterministic mode, and one token is always left to read.
    least = max(MIN_REUSE, settings.chunk or 0) if settings.deterministic else MIN_REUSE
    if row.prompt_tokens <= least or not engine.loop.scheduler.memory.prefixes.ceiling:
        return []
    if not options.get("cache_prompt", True):
        return [Reason("cache-off", "The whole prompt was read: cache_prompt=False.")]
    text = f"The whole prompt was read: nothing that was kept could spare its first {least} tokens."
    return [Reason("cache-miss", text)]


def _blas(engine: Engine) -> list[Reason]:
    facts = engine.loaded
    if facts is None or getattr(facts, "model", None) is None or not str(facts.device).startswith("CPU"):
        return []
    from mlx_notebook.models.blas import preload_blas

    status = preload_blas()
    if not status.slow:
        return []
    return [Reason("missing-blas", f"Every step is slow: MLX runs without a fast BLAS. Mend it: {status.advice}")]

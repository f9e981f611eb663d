"""Requests as OpenTelemetry spans, through its SDK (`pip install 'mlx-notebook[otel]'`).

One span a request, named and with attributes as the semantic conventions for generative AI say (operation, model,
sampling, token counts, finish reason), kind INTERNAL since the model runs in this process; below it a span a
phase. Our own attributes begin with `mlx_notebook.`. Prompt and answer are attributes only where the trace has text.
Source: OpenTelemetry semantic conventions, "Semantic conventions for generative client AI spans" (in development).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.segments import segments_of
from mlx_notebook.trace.frames import figures_ms

if TYPE_CHECKING:
    from mlx_notebook.core.recording import RequestTrace
    from mlx_notebook.trace.trace import About, Trace

SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
"""Our options by the conventions' names; they were set, so they are said, defaults too."""

PROVIDER = "mlx_notebook"


def export(trace: Trace, tracer_provider: Any = None) -> int:
    """Give every request of the trace that is over to a tracer; how many spans of requests were made.

    Args:
        trace: what to export.
        tracer_provider: an OpenTelemetry `TracerProvider`; the global one if None.

    Raises:
        ImportError: OpenTelemetry is not installed; the command is said.
    """
    try:
        from opentelemetry import trace as api
    except ImportError as error:
        raise ImportError(
            "OpenTelemetry is not installed: pip install 'mlx-notebook[otel]' (or pip install opentelemetry-sdk)."
        ) from error
    provider = api.get_tracer_provider() if tracer_provider is None else tracer_provider
    tracer = provider.get_tracer("mlx_notebook")
    made = 0
    for row in trace.recording.requests.values():
        if row.end_ns >= 0 and row.submit_ns >= 0:
            _request(trace, row, tracer, api)
            made += 1
    return made


def _request(trace: Trace, row: RequestTrace, tracer: Any, api: Any) -> None:
    about = trace.about.get(row.id)
    attributes = attributes_of(row, about, with_text=trace.with_text)
    model = attributes.get("gen_ai.request.model", "")
    span = tracer.start_span(
        f"{attributes['gen_ai.operation.name']} {model}".strip(),
        context=api.set_span_in_context(api.INVALID_SPAN),
        kind=api.SpanKind.INTERNAL,
        attributes=attributes,
        start_time=row.submit_ns + trace.epoch_ns,
    )
    inside = api.set_span_in_context(span)
    segments = segments_of(trace.recording, row.id)
    for phase in ("queue", "prefill", "decode"):
        own = [one for one in segments if one.phase == phase]
        if own:
            child = tracer.start_span(
                phase,
                context=inside,
                attributes={f"mlx_notebook.{code.replace('-', '_')}_ms": ms for code, ms in _by_code(own).items()},
                start_time=own[0].start_ns + trace.epoch_ns,
            )
            child.end(end_time=own[-1].end_ns + trace.epoch_ns)
    if row.first_ns >= 0:
        span.add_event("first token", timestamp=row.first_ns + trace.epoch_ns)
    if row.status == "failed":
        span.set_status(api.Status(api.StatusCode.ERROR))
    span.end(end_time=row.end_ns + trace.epoch_ns)


def _by_code(segments: list[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in segments:
        found[one.code] = found.get(one.code, 0.0) + one.ms
    return found


def attributes_of(row: RequestTrace, about: About | None, *, with_text: bool = False) -> dict[str, Any]:
    """A request's attributes, by the conventions' names where there is one."""
    options = {} if about is None else about.options
    chat = not options.get("raw", True)
    values: dict[str, Any] = {
        "gen_ai.operation.name": "chat" if chat else "text_completion",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.output.type": "text",
        "gen_ai.request.max_tokens": row.max_tokens,
        "gen_ai.usage.input_tokens": row.prompt_tokens,
        "gen_ai.usage.output_tokens": row.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": row.cached_tokens,
        "gen_ai.response.id": str(row.id),
        "gen_ai.response.finish_reasons": [str(row.reason)],
        "mlx_notebook.finish_detail": str(row.detail or ""),
        "mlx_notebook.priority": row.priority,
        "mlx_notebook.rewinds": len(row.rewinds),
    }
    if about is not None and about.model:
        values["gen_ai.request.model"] = values["gen_ai.response.model"] = about.model
    values.update({name: options[key] for key, name in SAMPLING.items() if key in options})
    values.update({f"mlx_notebook.{name}": ms for name, ms in figures_ms(row).items() if ms is not None})
    if row.first_ns >= 0:
        values["gen_ai.response.time_to_first_chunk"] = (row.first_ns - row.submit_ns) / 1e9
    if row.status == "failed":
        values["error.type"] = "row_failed"
    if with_text and about is not None:
        asked = about.messages or (("user", about.prompt),)
        answer = {**_message("assistant", "".join(about.pieces)), "finish_reason": str(row.reason)}
        values["gen_ai.input.messages"] = json.dumps([_message(role, content) for role, content in asked])
        values["gen_ai.output.messages"] = json.dumps([answer])
        if options.get("stop"):
            values["gen_ai.request.stop_sequences"] = list(options["stop"])
    return values


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}

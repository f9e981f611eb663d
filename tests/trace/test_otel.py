"""OpenTelemetry spans, through its in-memory exporter."""

from __future__ import annotations

import builtins
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.trace.otel import attributes_of
from tests.trace.conftest import WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlx_notebook.trace.trace import Trace


def exported(trace: Trace) -> tuple[int, Sequence[Any]]:
    pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return trace.to_opentelemetry(provider), exporter.get_finished_spans()


def test_one_span_a_request_with_its_phases_below(trace: Trace) -> None:
    made, spans = exported(trace)
    roots = [span for span in spans if span.parent is None]
    assert made == len(roots) == len(trace.recording.requests) == 8
    assert len({span.context.trace_id for span in roots}) == 8
    for root in roots:
        below = [s for s in spans if s.parent is not None and s.parent.span_id == root.context.span_id]
        assert [s.name for s in below] == ["queue", "prefill", "decode"][: len(below)]
        assert below[0].start_time == root.start_time
        assert below[-1].end_time == root.end_time
        assert all(a.end_time == b.start_time for a, b in pairwise(below))
        for span in below:
            assert sum(span.attributes.values()) == pytest.approx((span.end_time - span.start_time) / 1e6)


def test_attributes_follow_the_conventions(trace: Trace) -> None:
    known = names_of_the_conventions()
    frame = trace.requests()
    _, spans = exported(trace)
    for span in spans:
        if span.parent is not None:
            continue
        values = span.attributes
        assert {name for name in values if name.startswith("gen_ai.")} <= known
        row = frame.loc[int(values["gen_ai.response.id"])]
        assert span.name == f"chat {values['gen_ai.request.model']}"
        assert span.kind.name == "INTERNAL"
        assert values["gen_ai.usage.input_tokens"] == row.prompt_tokens
        assert values["gen_ai.usage.output_tokens"] == row.generated_tokens
        assert values["gen_ai.request.max_tokens"] == row.max_tokens
        assert list(values["gen_ai.response.finish_reasons"]) == [row.finish_reason]
        assert isinstance(values["gen_ai.request.temperature"], float)
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(row.ended_s - row.submitted_s)


def names_of_the_conventions() -> set[str]:
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    return {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}


def test_times_are_of_the_clock_on_the_wall(trace: Trace) -> None:
    import time

    _, spans = exported(trace)
    assert all(0 <= time.time_ns() - span.start_time < 3600 * 10**9 for span in spans)


def test_no_word_unless_asked_for(trace: Trace, with_text: Trace) -> None:
    _, without = exported(trace)
    assert not any(WORDS in span.to_json() for span in without)
    _, spans = exported(with_text)
    messages = [span.attributes["gen_ai.input.messages"] for span in spans if span.parent is None]
    assert sum(WORDS in one for one in messages) == 7
    (first, *_) = json.loads(messages[0])
    assert first["parts"][0]["type"] == "text"


def test_without_the_package_the_command_is_said(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'mlx-notebook\[otel\]'"):
        trace.to_opentelemetry()


def test_the_messages_are_those_of_the_chat_and_not_its_template(tmp_path: Path) -> None:
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go"},
    ]
    with Gateway.from_backend(ScriptedBackend()) as gw:
        asked = (gw.submit(chat, system="Be brief", max_tokens=1), gw.submit("plain", raw=True, max_tokens=1))
        for handle in asked:
            handle.result()
        trace = mn.load_trace(gw.save_trace(tmp_path / "run.json", text=True))
    found = []
    for handle in asked:
        row = trace.recording.requests[handle.id]
        attributes = attributes_of(row, trace.about[handle.id], with_text=True)
        messages = json.loads(attributes["gen_ai.input.messages"])
        found.append([(one["role"], one["parts"][0]["content"]) for one in messages])
    assert found[0] == [("system", "Be brief"), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Go")]
    assert found[1] == [("user", "plain")]

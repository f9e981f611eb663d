"""Trace files against the trace-event format: fields, names, nesting, flows, counters, and sums."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.segments import segments_of
from mlx_notebook.trace.chrome import ENGINE, REQUESTS, events_of, rates
from tests.trace.conftest import WORDS

if TYPE_CHECKING:
    from mlx_notebook.trace.trace import Trace

Event = dict[str, Any]

# Fields that each phase must have, from the document "Trace Event Format".
NEEDS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "t": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id", "bp"},
}


@pytest.fixture(scope="module")
def events(trace: Trace) -> list[Event]:
    return events_of(trace)


def spans(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    """Complete events by (process, thread), in the order in which a reader opens them."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def end(event: Event) -> float:
    return float(event["ts"] + event["dur"])


def test_every_event_has_what_its_phase_needs(events: list[Event]) -> None:
    for event in events:
        assert NEEDS[event["ph"]] <= set(event), event
        assert event["pid"] in (ENGINE, REQUESTS)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        assert event.get("s", "t") in ("g", "p", "t") or event["ph"] != "i"


def test_it_is_json(events: list[Event]) -> None:
    assert json.loads(json.dumps(events, allow_nan=False)) == events


def test_every_track_has_a_name_before_anything_happens_on_it(events: list[Event]) -> None:
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xistf"}
    assert used <= threads
    assert {e["pid"] for e in events if e["name"] == "process_name"} == {ENGINE, REQUESTS}
    kinds = [e["ph"] for e in events]
    assert "M" not in kinds[kinds.index("X") :]


def test_spans_of_a_track_nest(events: list[Event]) -> None:
    for track in spans(events).values():
        open_until: list[float] = []
        for event in track:
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or end(event) <= open_until[-1] + 1e-3, event
            open_until.append(end(event))


def test_spans_sum_to_the_request_s_figures(trace: Trace, events: list[Event]) -> None:
    frame = trace.requests()
    for (process, row_id), track in spans(events).items():
        if process != REQUESTS:
            continue
        whole, *inside = track
        phases: dict[str, Event] = {}
        for event in inside:  # a part may be called as its phase is: the first is the phase
            if event["name"] in ("queue", "prefill", "decode"):
                phases.setdefault(event["name"], event)
        parts = [e for e in inside if e["name"] not in phases or phases[e["name"]] is not e]
        assert sum(e["dur"] for e in phases.values()) == pytest.approx(whole["dur"])
        for name, phase in phases.items():
            own = [e for e in parts if phase["ts"] - 1e-3 <= e["ts"] and end(e) <= end(phase) + 1e-3]
            assert sum(e["dur"] for e in own) == pytest.approx(phase["dur"])
            figure = float(frame[f"{name}_ms"][row_id])
            if not math.isnan(figure):  # a row that was cancelled early has no such figure
                assert phase["dur"] / 1000 == pytest.approx(figure)
                assert whole["args"][f"{name}_ms"] == pytest.approx(figure)


def test_the_parts_are_the_segments(trace: Trace, events: list[Event]) -> None:
    for (process, row_id), track in spans(events).items():
        if process == REQUESTS:
            codes = {one.code for one in segments_of(trace.recording, row_id)}
            assert codes | {"queue", "prefill", "decode", f"request {row_id}"} >= {e["name"] for e in track}


def test_arrows_lead_from_each_request_to_what_served_it(trace: Trace, events: list[Event]) -> None:
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    served = {row.id for row in trace.recording.requests.values() if row.admit_ns >= 0}
    assert set(flows) == served
    tracks = spans(events)
    for row_id, chain in flows.items():
        assert [e["ph"] for e in chain] == ["s", *"t" * (len(chain) - 2), "f"]
        assert [e["ts"] for e in chain] == sorted(e["ts"] for e in chain)
        row = trace.recording.requests[row_id]
        chunks = sum(1 for one in trace.recording.chunks["row"] if one == row_id)
        assert len(chain) - 2 == row.generated_tokens + chunks
        for event in chain:  # each stands inside a span of its track
            assert any(s["ts"] <= event["ts"] <= end(s) for s in tracks[event["pid"], event["tid"]]), event


def test_steps_and_counters(trace: Trace, events: list[Event]) -> None:
    steps = [e for e in events if e["name"] == "step" and e["ph"] == "X"]
    assert [e["args"]["step"] for e in steps] == list(trace.recording.steps["step"])
    assert all(len(e["args"]["tokens_of_requests"]) <= e["args"]["rows"] for e in steps)
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert counters == {"rows in the step", "rows that wait", "KV memory", "tokens per second"}
    memory = [e["args"]["rows"] for e in events if e["name"] == "KV memory"]
    assert max(memory) > 0
    assert memory[-1] == 0


def test_rates_count_every_token(trace: Trace) -> None:
    stretch = 10_000_000
    assert sum(rate * stretch / 1e9 for _, rate in rates(trace.recording, stretch)) == pytest.approx(
        len(trace.recording.tokens)
    )


def test_what_people_did_is_there(events: list[Event]) -> None:
    names = [e["name"] for e in events if e["ph"] == "i"]
    assert {"step", "resume", "priority", "device granted", "device given back"} <= set(names)


def test_no_word_of_anybody_is_in_it(trace: Trace) -> None:
    text = json.dumps(trace.to_chrome())
    assert WORDS not in text
    assert "alert" not in text


def test_titles_only_with_text(with_text: Trace) -> None:
    names = [e["args"]["name"] for e in events_of(with_text) if e["ph"] == "M" and e["name"] == "thread_name"]
    assert any(WORDS in name for name in names)

"""A trace as events of the trace-event format (JSON), which Perfetto and Chrome's tracing page open.

Two processes: "engine" with its steps and prompt chunks and with counters, and "requests" with a thread
a request, named, in order of submission. In a request's thread spans nest: the request, its phases
(`queue`, `prefill`, `decode`, the figures of the same names), and in each what the time was for, without gaps.
Arrows (flow events) lead from a request to the chunks and steps that served it. Times are microseconds
since the first record. Source: Google's document "Trace Event Format" (phases X, M, C, s, t, f, i).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.recording import CONTROLS, LEASE_WORDS
from mlx_notebook.core.segments import segments_of
from mlx_notebook.trace.frames import figures_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.recording import Recording, RequestTrace
    from mlx_notebook.core.segments import Segment
    from mlx_notebook.trace.trace import Trace

ENGINE, REQUESTS = 1, 2
STEPS, CHUNKS, HANDS = 1, 2, 3

ALL_FLOWS = 20_000
"""Up to so many tokens each step has its arrow; beyond, a request's first and last step and its chunks have."""

RATE_NS = 250_000_000
"""Tokens a second are counted over stretches of this length."""

Event = dict[str, Any]


def events_of(trace: Trace) -> list[Event]:
    """All events: names first, then by time, the longer of two that begin together first."""
    recording = trace.recording
    clock = _Clock(recording.begin_ns)
    timed = [
        *_engine(recording, clock),
        *_counters(recording, clock),
        *(event for row in recording.requests.values() for event in _request(trace, row, clock)),
    ]
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return [*_names(trace), *timed]


class _Clock:
    """Nanoseconds of the log to microseconds of the file."""

    def __init__(self, begin_ns: int) -> None:
        self._begin = begin_ns

    def us(self, at_ns: int) -> float:
        return (at_ns - self._begin) / 1e3

    def span(self, name: str, place: tuple[int, int], start_ns: int, end_ns: int, **args: Any) -> Event:
        pid, tid = place
        began = self.us(start_ns)
        took = (end_ns - start_ns) / 1e3
        return {
            "name": name,
            "cat": "mlx",
            "ph": "X",
            "ts": began,
            "dur": took,
            "pid": pid,
            "tid": tid,
            "args": {key: value for key, value in args.items() if value not in (None, "")},
        }

    def flow(self, phase: str, row_id: int, place: tuple[int, int], at_ns: int) -> Event:
        event: Event = {"name": f"request {row_id}", "cat": "flow", "ph": phase, "id": row_id, "ts": self.us(at_ns)}
        event["pid"], event["tid"] = place
        # Bind to the slice around it, also at the end.
        return {**event, "bp": "e"} if phase == "f" else event

    def counter(self, name: str, at_ns: int, **series: float) -> Event:
        return {"name": name, "ph": "C", "ts": self.us(at_ns), "pid": ENGINE, "tid": 0, "args": series}


def _names(trace: Trace) -> Iterator[Event]:
    def name(kind: str, value: Any, pid: int, tid: int = 0) -> Event:
        key = "sort_index" if kind.endswith("sort_index") else "name"
        return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}

    yield name("process_name", f"engine {trace.title}", ENGINE)
    yield name("process_sort_index", 1, ENGINE)
    yield name("process_name", "requests", REQUESTS)
    yield name("process_sort_index", 2, REQUESTS)
    for tid, what in ((STEPS, "decode steps"), (CHUNKS, "prompt chunks"), (HANDS, "by hand, and the device")):
        yield name("thread_name", what, ENGINE, tid)
        yield name("thread_sort_index", tid, ENGINE, tid)
    for place, row_id in enumerate(trace.recording.requests):
        title = trace.title_of(row_id)[:60]
        yield name("thread_name", f"request {row_id}{f': {title}' if title else ''}", REQUESTS, row_id)
        yield name("thread_sort_index", place, REQUESTS, row_id)


def _engine(recording: Recording, clock: _Clock) -> Iterator[Event]:
    steps, tokens, chunks, controls = recording.steps, recording.tokens, recording.chunks, recording.controls
    for number, start, end, rows, queued in zip(*(steps[name] for name in steps.names), strict=True):
        served = [tokens["row"][i] for i in recording.tokens_of_step(number)]
        yield clock.span(
            "step", (ENGINE, STEPS), start, end, step=number, rows=rows, queued=queued, tokens_of_requests=served
        )
    forwards: dict[tuple[int, int], list[str]] = {}
    for row, _, begin, stop, start, end in zip(*(chunks[name] for name in chunks.names), strict=True):
        forwards.setdefault((start, end), []).append(f"request {row}: {begin} to {stop}")
    for (start, end), parts in forwards.items():
        yield clock.span("prompt chunk", (ENGINE, CHUNKS), start, end, positions=parts)
    for at, what, row, value in zip(*(controls[name] for name in controls.names), strict=True):
        is_lease = CONTROLS[what] == "lease"
        name = f"device {LEASE_WORDS[value]}" if is_lease else CONTROLS[what]
        args = {"request": None if is_lease else row or None, "value": value}
        yield {
            "name": name,
            "cat": "mlx",
            "ph": "i",
            "s": "t",
            "ts": clock.us(at),
            "pid": ENGINE,
            "tid": HANDS,
            "args": {key: given for key, given in args.items() if given is not None},
        }


def _counters(recording: Recording, clock: _Clock) -> Iterator[Event]:
    steps, memory = recording.steps, recording.memory
    for end, rows, queued in zip(steps["end"], steps["rows"], steps["queued"], strict=True):
        yield clock.counter("rows in the step", end, rows=rows)
        yield clock.counter("rows that wait", end, rows=queued)
    if len(steps):  # a counter holds its value until the next: say that it is over
        yield clock.counter("rows in the step", recording.now_ns, rows=0)
    for at, rows, kept in zip(memory["at"], memory["rows"], memory["kept"], strict=True):
        yield clock.counter("KV memory", at, rows=rows, kept_prompts=kept)
    for at, rate in rates(recording):
        yield clock.counter("tokens per second", at, tokens=rate)


def rates(recording: Recording, stretch_ns: int = RATE_NS) -> list[tuple[int, float]]:
    """(begin of a stretch, tokens a second in it), with a 0 after each last one."""
    counted: dict[int, int] = {}
    begin = recording.begin_ns
    for at in recording.tokens["at"]:
        place = (at - begin) // stretch_ns
        counted[place] = counted.get(place, 0) + 1
    found: dict[int, float] = {}
    for place, tokens in counted.items():
        found[place] = tokens * 1e9 / stretch_ns
        found.setdefault(place + 1, 0.0)
    return [(begin + place * stretch_ns, rate) for place, rate in sorted(found.items())]


# ---------------------------------------------------------------- one request


def _request(trace: Trace, row: RequestTrace, clock: _Clock) -> Iterator[Event]:
    recording, place = trace.recording, (REQUESTS, row.id)
    segments = segments_of(recording, row.id)
    if not segments:
        return
    words = {reason.code: reason.text for reason in trace.explain(row.id)}
    start, end = segments[0].start_ns, segments[-1].end_ns
    figures = {name: value for name, value in figures_ms(row).items() if value is not None}
    yield clock.span(
        f"request {row.id}",
        place,
        start,
        end,
        status=str(row.status),
        finish_reason=str(row.reason or ""),
        finish_detail=str(row.detail or ""),
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        generated_tokens=row.generated_tokens,
        max_tokens=row.max_tokens,
        priority=row.priority,
        slot=row.slot,
        **figures,
    )
    for phase in ("queue", "prefill", "decode"):
        inside = [one for one in segments if one.phase == phase]
        if not inside:
            continue
        yield clock.span(phase, place, inside[0].start_ns, inside[-1].end_ns)
        for one in inside:
            yield clock.span(
                one.code,
                place,
                one.start_ns,
                one.end_ns,
                other_requests=list(one.rows) or None,
                step=one.step if one.step >= 0 else None,
                why=words.get(one.code) if phase == "queue" else None,
            )
    yield from _flows(recording, row, segments, clock)


def _flows(recording: Recording, row: RequestTrace, segments: list[Segment], clock: _Clock) -> Iterator[Event]:
    """From the request to each chunk and step that served it, and back to its end."""
    tokens, chunks, steps = recording.tokens, recording.chunks, recording.steps
    start, end = segments[0].start_ns, segments[-1].end_ns
    served = [(chunks["start"][i], CHUNKS) for i in recording.chunks_between(start, end) if chunks["row"][i] == row.id]
    numbers = {steps["step"][i]: steps["start"][i] for i in recording.steps_between(start, end)}
    own = [
        numbers[tokens["step"][i]]
        for step in numbers
        for i in recording.tokens_of_step(step)
        if tokens["row"][i] == row.id
    ]
    if len(tokens) > ALL_FLOWS and len(own) > 2:
        own = [own[0], own[-1]]
    served += [(at, STEPS) for at in own]
    if not served:
        return
    yield clock.flow("s", row.id, (REQUESTS, row.id), max(start, min(row.admit_ns, served[0][0])))
    served.sort()
    for at, track in served:
        yield clock.flow("t", row.id, (ENGINE, track), at)
    # Before the end, which belongs to the span no more: an arrow there would lead nowhere.
    yield clock.flow("f", row.id, (REQUESTS, row.id), max(served[-1][0], end - 1))

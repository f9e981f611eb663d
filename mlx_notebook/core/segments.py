"""Where a request's time went: every nanosecond between its asking and its end in exactly one segment.

Three phases, cut where the figures cut them: `queue` to the first admission, `prefill` to the first
token, `decode` to the end. Within them a segment says by a stable code what the time was for, and
which rows or which step it was about. `core.explain` puts them into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from mlx_notebook.core.ring import WaitCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.recording import Recording, RequestTrace

SLOW_CODE_NS = 3_000_000
"""User code that takes less for a token is not worth a word."""

COLD_FACTOR = 3
"""A step is cold if it took so many times as long as others like it, and COLD_NS longer."""

COLD_NS = 20_000_000

CODES_OF_CAUSES = {
    WaitCause.NONE: "queue-turn",
    WaitCause.BATCH_FULL: "queue-batch-full",
    WaitCause.BUDGET: "queue-budget",
    WaitCause.FENCE: "queue-fence",
    WaitCause.ALONE: "queue-alone",
    WaitCause.EMPTY: "queue-empty",
    WaitCause.STATIC: "queue-static-policy",
    WaitCause.DEVICE: "queue-device",
    WaitCause.PAUSED: "paused",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a request's time.

    Attributes:
        phase: queue, prefill or decode.
        code: what the time was for.
        rows: the other rows it was about (in the step, in the chunk, waited for).
        head: in the queue: the row at the head of the line then.
        about: in the queue: what the wait's record says (rows, bytes, a row's id).
        step: the step's number, -1 where it is not in one.
    """

    phase: str
    code: str
    start_ns: int
    end_ns: int
    rows: tuple[int, ...] = ()
    head: int = 0
    about: int = 0
    step: int = -1

    @property
    def ms(self) -> float:
        """Its length in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


class _Work(NamedTuple):
    """What the engine did from when to when: a decode step, or a forward over chunks of prompts."""

    start_ns: int
    end_ns: int
    rows: tuple[int, ...]
    step: int = -1
    is_chunk: bool = False
    in_step: int = 0
    slow: tuple[tuple[int, int], ...] = ()


def segments_of(recording: Recording, row_id: int, now_ns: int | None = None) -> list[Segment]:
    """The segments of a request, in order, without gaps; up to its end, else to `now_ns` (or the last record).

    Empty where the recording does not know when it was submitted.
    """
    row = recording.requests.get(row_id)
    if row is None or row.submit_ns < 0:
        return []
    end = row.over_ns(max(recording.now_ns, row.submit_ns) if now_ns is None else now_ns)
    admitted = _within(row.admit_ns, row.submit_ns, end)
    first = _within(row.first_ns, admitted, end)
    found = list(_queue(recording, row, admitted))
    cold = _cold_steps(recording)
    found += _running(recording, row, ("prefill", admitted, first), cold)
    found += _running(recording, row, ("decode", first, end), cold)
    return [one for one in found if one.end_ns > one.start_ns]


def _within(at: int, start: int, end: int) -> int:
    """The time, or the end where it has not come."""
    return end if at < 0 else min(max(at, start), end)


# ---------------------------------------------------------------- waiting


def _queue(recording: Recording, row: RequestTrace, until: int) -> Iterator[Segment]:
    """The line's causes as they changed; behind a fence it is the fence that counts."""
    fences = _fences(recording, row)
    cuts = {row.submit_ns, until}
    cuts.update(at for stretch in fences for at in stretch if row.submit_ns < at < until)
    waits = recording.waits
    cause, head, about = WaitCause.NONE, 0, 0
    changes: list[tuple[int, WaitCause, int, int]] = []
    for at, who, why, what in zip(waits["at"], waits["row"], waits["cause"], waits["about"], strict=True):
        if at >= until:
            break
        changes.append((at, WaitCause(why), who, what))
        if at > row.submit_ns:
            cuts.add(at)
    place = 0
    ordered = sorted(cuts)
    for start, end in pairwise(ordered):
        while place < len(changes) and changes[place][0] <= start:
            _, cause, head, about = changes[place]
            place += 1
        fenced = any(begin <= start < over for begin, over in fences)
        code = "queue-fence" if fenced else CODES_OF_CAUSES[cause]
        yield Segment("queue", code, start, end, head=head, about=about)


def _fences(recording: Recording, row: RequestTrace) -> list[tuple[int, int]]:
    """Stretches in which somebody had asked for the device before this row, and held it back."""
    open_at: dict[int, int] = {}
    stretches: list[tuple[int, int]] = []
    held = 0
    for at, place, value in recording.controls_of("lease"):
        if value == 1:
            held = place
        elif value == 2 and at <= row.heard_ns:
            open_at.setdefault(place, at)
        elif value == 3 and place in open_at:
            stretches.append((open_at.pop(place), at))
        elif value == 0:
            gone = [held] if held in open_at else list(open_at) if not held else []
            stretches += [(open_at.pop(one), at) for one in gone]
            held = 0
    return [*stretches, *((begin, 1 << 62) for begin in open_at.values())]


# ---------------------------------------------------------------- running


def _running(
    recording: Recording, row: RequestTrace, phase: tuple[str, int, int], cold: frozenset[int]
) -> Iterator[Segment]:
    """What the engine did, in order; between two pieces of work whatever held it."""
    name, start, end = phase
    cursor = start
    rests = _Rests(recording, row)
    last_chunk = _last_own_chunk(recording, row, start, end)
    for work in _works(recording, start, end):
        begin, stop = max(cursor, work.start_ns), min(work.end_ns, end)
        if stop <= begin:
            continue
        yield from rests.between(name, cursor, begin)
        yield from _split(row, name, work, (begin, stop), last_chunk=last_chunk, cold=cold)
        cursor = stop
    yield from rests.between(name, cursor, end)


def _split(
    row: RequestTrace, phase: str, work: _Work, stretch: tuple[int, int], *, last_chunk: int, cold: frozenset[int]
) -> Iterator[Segment]:
    """One piece of work; the user's own code, where it was slow, is its end."""
    begin, stop = stretch
    code = _code_of(row, phase, work, last_chunk, cold)
    others = tuple(one for one in work.rows if one != row.id)
    slow = sum(ns for _, ns in work.slow)
    cut = max(begin, stop - slow)
    yield Segment(phase, code, begin, cut, others, about=work.in_step, step=work.step)
    whose = tuple(one for one, _ in work.slow)
    yield Segment(phase, "user-code-slow", cut, stop, whose, step=work.step)


def _code_of(row: RequestTrace, phase: str, work: _Work, last_chunk: int, cold: frozenset[int]) -> str:
    if any(begin <= work.start_ns < over for begin, over in _rewound(row)):
        return "rewind"
    if work.is_chunk:
        if row.id in work.rows:
            return "prefill"
        return "prefill-interleaved" if phase == "prefill" else "decode-behind-chunk"
    if work.step in cold:
        return "cold-step"
    if phase == "prefill":
        return "first-token" if work.start_ns >= last_chunk else "prefill-interleaved"
    return "decode-shared" if work.in_step > 1 else "decode-alone"


def _rewound(row: RequestTrace) -> list[tuple[int, int]]:
    """From each rewind to the next token: till then what was computed before is computed again."""
    return list(zip(row.rewinds, [*row.returns, *([1 << 62] * (len(row.rewinds) - len(row.returns)))], strict=True))


def _works(recording: Recording, start: int, end: int) -> list[_Work]:
    """Steps and forwards that overlap the stretch, in order of their beginning."""
    found: list[_Work] = []
    steps, tokens, chunks = recording.steps, recording.tokens, recording.chunks
    for place in recording.steps_between(start, end):
        step = steps["step"][place]
        own = recording.tokens_of_step(step)
        rows = tuple(tokens["row"][i] for i in own)
        slow = tuple((tokens["row"][i], tokens["user"][i]) for i in own if tokens["user"][i] >= SLOW_CODE_NS)
        found.append(
            _Work(steps["start"][place], steps["end"][place], rows, step, in_step=steps["rows"][place], slow=slow)
        )
    forwards: dict[tuple[int, int], list[int]] = {}
    for place in recording.chunks_between(start, end):
        forwards.setdefault((chunks["start"][place], chunks["end"][place]), []).append(chunks["row"][place])
    found += [_Work(begin, stop, tuple(rows), is_chunk=True) for (begin, stop), rows in forwards.items()]
    return sorted(found, key=lambda work: (work.start_ns, work.end_ns))


def _last_own_chunk(recording: Recording, row: RequestTrace, start: int, end: int) -> int:
    """When the last chunk of the row's own prompt in the stretch ended; for ever where there is none yet."""
    chunks = recording.chunks
    ends = [chunks["end"][i] for i in recording.chunks_between(start, end) if chunks["row"][i] == row.id]
    return ends[-1] if ends and row.first_ns >= 0 else 1 << 62


class _Rests:
    """Times in which the engine computed nothing for anybody, by what held it."""

    def __init__(self, recording: Recording, row: RequestTrace) -> None:
        self._paused = _stretches(recording, "pause", "resume")
        self._slow: list[tuple[int, int]] = []
        since = -1
        for at, _, delay in recording.controls_of("pace"):
            if since >= 0:
                self._slow.append((since, at))
            since = at if delay else -1
        if since >= 0:
            self._slow.append((since, 1 << 62))
        self._away: list[tuple[int, int]] = []
        gone = -1
        for at, _, value in recording.controls_of("lease"):
            if value == 0:
                gone = at
            elif value == 1 and gone >= 0:
                self._away.append((gone, at))
                gone = -1
        if gone >= 0:
            self._away.append((gone, 1 << 62))
        self._rewound = _rewound(row)

    def between(self, phase: str, start: int, end: int) -> Iterator[Segment]:
        """The rest from `start` to `end`, cut where its reason changed."""
        if end <= start:
            return
        named = (
            ("paused", self._paused),
            ("device-wait", self._away),
            ("rewind", self._rewound),
            ("slow-motion", self._slow),
        )
        cuts = {at for _, stretches in named for stretch in stretches for at in stretch if start < at < end}
        ordered = [start, *sorted(cuts), end]
        for begin, stop in pairwise(ordered):
            code = next(
                (name for name, stretches in named if any(a <= begin < b for a, b in stretches)), "between-steps"
            )
            yield Segment(phase, code, begin, stop)


def _stretches(recording: Recording, opens: str, closes: str) -> list[tuple[int, int]]:
    marks = sorted(
        [(at, True) for at, _, _ in (*recording.controls_of(opens), *recording.controls_of("step"))]
        + [(at, False) for at, _, _ in recording.controls_of(closes)]
    )
    found: list[tuple[int, int]] = []
    since = -1
    for at, opening in marks:
        if opening and since < 0:
            since = at
        elif not opening and since >= 0:
            found.append((since, at))
            since = -1
    return [*found, (since, 1 << 62)] if since >= 0 else found


def _cold_steps(recording: Recording) -> frozenset[int]:
    """Numbers of steps that were the first of their number of rows and far slower than the others like them."""
    steps = recording.steps
    spent: dict[int, list[int]] = {}
    firsts: dict[int, int] = {}
    for number, rows, start, end in zip(steps["step"], steps["rows"], steps["start"], steps["end"], strict=True):
        if rows not in firsts:
            firsts[rows] = number
        spent.setdefault(rows, []).append(end - start)
    usual_of_all = median([ns for some in spent.values() for ns in some]) if spent else 0
    cold = []
    for rows, (first, *others) in spent.items():
        usual = median(others) if len(others) >= 3 else usual_of_all
        if first > COLD_FACTOR * usual and first - usual > COLD_NS:
            cold.append(firsts[rows])
    return frozenset(cold)

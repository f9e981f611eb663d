"""Where a request's time went: every nanosecond between its asking and its end in exactly one segment.

Three phases, cut where the figures cut them: `queue` to the first admission, `prefill` to the first
token, `decode` to the end. Within them a segment says by a stable code what the time was for, and
which rows or which step it was about. `core.explain` puts them into words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mlx_notebook.core.lookup import FOR_EVER, lookup_of
from mlx_notebook.core.ring import WaitCause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.recording import Recording, RequestTrace

SLOW_CODE_NS = 3_000_000
"""User code that takes less for a token is not worth a word."""

SHARED = "queue-shared-beginning"

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
    WaitCause.SHARED: SHARED,
}


ROWS_OWN = frozenset({"queue-turn", "queue-budget", "queue-empty", SHARED})
"""What the head of the line waits for by itself: another row may wait for a beginning meanwhile."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a request's time.

    Attributes:
        phase: queue, prefill or decode.
        code: what the time was for.
        rows: the other rows it was about (in the step, in the chunk, waited for).
        waits: in the queue: from which to before which place in `waits` the records are that held then.
        about: in a chunk of its own prompt: how many of its positions; in a step: rows in it.
        step: the step's number, -1 where it is not in one.
    """

    phase: str
    code: str
    start_ns: int
    end_ns: int
    rows: tuple[int, ...] = ()
    waits: tuple[int, int] = (0, 0)
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
    positions: tuple[int, ...] = ()
    in_step: int = 0
    slow: tuple[tuple[int, int], ...] = ()


def segments_of(
    recording: Recording, row_id: int, now_ns: int | None = None, *, each_wait: bool = False
) -> list[Segment]:
    """The segments of a request, in order, without gaps; up to its end, else to `now_ns` (or the last record).

    Records of the line with one cause make one segment, or with `each_wait` one each. Empty where the recording
    does not know when it was submitted.
    """
    row = recording.requests.get(row_id)
    if row is None or row.submit_ns < 0:
        return []
    end = row.over_ns(max(recording.now_ns, row.submit_ns) if now_ns is None else now_ns)
    admitted = _within(row.admit_ns, row.submit_ns, end)
    first = _within(row.first_ns, admitted, end)
    found = list(_queue(recording, row, admitted, each=each_wait))
    found += _running(recording, row, ("prefill", admitted, first))
    found += _running(recording, row, ("decode", first, end))
    return [one for one in found if one.end_ns > one.start_ns]


def _within(at: int, start: int, end: int) -> int:
    """The time, or the end where it has not come."""
    return end if at < 0 else min(max(at, start), end)


# ---------------------------------------------------------------- waiting


def _queue(recording: Recording, row: RequestTrace, until: int, *, each: bool) -> Iterator[Segment]:
    """The line's causes as they changed; behind a fence it is the fence that counts, for a beginning who reads that."""
    lookup = lookup_of(recording)
    fences = [(begin, over) for begin, over, _ in lookup.fences.where(row.heard_ns + 1, row.submit_ns)]
    shares = [(at, next_at) for (at, reader, _), (next_at, _, _) in pairwise([*row.shares, (until, 0, 0)]) if reader]
    times, causes = recording.waits["at"], recording.waits["cause"]
    first = bisect_right(times, row.submit_ns) - 1  # the record that held when it came; -1: none did
    last = max(bisect_left(times, until), first + 1)
    changes = [first, *(range(first + 1, last) if each else lookup.changes_of_cause(first, last)), last]
    for place, following in pairwise(changes):
        start = row.submit_ns if place == first else times[place]
        end = until if following == last else times[following]
        code = CODES_OF_CAUSES[WaitCause(causes[place]) if place >= 0 else WaitCause.NONE]
        cuts = [start, *sorted({at for stretch in (*fences, *shares) for at in stretch if start < at < end}), end]
        for begin, stop in pairwise(cuts):
            fenced = any(opened <= begin < over for opened, over in fences)
            held = (
                max(0, bisect_right(times, begin, max(0, place), following) - 1),
                bisect_left(times, stop, 0, following),
            )
            shared = code in ROWS_OWN and any(since <= begin < over for since, over in shares)
            named = "queue-fence" if fenced else SHARED if shared else code
            yield Segment("queue", named, begin, stop, waits=held if place >= 0 else (0, 0))


# ---------------------------------------------------------------- running


def _running(recording: Recording, row: RequestTrace, phase: tuple[str, int, int]) -> Iterator[Segment]:
    """What the engine did, in order; between two pieces of work whatever held it."""
    name, start, end = phase
    cursor = start
    rests = _Rests(recording, row)
    cold = lookup_of(recording).cold
    last_chunk = _last_own_chunk(recording, row, start, end) if name == "prefill" else FOR_EVER
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
    about = work.in_step
    if code == "prefill":
        about = sum(count for one, count in zip(work.rows, work.positions, strict=True) if one == row.id)
    yield Segment(phase, code, begin, cut, others, about=about, step=work.step)
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
    return list(zip(row.rewinds, [*row.returns, *([FOR_EVER] * (len(row.rewinds) - len(row.returns)))], strict=True))


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
    forwards: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place in recording.chunks_between(start, end):
        part = chunks["row"][place], chunks["to"][place] - chunks["from"][place]
        forwards.setdefault((chunks["start"][place], chunks["end"][place]), []).append(part)
    for (begin, stop), parts in forwards.items():
        rows, positions = zip(*parts, strict=True)
        found.append(_Work(begin, stop, rows, is_chunk=True, positions=positions))
    return sorted(found, key=lambda work: (work.start_ns, work.end_ns))


def _last_own_chunk(recording: Recording, row: RequestTrace, start: int, end: int) -> int:
    """When the last chunk of the row's own prompt in the stretch ended; for ever where there is none yet."""
    chunks = recording.chunks
    ends = [chunks["end"][i] for i in recording.chunks_between(start, end) if chunks["row"][i] == row.id]
    return ends[-1] if ends and row.first_ns >= 0 else FOR_EVER


class _Rests:
    """Times in which the engine computed nothing for anybody, by what held it."""

    def __init__(self, recording: Recording, row: RequestTrace) -> None:
        self._shared = lookup_of(recording).rests
        self._rewound = _rewound(row)

    def between(self, phase: str, start: int, end: int) -> Iterator[Segment]:
        """The rest from `start` to `end`, cut where its reason changed."""
        if end <= start:
            return
        paused, away, slow = (
            (code, [(a, b) for a, b, _ in stretches.where(end, start)]) for code, stretches in self._shared
        )
        named = (paused, away, ("rewind", self._rewound), slow)
        cuts = {at for _, stretches in named for stretch in stretches for at in stretch if start < at < end}
        ordered = [start, *sorted(cuts), end]
        for begin, stop in pairwise(ordered):
            code = next(
                (name for name, stretches in named if any(a <= begin < b for a, b in stretches)), "between-steps"
            )
            yield Segment(phase, code, begin, stop)

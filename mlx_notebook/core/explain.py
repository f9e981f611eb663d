"""Why a row waited and where its time went, in words, from the log.

Codes are stable; the words name rows by their numbers and times in milliseconds. What the log
cannot know (a missing BLAS, who else held the device) the gateway adds.

Codes: queue-turn, queue-batch-full, queue-budget, queue-fence, queue-alone, queue-empty,
queue-static-policy, queue-shared-beginning, queue-device, queue-passed-over, paused, cache-hit, prefill,
prefill-interleaved, first-token, decode-shared, decode-alone, decode-behind-chunk, between-steps, slow-motion,
device-wait, cold-step, user-code-slow, rewind, log-overwritten, and ended-... with the finish detail (or reason).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mlx_notebook.core.lookup import lookup_of
from mlx_notebook.core.placement import Reason
from mlx_notebook.core.rows import FinishReason
from mlx_notebook.core.segments import SHARED, Segment, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mlx_notebook.core.recording import Recording, RequestTrace

SHOWN_ROWS = 6
"""How many rows are named before "and n more"."""


@dataclass(frozen=True, slots=True)
class TimedReason(Reason):
    """A reason with the milliseconds that it took (0 for what took none) and the rows that it names."""

    ms: float = 0.0
    rows: tuple[int, ...] = ()


class Tenure(NamedTuple):
    """Somebody else held the device, what for, from when to when (monotonic nanoseconds)."""

    owner: str
    kind: str
    start_ns: int
    end_ns: int


def explain(
    recording: Recording,
    row_id: int,
    *,
    at_ns: int | None = None,
    now_ns: int | None = None,
    tenures: Sequence[Tenure] = (),
    beside: Sequence[Reason] = (),
) -> list[TimedReason]:
    """Reasons in the order in which they came; the times of all of them sum to the request's.

    Args:
        recording: what the log held.
        row_id: which request.
        at_ns: only the moment then (monotonic nanoseconds): what it waited for or did.
        now_ns: the present, for a request that is not over; the last record without it.
        tenures: who else held the device, as far as somebody knows.
        beside: reasons that the log does not know; they stand before how it ended.

    Raises:
        LookupError: the recording has never heard of the request.
    """
    row = recording.requests.get(row_id)
    if row is None:
        raise LookupError(f"the log knows no request {row_id}")
    segments = segments_of(recording, row_id, now_ns, each_wait=at_ns is not None)
    if at_ns is not None:
        moment = [one for one in segments if one.start_ns <= at_ns < one.end_ns]
        return [_in_words(recording, row, moment, tenures)] if moment else []
    reasons = [_in_words(recording, row, group, tenures) for group in _grouped(segments)]
    if not row.whole or row.submit_ns < 0:
        reasons.insert(
            0, TimedReason("log-overwritten", "The log is bounded and holds this request's beginning no more.")
        )
    told = [TimedReason(one.code, one.text) for one in beside]
    return [*reasons, *_passed_over(recording, row), *_cache(row), *told, *_ended(row)]


def _grouped(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Segments of one phase and code together, in order of the first."""
    groups: dict[tuple[str, str], list[Segment]] = {}
    for one in segments:
        groups.setdefault((one.phase, one.code), []).append(one)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class _Case:
    """What one reason is about: segments of one request with one code, and the other rows that they name."""

    recording: Recording
    row: RequestTrace
    group: list[Segment]
    rows: tuple[int, ...] = ()

    @property
    def heads(self) -> set[int]:
        """In the queue: who was at the head of the line meanwhile."""
        return self._said("row")

    @property
    def about(self) -> set[int]:
        """In the queue: what the line's records said (rows, bytes, a row's id)."""
        return self._said("about")

    def _said(self, column: str) -> set[int]:
        values = self.recording.waits[column]
        return {value for one in self.group for value in values[one.waits[0] : one.waits[1]]}

    @property
    def steps(self) -> str:
        """In how many steps."""
        count = len({one.step for one in self.group})
        return f"{count} step" if count == 1 else f"{count} steps"


def _in_words(recording: Recording, row: RequestTrace, group: list[Segment], tenures: Sequence[Tenure]) -> TimedReason:
    code = group[0].code
    ms = sum(one.ms for one in group)
    rows = tuple(dict.fromkeys(other for one in group for other in one.rows))
    if group[0].phase == "queue":
        rows = tuple(_read_for(row, group)) if code == SHARED else ()
        rows = rows or _who_ran(recording, row, group)
    case = _Case(recording, row, group, rows)
    text = _WORDS[code](case)
    ahead = _ahead(case) if code in _IN_LINE else ()
    if ahead:
        text += f" {named(ahead).capitalize()} stood before it."
    if code == "queue-device" and (held := _holders(group, tenures)):
        text += f" It was held by {' and '.join(held)}."
    return TimedReason(code, f"{figure(ms)} {text}", ms, rows)


def figure(ms: float) -> str:
    """Milliseconds for people: three digits are enough, and no zeros that say nothing."""
    if ms >= 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def named(rows: Iterable[int], one: str = "row", many: str = "rows") -> str:
    """ "row 3", "rows 3, 4 and 7", "rows 1, 2, 3, 4, 5, 6 and 12 more"; "" for none."""
    ids = sorted(rows)
    if len(ids) < 2:
        return f"{one} {ids[0]}" if ids else ""
    shown, rest = ids[:SHOWN_ROWS], len(ids) - SHOWN_ROWS
    if rest > 0:
        return f"{many} {', '.join(map(str, shown))} and {rest} more"
    return f"{many} {', '.join(map(str, shown[:-1]))} and {shown[-1]}"


# ---------------------------------------------------------------- the line


def _holders(group: list[Segment], tenures: Sequence[Tenure]) -> list[str]:
    """Who held the device in these stretches, each once."""
    found = [
        f"{one.owner} ({one.kind})"
        for one in tenures
        if any(one.start_ns < part.end_ns and one.end_ns > part.start_ns for part in group)
    ]
    return list(dict.fromkeys(found))


def _who_ran(recording: Recording, row: RequestTrace, group: list[Segment]) -> tuple[int, ...]:
    """Rows that had a place in the batch when it began; if none had, those that had one at some time of it."""
    lookup, start = lookup_of(recording), group[0].start_ns
    ran = [one for one in lookup.ran_between(start, start + 1) if one != row.id]
    if not ran:
        ran = [one for part in group for one in lookup.ran_between(part.start_ns, part.end_ns) if one != row.id]
    return lookup.in_order(ran)


def _batch_full(case: _Case) -> str:
    places = max(case.about)
    taken = "the one place was taken" if places == 1 else f"all {places} places were taken"
    return f"in the queue: {taken}{f' ({named(case.rows)})' if case.rows else ''}."


def _ahead(case: _Case) -> tuple[int, ...]:
    """Rows that waited too when this began, and came before it."""
    start, lookup = case.group[0].start_ns, lookup_of(case.recording)
    before = set(lookup.stood_before(case.row, start))
    heads = [case.recording.requests.get(head) for head in case.heads - before - {case.row.id}]
    return lookup.in_order([*before, *(one.id for one in heads if one is not None and one.waits_at(start))])


def _budget(case: _Case) -> str:
    missing = max(case.about)
    whose = "it" if case.heads <= {0, case.row.id} else named(case.heads - {0, case.row.id})
    return (
        f"in the queue for memory: {whose} did not fit beside {named(case.rows) or 'the rows that ran'}"
        f" ({_megabytes(missing)} more than the budget)."
    )


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"


def _alone(case: _Case) -> str:
    return f"in the queue: {named(case.about)} had to run alone."


def _empty(case: _Case) -> str:
    heads = case.heads - {0}
    who = "it" if heads <= {case.row.id} else named(heads)
    return f"in the queue: {who} runs alone and waited until {named(case.rows) or 'the others'} ended."


def _read_for(row: RequestTrace, group: list[Segment]) -> dict[int, int]:
    """Rows that read the request's beginning in these stretches, each with how many tokens of it."""
    ends = [at for at, _, _ in row.shares[1:]] + [group[-1].end_ns]
    return {
        reader: tokens
        for (at, reader, tokens), over in zip(row.shares, ends, strict=False)
        if reader and any(at < part.end_ns and part.start_ns < over for part in group)
    }


def _shared_beginning(case: _Case) -> str:
    read = _read_for(case.row, case.group)
    if read:
        return (
            f"in the queue for {named(read)}, which read the beginning that both share ({max(read.values()):,} tokens)."
        )
    heads = named(case.heads - {0, case.row.id}) or "it"
    return f"in the queue: {heads} waited for {named(case.about)}, which read the beginning that both share."


def _static(case: _Case) -> str:
    return f"in the queue: the policy is static, so nobody joined while {named(case.rows) or 'others'} ran."


def _passed_over(recording: Recording, row: RequestTrace) -> list[TimedReason]:
    """Rows that came later and went first."""
    if row.submit_ns < 0:
        return []
    until = row.admit_ns if row.admit_ns >= 0 else row.over_ns(recording.now_ns)
    lookup = lookup_of(recording)
    rows = lookup.in_order(lookup.went_first(row.heard_ns, until))
    if not rows:
        return []
    higher = [one for one in rows if recording.requests[one].priority > row.priority]
    why = "a higher priority" if len(higher) == len(rows) else "the policy's order, or they fitted where it did not"
    return [
        TimedReason("queue-passed-over", f"{named(rows).capitalize()} came later and went first: {why}.", 0.0, rows)
    ]


# ---------------------------------------------------------------- running, and the end


def _shared(case: _Case) -> str:
    most = max(one.about for one in case.group)
    with_whom = f" with {named(case.rows)}" if case.rows else ""
    return f"writing in {case.steps} shared{with_whom} (up to {most} rows a step)."


def _prefill(case: _Case) -> str:
    tokens = sum(one.about for one in case.group)
    together = f", together with {named(case.rows)}" if case.rows else ""
    pieces = "1 chunk" if len(case.group) == 1 else f"{len(case.group)} chunks"
    return f"reading {tokens:,} tokens of the prompt in {pieces}{together}."


def _interleaved(case: _Case) -> str:
    return f"with a place but between its own chunks: it was the turn of {named(case.rows) or 'other rows'}."


def _behind_chunk(case: _Case) -> str:
    times = "once" if len(case.group) == 1 else f"{len(case.group)} times"
    what = "the prompt of" if len(case.rows) < 2 else "chunks of the prompts of"
    was = "was" if len(case.rows) < 2 else "were"
    return f"held up {times} while {what} {named(case.rows) or 'another row'} {was} read."


def _user_code(case: _Case) -> str:
    own = case.row.id in case.rows
    others = [one for one in case.rows if one != case.row.id]
    whose = " and ".join([*(["its own"] if own else []), *([f"that of {named(others)}"] if others else [])])
    return f"in Python code given with the requests ({whose}: on_token, processors), in {case.steps}."


def _cold(case: _Case) -> str:
    return f"in {case.steps} that was the first of its size: kernels were compiled, or weights read for the first time."


def _says(text: str) -> Callable[[_Case], str]:
    return lambda _case: text


_IN_LINE = ("queue-batch-full", "queue-budget", "queue-alone", "queue-empty", "queue-static-policy")

_WORDS: dict[str, Callable[[_Case], str]] = {
    "queue-turn": _says("in the queue until the engine was done with what it was at."),
    "queue-batch-full": _batch_full,
    "queue-budget": _budget,
    "queue-fence": _says("in the queue: somebody else had asked for the device before, and rows after that wait."),
    "queue-alone": _alone,
    "queue-empty": _empty,
    "queue-static-policy": _static,
    "queue-shared-beginning": _shared_beginning,
    "queue-device": _says("in the queue for the device: one model, load or lease has it at a time."),
    "paused": _says("paused by hand."),
    "prefill": _prefill,
    "prefill-interleaved": _interleaved,
    "first-token": _says("computing the first token after the prompt was read."),
    "decode-shared": _shared,
    "decode-alone": lambda case: f"writing in {case.steps} alone.",
    "decode-behind-chunk": _behind_chunk,
    "between-steps": _says("between steps: the engine's own work, and events of other rows."),
    "slow-motion": _says("at rest between steps: slow motion was on."),
    "device-wait": _says("waiting to get the device back."),
    "cold-step": _cold,
    "user-code-slow": _user_code,
    "rewind": _says("lost to a step that failed: its state was computed again."),
}


def _cache(row: RequestTrace) -> list[TimedReason]:
    if row.cached_tokens <= 0:
        return []
    text = f"{row.cached_tokens:,} of {row.prompt_tokens:,} prompt tokens were in the prompt cache and not read again."
    return [TimedReason("cache-hit", text)]


_ENDINGS = {
    "eos": "It ended by itself.",
    "stop_string": "It ended at a stop string.",
    "callback": "Its on_token said to stop.",
    "grammar": "Its grammar was complete.",
    "max_tokens": "It was cut at max_tokens ({limit}).",
    "context": "It was cut: the model's context was full.",
    "user": "It was cancelled.",
    "deadline": "It was cancelled: its deadline passed.",
    "closed": "It was cancelled: its gateway was closed.",
}


def _ended(row: RequestTrace) -> list[TimedReason]:
    if row.reason is None:
        return []
    if row.reason is FinishReason.ERROR or row.detail is None:
        return [TimedReason(f"ended-{row.reason}", "It failed; its handle has the error.")]
    text = _ENDINGS[str(row.detail)].format(limit=f"{row.max_tokens:,}")
    return [TimedReason(f"ended-{str(row.detail).replace('_', '-')}", text)]

"""A recording: the log's records, sorted into requests, steps, chunks, tokens, waits and controls.

Fed piece by piece, so that one of them serves any number of views; what views, frames, traces and
figures show is read from here. Times are the log's monotonic nanoseconds, -1 = not yet. No text.
One writer; who reads meanwhile sees whole rows only if they take turns (the gateway has a lock for it).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mlx_notebook.core.ring import Control, Kind, WaitCause
from mlx_notebook.core.rows import FinishDetail, FinishReason, RowStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlx_notebook.core.lookup import Lookup

NOT_YET = -1

LEASE_WORDS = ("given back", "granted", "wanted", "unwanted")
"""What `value` of a control "lease" says, by its place."""

_REASONS, _DETAILS = tuple(FinishReason), tuple(FinishDetail)


class Table:
    """Columns of one length, with an index that only grows: old entries may be let go, `first` is the oldest kept."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.first = 0
        self.columns: dict[str, array[int]] = {name: array("q") for name in names}
        self._appends = tuple(column.append for column in self.columns.values())

    def __len__(self) -> int:
        return len(self.columns[self.names[0]])

    def __getitem__(self, name: str) -> array[int]:
        return self.columns[name]

    @property
    def next(self) -> int:
        """Index after the last entry."""
        return self.first + len(self)

    def add(self, *values: int) -> None:
        """One entry, in the order of the names."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def since(self, index: int, stop: int | None = None) -> dict[str, array[int]]:
        """The entries from `index` on that are still there, up to `stop`."""
        begin = max(0, index - self.first)
        end = None if stop is None else max(0, stop - self.first)
        return {name: column[begin:end] for name, column in self.columns.items()}

    def copy(self) -> Table:
        """The same entries apart."""
        twin = Table(*self.names)
        for name, column in self.columns.items():
            twin.columns[name].extend(column)
        twin.first = self.first
        return twin

    def trim(self, keep: int) -> None:
        """Let the oldest entries go, a quarter at a time, so that about `keep` stay."""
        excess = len(self) - keep
        if excess > keep // 4:
            for column in self.columns.values():
                del column[:excess]
            self.first += excess


@dataclass(slots=True)
class RequestTrace:
    """One request as the log tells of it. `changed` is the recording's clock when something last did.

    `submit_ns` is when it was asked for, `heard_ns` when the engine took it in; `returns` are the first tokens
    after the rewinds; `whole` is False where the log had forgotten its beginning. `shares`: from `at` on it waited
    until row `reader` had read the `tokens` with which both begin (reader 0: for nobody any more).
    """

    id: int
    prompt_tokens: int = 0
    max_tokens: int = 0
    priority: int = 0
    cached_tokens: int = 0
    prefilled: int = 0
    generated_tokens: int = 0
    slot: int = NOT_YET
    status: RowStatus = RowStatus.QUEUED
    submit_ns: int = NOT_YET
    heard_ns: int = NOT_YET
    admit_ns: int = NOT_YET
    first_ns: int = NOT_YET
    last_ns: int = NOT_YET
    end_ns: int = NOT_YET
    reason: FinishReason | None = None
    detail: FinishDetail | None = None
    rewinds: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    shares: list[tuple[int, int, int]] = field(default_factory=list)
    whole: bool = True
    changed: int = 0

    def over_ns(self, now_ns: int) -> int:
        """When it ended, or now."""
        return now_ns if self.end_ns < 0 else self.end_ns

    def runs_at(self, at_ns: int) -> bool:
        """Whether it had a place in the batch then (rewinds aside)."""
        return 0 <= self.admit_ns <= at_ns and (self.end_ns < 0 or at_ns < self.end_ns)

    def waits_at(self, at_ns: int) -> bool:
        """Whether it stood in the line then."""
        until = self.admit_ns if self.admit_ns >= 0 else self.end_ns
        return 0 <= self.submit_ns <= at_ns and (until < 0 or at_ns < until)


class Recording:
    """Requests and tables of one run.

    Attributes:
        requests: by id, in order of submission.
        steps: `step, start, end, rows, queued`.
        chunks: `row, step, from, to, start, end`: positions of a prompt that one forward computed.
        tokens: `row, step, n, token_id, at, user`: `user` is nanoseconds of the user's own code, 0 mostly.
        waits: `at, row, cause, about`: from then on the line's head waits for that (WaitCause).
        controls: `at, what, row, value`: `what` is a place in CONTROLS.
        memory: `at, rows, kept`: bytes that rows may take at most, and that kept prefixes take.
        missed: records that were overwritten before they came here.
        begin_ns: of the first record, or of the first asking if that was before; -1 while there is none.
        now_ns: of the last record.
        clock: counts records; to be compared with a request's `changed`.
        lookup: what `core.lookup` worked out of the records, kept here.
    """

    def __init__(self) -> None:
        self.requests: dict[int, RequestTrace] = {}
        self._touched: dict[int, RequestTrace] = {}
        self.steps = Table("step", "start", "end", "rows", "queued")
        self.chunks = Table("row", "step", "from", "to", "start", "end")
        self.tokens = Table("row", "step", "n", "token_id", "at", "user")
        self.waits = Table("at", "row", "cause", "about")
        self.controls = Table("at", "what", "row", "value")
        self.memory = Table("at", "rows", "kept")
        self.missed = 0
        self.begin_ns = self.now_ns = NOT_YET
        self.clock = 0
        self.lookup: Lookup | None = None

    def take(self, columns: Mapping[str, Sequence[int]], missed: int = 0) -> None:
        """The next records, as columns of the ring (any order of names; see `core.ring`)."""
        self.missed += missed
        if self.begin_ns < 0 and len(columns["at_ns"]):
            self.begin_ns = int(columns["at_ns"][0])
        names = ("kind", "at_ns", "row", "step", "a", "b", "spent_ns")
        for kind, at, row, step, a, b, spent in zip(*(columns[name] for name in names), strict=True):
            self.clock += 1
            if kind == Kind.TOKEN:
                self._token(int(at), int(row), int(step), int(a), int(b), int(spent))
            elif kind == Kind.STEP:
                self.steps.add(int(step), int(at - spent), int(at), int(a), int(b))
            else:
                self._rare(Kind(int(kind)), int(at), int(row), int(step), int(a), int(b), int(spent))
        if len(columns["at_ns"]):
            self.now_ns = max(self.now_ns, int(columns["at_ns"][-1]))

    def trim(self, keep: int) -> None:
        """Let the oldest go, so that about `keep` tokens and as many entries of each table stay, and their requests."""
        self.lookup = None
        for table in (self.steps, self.chunks, self.tokens, self.waits, self.controls, self.memory):
            table.trim(keep)
        excess = len(self.requests) - keep // 20
        if excess > 0:
            over = [row.id for row in self.requests.values() if row.status.final][:excess]
            for row_id in over:
                del self.requests[row_id]
                self._touched.pop(row_id, None)

    def copy(self) -> Recording:
        """The same apart: whoever reads it needs to take no turns with who writes this one."""
        twin = Recording()
        twin.requests = {
            row.id: replace(row, rewinds=list(row.rewinds), returns=list(row.returns), shares=list(row.shares))
            for row in self.requests.values()
        }
        twin._touched = {row_id: twin.requests[row_id] for row_id in self._touched}
        for name in ("steps", "chunks", "tokens", "waits", "controls", "memory"):
            setattr(twin, name, getattr(self, name).copy())
        twin.missed, twin.clock = self.missed, self.clock
        twin.begin_ns, twin.now_ns = self.begin_ns, self.now_ns
        return twin

    def changed_since(self, clock: int) -> list[RequestTrace]:
        """Requests of which something changed after the recording's clock said that, latest first."""
        found = []
        for row in reversed(self._touched.values()):
            if row.changed <= clock:
                break
            found.append(row)
        return found

    def _change(self, row_id: int) -> RequestTrace:
        """The request of that id, about to change; one whose beginning was missed is made up as far as it is known."""
        row = self._touched.pop(row_id, None) or self.requests.get(row_id)
        if row is None:
            row = self.requests[row_id] = RequestTrace(row_id, whole=False)
        self._touched[row_id] = row
        row.changed = self.clock
        return row

    # ------------------------------------------------------------ one record

    def _token(  # noqa: PLR0917 - a record's columns
        self, at: int, row_id: int, step: int, token_id: int, n: int, user: int
    ) -> None:
        self.tokens.add(row_id, step, n, token_id, at, user)
        row = self._change(row_id)
        row.generated_tokens, row.last_ns = n, at
        row.status = RowStatus.DECODE
        if len(row.returns) < len(row.rewinds):
            row.returns.append(at)
        if row.first_ns < 0 and n == 1:
            row.first_ns = at

    def _rare(  # noqa: PLR0917 - a record's columns
        self, kind: Kind, at: int, row_id: int, step: int, a: int, b: int, spent: int
    ) -> None:
        if kind is Kind.SUBMIT:
            row = self._change(row_id)
            row.prompt_tokens, row.max_tokens, row.submit_ns, row.heard_ns = a, b, at - spent, at
            row.whole = True
            self.begin_ns = min(self.begin_ns, row.submit_ns)
        elif kind is Kind.ADMIT:
            row = self._change(row_id)
            row.cached_tokens, row.slot, row.status = a, b, RowStatus.PREFILL
            row.prefilled = a if row.admit_ns < 0 else 0
            row.admit_ns = at if row.admit_ns < 0 else row.admit_ns
        elif kind is Kind.CHUNK:
            self.chunks.add(row_id, step, a, b, at - spent, at)
            row = self._change(row_id)
            row.prefilled = b
        elif kind is Kind.END:
            row = self._change(row_id)
            row.end_ns = at
            row.reason = _REASONS[a] if a >= 0 else None
            row.detail = _DETAILS[b] if b >= 0 else None
            row.status = RowStatus.FAILED if row.reason is None else row.reason.status
        elif kind is Kind.WAIT:
            self.waits.add(at, row_id, a, b)
        elif kind is Kind.MEMORY:
            self.memory.add(at, a, b)
        elif kind is Kind.SHARE:
            self._change(row_id).shares.append((at, a, b))
        else:
            self._control(kind, at, row_id, a, b)

    def _control(self, kind: Kind, at: int, row_id: int, a: int, b: int) -> None:
        if kind is Kind.CONTROL:
            what, value = CONTROLS.index(Control(a).name.lower()), b
        else:
            what, value = CONTROLS.index(kind.name.lower()), a
        if kind is Kind.LEASE and a > 1:
            row_id = b  # which of our places in the line somebody stands behind
        self.controls.add(at, what, row_id, value)
        if kind is Kind.REWIND:
            row = self._change(row_id)
            row.rewinds.append(at)
            row.status, row.prefilled, row.slot = RowStatus.QUEUED, 0, NOT_YET
        elif what == CONTROLS.index("priority"):
            row = self._change(row_id)
            row.priority = value
        elif what == CONTROLS.index("limit"):
            row = self._change(row_id)
            row.max_tokens = value

    # ------------------------------------------------------------ looking things up

    def controls_of(self, what: str) -> list[tuple[int, int, int]]:
        """(at, row, value) of every control of that kind, oldest first."""
        code = CONTROLS.index(what)
        table = self.controls
        return [
            (at, row, value)
            for at, kind, row, value in zip(table["at"], table["what"], table["row"], table["value"], strict=True)
            if kind == code
        ]

    def steps_between(self, start_ns: int, end_ns: int) -> range:
        """Places in `steps` of those that ended after `start_ns` and began before `end_ns`."""
        return _overlapping(self.steps, start_ns, end_ns)

    def chunks_between(self, start_ns: int, end_ns: int) -> range:
        """Places in `chunks` of those that overlap the stretch."""
        return _overlapping(self.chunks, start_ns, end_ns)

    def tokens_of_step(self, step: int) -> range:
        """Places in `tokens` of one step's."""
        return range(bisect_left(self.tokens["step"], step), bisect_left(self.tokens["step"], step + 1))


CONTROLS = (*(one.name.lower() for one in Control), "lease", "rewind", "policy")
"""The words of `controls`, by number."""

CAUSES = tuple(one.name.lower().replace("_", "-") for one in WaitCause)
"""The words of `waits`, by number."""


def _overlapping(table: Table, start_ns: int, end_ns: int) -> range:
    """By bisection: entries are written in order of their ends, and the engine does one thing at a time."""
    begin = bisect_left(table["end"], start_ns + 1)
    stop = bisect_left(table["start"], end_ns, lo=min(begin, len(table)))
    return range(begin, stop)


def recording_of(parts: Iterable[Mapping[str, Sequence[int]]], missed: int = 0) -> Recording:
    """A recording of columns that follow each other."""
    recording = Recording()
    for columns in parts:
        recording.take(columns, missed)
        missed = 0
    return recording

"""Driving a scheduler in a test: requests, a clock that counts, and short names for what it says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Capabilities, Mechanism, Placement, resolve
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings

MS = 1_000_000
LENGTH = (FinishReason.LENGTH, FinishDetail.MAX_TOKENS)


def request(row_id: int, prompt: int = 3, *, priority: int = 0, deadline: float | None = None) -> Request:
    """A request with a prompt of so many tokens."""
    shape = RequestShape(tuple(range(prompt)), SamplingOptions(max_tokens=4))
    return Request(row_id, shape, priority=priority, deadline=deadline)


def placed(asked: Request, mechanism: Mechanism = Mechanism.SERIAL) -> Placement:
    """Its placement, on the mechanism wanted."""
    capabilities = Capabilities(vocab_size=100, continuous=mechanism is Mechanism.CONTINUOUS, max_rows=8)
    return resolve(asked.shape, capabilities, 0)


def scheduler(max_rows: int = 1, chunk: int | None = 4) -> Scheduler:
    """A scheduler with chunks of a fixed size and nothing kept."""
    return Scheduler(SchedulerSettings(max_rows=max_rows, chunk=chunk))


def chunk(row_id: int, start: int, stop: int, *, last: bool) -> ev.Prefill:
    """A forward over one row's positions."""
    return ev.Prefill((ev.PrefillPart(row_id, start, stop, last),))


@dataclass
class Drive:
    """A scheduler with a clock of its own: each event comes one millisecond after the one before."""

    scheduler: Scheduler = field(default_factory=scheduler)
    mechanism: Mechanism = Mechanism.SERIAL
    now_ns: int = 0

    def tick(self) -> int:
        self.now_ns += MS
        return self.now_ns

    def feed(self, event: ev.Event) -> list[ev.Instruction]:
        return self.scheduler.handle(replace(event, at_ns=self.tick()))

    def submit(self, row_id: int, prompt: int = 3, **how: float) -> list[ev.Instruction]:
        asked = request(row_id, prompt, **how)  # type: ignore[arg-type]
        return self.feed(ev.Submitted(0, self.now_ns, asked, placed(asked, self.mechanism)))

    def turn(self) -> list[ev.Instruction]:
        return self.feed(ev.Turn(0))

    def grant(self, place: int = 0) -> list[ev.Instruction]:
        return self.feed(ev.LeaseGranted(0, place))

    def cancel(self, row_id: int, detail: FinishDetail = FinishDetail.USER) -> list[ev.Instruction]:
        return self.feed(ev.CancelAsked(0, row_id, detail))

    def prefilled(self, chunk: ev.Prefill, error: tuple[str, str] | None = None) -> list[ev.Instruction]:
        errors = {} if error is None else {part.row_id: error for part in chunk.parts}
        return self.feed(ev.PrefillDone(0, self.now_ns, chunk.parts, errors))

    def stepped(self, *outcomes: ev.RowOutcome) -> list[ev.Instruction]:
        return self.feed(ev.StepDone(0, self.now_ns, outcomes))

    def until_decode(self, row_id: int) -> None:
        """Turns, with every chunk done, until the row writes."""
        while row_id not in decoding(self.scheduler):
            for step in self.turn():
                if isinstance(step, ev.Prefill):
                    self.prefilled(step)

    def decode_row(self, row_id: int = 1, prompt: int = 3) -> None:
        """Submit one row and bring it to where it writes."""
        self.submit(row_id, prompt)
        self.grant()
        self.until_decode(row_id)


def decoding(scheduler: Scheduler) -> list[int]:
    """Ids of the rows that write."""
    return [row.id for row in scheduler.rows.values() if row.status == "decode"]


def token(row_id: int, token_id: int = 7) -> ev.RowOutcome:
    """One more token."""
    return ev.RowOutcome(row_id, token_id, "x")


def last_token(row_id: int) -> ev.RowOutcome:
    """One more token, and the end."""
    return ev.RowOutcome(row_id, 7, "x", finish=LENGTH)


def cancelled(row_id: int, detail: FinishDetail = FinishDetail.USER, *, opened: bool) -> list[ev.Instruction]:
    """What is said of a cancelled row."""
    settle = ev.Settle(row_id, FinishReason.CANCELLED, detail, None, opened)
    return [ev.Drop(row_id), settle] if opened else [settle]


def failed(row_id: int, error: tuple[str, str]) -> list[ev.Instruction]:
    """What is said of an opened row that failed."""
    return [ev.Drop(row_id), ev.Settle(row_id, FinishReason.ERROR, None, error)]

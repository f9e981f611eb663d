"""A scheduler with a prompt cache, and an engine that computes all it is told and counts: for rows that begin alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.core.ring import Ring
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings
from mlx_notebook.core.scheduler_settings import UNLIMITED
from tests.core.driving import LENGTH, MS, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.rows import Row

BEGINNING = tuple(range(2_000))


def ends(row_id: int, tokens: int = 20) -> tuple[int, ...]:
    """An end of one row's own."""
    return tuple(range(100_000 * row_id, 100_000 * row_id + tokens))


def settings(**how: Any) -> SchedulerSettings:
    """A batch of forty rows, chunks of 512, all the memory there is."""
    usual: dict[str, Any] = {"max_rows": 40, "chunk": 512, "prompt_cache": UNLIMITED, "trimmable": True}
    return SchedulerSettings(**{**usual, **how})


@dataclass
class SharingRun:
    """One run: entries take a byte a token, and `keeps` says whether the engine can keep any."""

    settings: SchedulerSettings = field(default_factory=settings)
    keeps: bool = True
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.ring = Ring(1 << 14)
        self.scheduler = Scheduler(self.settings, self.ring)
        self.log = DecisionLog()
        self.said: list[list[ev.Instruction]] = []
        self.rows: dict[int, Row] = {}
        self.entries: dict[int, int] = {}
        self.opens: list[ev.Open] = []
        self.prefills: list[ev.Prefill] = []
        self.decodes: list[tuple[int, ...]] = []

    def feed(self, event: ev.Event) -> None:
        """Hand an event in, a millisecond after the last, and do what is said."""
        self.now_ns += MS
        event = replace(event, at_ns=self.now_ns)
        self.log.add(event)
        said = self.scheduler.handle(event)
        self.said.append(said)
        for step in said:
            self._do(step)

    def _do(self, step: ev.Instruction) -> None:
        rows = self.scheduler.rows
        match step:
            case ev.AskLease():
                self.feed(ev.LeaseGranted(0))
            case ev.Open(_, entry_id, cached):
                assert entry_id is None or self.entries[entry_id] >= cached
                self.opens.append(step)
            case ev.Prefill(parts) if any(part.row_id in rows for part in parts):
                self.prefills.append(step)
                self.feed(ev.PrefillDone(0, self.now_ns, tuple(part for part in parts if part.row_id in rows)))
            case ev.Decode(row_ids):
                self.decodes.append(row_ids)
                self.feed(ev.StepDone(0, self.now_ns, tuple(self._token(row_id) for row_id in row_ids)))
            case ev.Keep(_, entry_id, tokens):
                self._keep(entry_id, tokens)
            case ev.Drop(_, keep_as, tokens) if keep_as is not None:
                self._keep(keep_as, tokens or 0)
            case ev.Evict(entry_id):
                self.entries.pop(entry_id, None)

    def _keep(self, entry_id: int, tokens: int) -> None:
        if self.keeps:
            self.entries[entry_id] = tokens
        self.feed(ev.Kept(0, entry_id, tokens if self.keeps else 0, tokens if self.keeps else 0))

    def _token(self, row_id: int) -> ev.RowOutcome:
        row = self.scheduler.rows[row_id]
        last = row.generated_tokens + 1 >= row.request.shape.sampling.max_tokens
        return ev.RowOutcome(row_id, 7, "x", finish=LENGTH if last else None)

    def submit(self, row_id: int, prompt: Sequence[int], **how: Any) -> None:
        """A row with this prompt and two tokens to write; `how` may name fields of the request."""
        mechanism = how.pop("mechanism", Mechanism.CONTINUOUS)
        shape = RequestShape(tuple(prompt), how.pop("sampling", SamplingOptions(max_tokens=2)))
        asked = Request(row_id, shape, **how)
        self.feed(ev.Submitted(0, self.now_ns, asked, placed(asked, mechanism)))
        self.rows[row_id] = self.scheduler.rows[row_id]

    def burst(self, rows: int = 32, beginning: Sequence[int] = BEGINNING, **how: Any) -> None:
        """Rows 1, 2, ... that begin alike."""
        for row_id in range(1, rows + 1):
            self.submit(row_id, (*beginning, *ends(row_id)), **how)

    def turn(self) -> None:
        self.feed(ev.Turn(0))

    def finish(self, most: int = 400) -> None:
        """Turns until nobody is left; then the decision log says the same again."""
        for _ in range(most):
            if not self.scheduler.rows:
                break
            self.turn()
        assert not self.scheduler.rows, "rows that nobody moves"
        again = Scheduler(self.settings)
        assert [again.handle(event) for event in self.log.events()] == self.said

    # ------------------------------------------------------------ what was done

    @property
    def computed(self) -> int:
        """Tokens of prompts that were run through the model; the last of each is fed with its first step."""
        return sum(part.computed for step in self.prefills for part in step.parts)

    @property
    def opened(self) -> list[int]:
        """Rows in the order in which they were opened."""
        return [step.row_id for step in self.opens]

    def cached(self) -> list[int]:
        """Each row's cached tokens, in the order of submission."""
        return [row.cached_tokens for row in self.rows.values()]

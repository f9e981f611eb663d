"""`map`: a frame of answers, one row a prompt, that can be interrupted, saved, resumed and retried."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlx_notebook.errors import RowsFailed
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.frames import rows as plan
from mlx_notebook.gateway.frames.answers import columns_for
from mlx_notebook.gateway.frames.feed import Feed
from mlx_notebook.gateway.frames.identity import KEY, identity, row_checksum
from mlx_notebook.gateway.frames.journal import Journal
from mlx_notebook.gateway.frames.outcome import Outcome, frame_of, refused, summary
from mlx_notebook.gateway.frames.progress import DRAW_S, Meter, Pace, meter_for
from mlx_notebook.gateway.frames.resume import Earlier, earlier_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pandas import DataFrame

    from mlx_notebook.gateway.frames.answers import AnswerColumns
    from mlx_notebook.gateway.frames.rows import Answering, Job, Table
    from mlx_notebook.gateway.handle import Handle


@dataclass(slots=True)
class Run:
    """Jobs with their outcomes so far, and whoever wants to know of each."""

    jobs: Sequence[Job]
    errors: str
    pace: Pace
    meter: Meter
    outcomes: dict[tuple[int, str, int], Outcome] = field(default_factory=dict)
    tokens: int = 0
    drawn_at: float = 0.0

    def settle(self, job: Job, outcome: Outcome) -> None:
        """Note one outcome; with errors="raise" the first bad one ends the run."""
        if job.key in self.outcomes:  # an interrupt may have come just after it was noted
            return
        self.outcomes[job.key] = outcome
        self.pace.done += 1
        self.pace.failed += outcome["error"] is not None
        self.tokens += outcome["generated_tokens"] or 0
        if outcome["error"] is not None and self.errors == "raise":
            raise RowsFailed(f'row {job.key[0]}: {outcome["error"]} (errors="keep" goes on with the others)')

    def draw(self, under_way: Sequence[Handle]) -> None:
        """Show the progress, a few times a second."""
        now = time.monotonic()
        if now - self.drawn_at >= DRAW_S:
            self.drawn_at = now
            tokens = self.tokens + sum(handle.progress().generated_tokens for handle in under_way)
            self.meter.show(self.pace.state(tokens, len(under_way)))

    def ordered(self) -> list[Outcome | None]:
        """Outcomes in the jobs' order; None for what was not run."""
        return [self.outcomes.get(job.key) for job in self.jobs]


def map_rows(
    gateway: Any,
    data: Any,
    prompt: str | None,
    *,
    system: Any,
    errors: str,
    save: Any,
    resume: Any,
    retry: str | None,
    progress: bool,
    n: Any,
    expand: Any,
    options: Mapping[str, Any],
) -> DataFrame:
    """See `Gateway.map`."""
    waiting.refuse_to_block("map()")
    check_words(errors, retry, progress)
    samples = plan.samples_of(n)
    common, series = plan.common_options(options, system)
    parsed = gateway.check_options(**common)
    table = plan.read_data(data, prompt, series)
    seed_given = common.pop("seed", None)
    earlier = earlier_run(resume, save, retry, gateway.last_map)
    seed = plan.run_seed(seed_given, earlier.identity if earlier else None)
    plan.check_rows(gateway, table.rows, common)
    answers = columns_for(parsed, plan.options_of_rows(gateway, table.rows, common), expand=expand)
    now = identity(gateway, table.rows, template=prompt, options=common, per_row=list(series), n=samples, seed=seed)
    if earlier is not None:
        earlier.check_same(now, table)
    jobs = _jobs(gateway, table, common, seed, samples)
    kept = earlier.outcomes_for(table, samples) if earlier is not None else {}
    run = Run(jobs, errors, Pace(len(jobs), len(kept)), meter_for(live=progress), dict(kept))

    def frame() -> DataFrame:
        return _frame(run, table, now, samples, answers)

    _refuse_early(run, table, frame)
    with _Save(save, earlier, now, table, kept) as file:

        def settle(job: Job, outcome: Outcome) -> None:
            file.append(job, outcome)
            run.settle(job, outcome)

        return execute(run, settle, gateway, frame)


def execute(
    run: Run, settle: Callable[[Job, Outcome], None], gateway: Any, frame: Callable[[], DataFrame]
) -> DataFrame:
    """Run what has no outcome yet; the frame, which is the gateway's `last_map` too, also when it ends early."""
    feed = Feed([job for job in run.jobs if job.key not in run.outcomes], settle, run.draw)
    try:
        feed.run()
    except BaseException as stopped:
        _end_early(run, feed, stopped)
        gateway.last_map = stopped.frame = frame()  # type: ignore[attr-defined]
        raise
    whole: DataFrame = frame()
    gateway.last_map = whole
    run.meter.close(summary(run.ordered()))
    return whole


def _end_early(run: Run, feed: Feed, stopped: BaseException) -> None:
    """Keep what is finished, cancel the rest, and say so."""
    run.errors = "keep"  # one error is on its way already
    cancelled = feed.give_up()
    if isinstance(stopped, KeyboardInterrupt):
        waiting.interrupted(*cancelled)
    run.meter.close(f"stopped early: {summary(run.ordered())}")


def check_words(errors: Any, retry: Any, progress: Any) -> None:
    """Raise unless these are among the words that `map` and `compare` take."""
    if errors not in ("keep", "raise"):
        raise ValueError(f"errors={errors!r}: 'keep' (a failed row is a row of the frame) or 'raise'")
    if retry not in (None, "failed"):
        raise ValueError(f"retry={retry!r}: None, or 'failed' (run again what failed last time)")
    if not isinstance(progress, bool):
        raise TypeError(f"progress={progress!r}: True or False")


def _jobs(gateway: Answering, table: Table, common: Mapping[str, Any], seed: int, samples: int) -> list[Job]:
    jobs = []
    for row in table.rows:
        for sample in range(samples):
            options = {**common, **row.own, "seed": plan.seed_of(row, seed, sample)}
            jobs.append(plan.Job((row.position, "", sample), gateway, row.prompt, options, row.problem))
    return jobs


def _refuse_early(run: Run, table: Table, partial: Callable[[], DataFrame]) -> None:
    """Say which rows cannot be run, or raise with errors="raise"; then also for what failed in the run before."""
    problems = {row.position: row.problem for row in table.rows if row.problem is not None}
    text = plan.describe_problems(problems, table.index) if problems else ""
    if run.errors == "raise":
        failed = [key[0] for key, outcome in run.outcomes.items() if outcome["error"] is not None]
        if problems:
            raise _with_frame(RowsFailed(f'{text}\n(errors="keep" makes them rows of the frame)'), partial)
        if failed:
            raise _with_frame(
                RowsFailed(f'row {failed[0]} failed in the run before: retry="failed" runs it again'), partial
            )
    elif problems:
        print(text)  # noqa: T201 - the interface promises the list before the first token


def _with_frame(error: RowsFailed, partial: Callable[[], DataFrame]) -> RowsFailed:
    error.frame = partial()
    return error


def _frame(run: Run, table: Table, now: dict[str, Any], samples: int, answers: AnswerColumns) -> DataFrame:
    index = table.index if samples == 1 else table.index.repeat(samples)
    after = None if samples == 1 else {"sample": [job.key[2] for job in run.jobs]}
    outcomes = run.ordered()
    # Rows that cannot be run are errors in a partial frame too.
    whole = [
        refused(job.problem, job.options["seed"]) if outcome is None and job.problem is not None else outcome
        for job, outcome in zip(run.jobs, outcomes, strict=True)
    ]
    frame = frame_of(whole, index, after=after, answers=answers)
    frame.attrs[KEY] = now
    return frame


class _Save:
    """The saved file of one call, if it has one: opened late, so that a refused call leaves no file."""

    def __init__(
        self,
        save: Any,
        earlier: Earlier | None,
        now: dict[str, Any],
        table: Table,
        kept: Mapping[tuple[int, str, int], Outcome],
    ) -> None:
        self._table = table
        self._journal: Journal | None = None
        path = Path(os.fspath(save)) if save is not None else earlier.path if earlier is not None else None
        if path is None:
            return
        if earlier is not None and earlier.path is not None and _same_file(path, earlier.path):
            self._journal = Journal(path, now, keep=earlier.sound_bytes)
            return
        if path.exists():
            raise FileExistsError(
                f"{path} is there already: resume=True goes on with it; else choose another name, or delete it"
            )
        self._journal = Journal(path, now)
        for key, outcome in kept.items():
            self._write(key, outcome)

    def append(self, job: Job, outcome: Outcome) -> None:
        """Write one row."""
        self._write(job.key, outcome)

    def _write(self, key: tuple[int, str, int], outcome: Outcome) -> None:
        if self._journal is None:
            return
        row = self._table.rows[key[0]]
        label = self._table.index[key[0]]
        plain = label if isinstance(label, str | int | float) else str(label)
        self._journal.append(key[0], key[2], plain, row_checksum(row), outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._journal is not None:
            self._journal.close()


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)

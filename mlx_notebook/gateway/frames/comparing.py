"""`compare`: the same prompts under several settings, side by side in one batch and one long frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import RowsFailed
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.frames import rows as plan
from mlx_notebook.gateway.frames.mapping import Run, check_words, execute
from mlx_notebook.gateway.frames.outcome import frame_of
from mlx_notebook.gateway.frames.progress import Pace, meter_for

if TYPE_CHECKING:
    from pandas import DataFrame

    from mlx_notebook.gateway.frames.rows import Answering, Job, Table


def compare_rows(
    gateway: Any,
    prompts: Any,
    settings: Mapping[str, Any],
    *,
    prompt: str | None,
    system: Any,
    errors: str,
    progress: bool,
    n: Any,
    options: Mapping[str, Any],
) -> DataFrame:
    """See `Gateway.compare`."""
    waiting.refuse_to_block("compare()")
    check_words(errors, None, progress)
    samples = plan.samples_of(n)
    common, series = plan.common_options(options, system)
    gateway.check_options(**common)
    asked = {name: _asked(name, value, gateway, common) for name, value in _checked_settings(settings).items()}
    table = plan.read_data(prompts, prompt, series)
    seed = plan.run_seed(common.get("seed"), None)
    jobs = _jobs(table, asked, seed, samples)
    run = Run(jobs, errors, Pace(len(jobs), 0), meter_for(live=progress))
    _say_problems(jobs, errors, lambda: _frame(run, table))
    return execute(run, run.settle, gateway, lambda: _frame(run, table))


def _checked_settings(settings: Any) -> Mapping[str, Any]:
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings: a dictionary {{name: options}}, not {type(settings).__name__}")
    if not settings:
        raise ValueError("settings: there is none to compare; give a dictionary {name: options}")
    wrong = next((name for name in settings if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"settings: each name is a text, not {wrong!r}")
    return settings


def _asked(name: str, value: Any, gateway: Any, common: Mapping[str, Any]) -> tuple[Answering, dict[str, Any]]:
    """(gateway, options for all rows) of one setting."""
    if hasattr(value, "submit") and hasattr(value, "check_options"):
        other, own = value, {}
    elif isinstance(value, Mapping):
        other, own = gateway, dict(value)
    else:
        raise TypeError(f"settings[{name!r}]: a dictionary of options or a gateway, not {type(value).__name__}")
    if "n" in own:
        raise ValueError(f"settings[{name!r}]: n holds for all settings: compare(..., n={own['n']!r})")
    merged = {**common, **own}
    try:
        other.check_options(**merged)
    except (TypeError, ValueError) as error:
        error.add_note(f"in settings[{name!r}]")
        raise
    return other, merged


def _jobs(table: Table, asked: Mapping[str, tuple[Answering, dict[str, Any]]], seed: int, samples: int) -> list[Job]:
    jobs = []
    for row in table.rows:
        for name, (gateway, options) in asked.items():
            # A setting's own option wins over the row's.
            merged = {**options, **{k: v for k, v in row.own.items() if k not in options}}
            problem = row.problem or plan.problem_with(gateway, row.prompt, merged)
            for sample in range(samples):
                drawn = plan.seed_of(row, merged.get("seed", seed) if "seed" in options else seed, sample)
                jobs.append(
                    plan.Job((row.position, name, sample), gateway, row.prompt, {**merged, "seed": drawn}, problem)
                )
    return jobs


def _say_problems(jobs: list[Job], errors: str, partial: Any) -> None:
    problems = {(job.key[0], job.key[1]): job.problem for job in jobs if job.problem is not None}
    if not problems:
        return
    lines = [f"  row {row}, {setting}: {problem}" for (row, setting), problem in list(problems.items())[:10]]
    more = [f"  and {len(problems) - 10} more"] if len(problems) > 10 else []
    text = "\n".join([f"{len(problems)} of the answers cannot be run:", *lines, *more])
    if errors == "raise":
        raise RowsFailed(text, frame=partial())
    print(text)  # noqa: T201 - said before the first token, as map does


def _frame(run: Run, table: Table) -> DataFrame:
    places = [job.key[0] for job in run.jobs]
    before = {"setting": [job.key[1] for job in run.jobs], "prompt": [job.prompt for job in run.jobs]}
    several = any(job.key[2] for job in run.jobs)
    after = {"sample": [job.key[2] for job in run.jobs]} if several else None
    return frame_of(run.ordered(), table.index.take(places), before=before, after=after)

"""One row's outcome as plain values, and a frame made of many: the columns are named here and nowhere else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.gateway.frames.answers import AnswerColumns, choices_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pandas import DataFrame

    from mlx_notebook.gateway.handle import Handle

COUNTS = ("prompt_tokens", "cached_tokens", "generated_tokens", "seed")
TIMES = ("queue_ms", "ttft_ms", "tpot_ms")
COLUMNS = (
    "text",
    "finish_reason",
    "finish_detail",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    *TIMES,
    "seed",
    "error",
)

ANSWER = ("parsed", "parse_error", "probabilities", "undecided")
EXTRAS = ("reasoning", *ANSWER)
"""What an outcome has beside `COLUMNS` where its row brought it."""

Outcome = dict[str, Any]
"""A row's values by column. A row that was not run has none at all."""


def outcome_of(handle: Handle) -> Outcome:
    """The outcome of a row that is over; a failed or cancelled one keeps what it had."""
    error = handle.exception()
    result = handle.result() if error is None else getattr(error, "result", None)
    values: dict[str, Any] = {} if result is None else result.to_dict()
    outcome: Outcome = {name: values.get(name) for name in COLUMNS}
    outcome["error"] = None if error is None else str(error)
    outcome |= {name: values[name] for name in EXTRAS if values.get(name) is not None}
    return outcome


def refused(problem: str, seed: int | None = None) -> Outcome:
    """The outcome of a row that could not be submitted."""
    return {**dict.fromkeys(COLUMNS), "finish_reason": str(FinishReason.ERROR), "seed": seed, "error": problem}


def frame_of(
    outcomes: Sequence[Outcome | None],
    index: Any,
    *,
    before: Mapping[str, Sequence[Any]] | None = None,
    after: Mapping[str, Sequence[Any]] | None = None,
    answers: AnswerColumns | None = None,
) -> DataFrame:
    """A frame of outcomes in order (None: not run), with more columns before and after them.

    `answers` says which columns they make as answers with a shape; left out, `parsed` if any row has it.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, values in (before or {}).items():
        columns[name] = pd.Series(list(values), dtype=object)
    extra = ["reasoning"] if any(outcome and "reasoning" in outcome for outcome in outcomes) else []
    for name in (*COLUMNS, *extra):
        given = [None if outcome is None else outcome.get(name) for outcome in outcomes]
        kind = "Int64" if name in COUNTS else "float64" if name in TIMES else object
        columns[name] = pd.Series(given, dtype=kind)
    for name, values in (after or {}).items():
        columns[name] = pd.Series(list(values), dtype="int64" if name == "sample" else object)
    if answers is None:
        answers = AnswerColumns(parsed=any(o and ("parsed" in o or "parse_error" in o) for o in outcomes))
    columns |= answers.of(outcomes, {*columns, *COLUMNS, *EXTRAS, "choice", "sample"})
    frame = pd.DataFrame(columns)
    frame.index = index
    return frame


def outcomes_in(frame: DataFrame) -> list[Outcome | None]:
    """The outcomes that a frame of ours holds, in its order; None for rows that were not run.

    Raises:
        ValueError: it is no frame of ours: the missing columns are named.
    """
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(f"resume: this frame did not come from map(): it has no {', '.join(missing)}")
    names = [name for name in (*COLUMNS, *EXTRAS) if name in frame.columns]  # a property never has such a name
    columns = {name: frame[name].tolist() for name in names} | choices_in(frame)
    outcomes: list[Outcome | None] = []
    for row in zip(*columns.values(), strict=True):
        values = {name: None if _is_missing(value) else value for name, value in zip(columns, row, strict=True)}
        kept = {name: value for name, value in values.items() if name not in ANSWER or value is not None}
        outcomes.append(_plain(kept) if kept["finish_reason"] is not None else None)
    return outcomes


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def _plain(values: Outcome) -> Outcome:
    for name in COUNTS:
        if values[name] is not None:
            values[name] = int(values[name])
    return values


def summary(outcomes: Iterable[Outcome | None]) -> str:
    """One line for people: "467 complete, 31 cut at max_tokens, 2 failed"."""
    counts = Counter(map(_ending, outcomes))
    shown = [f"{counts[word]} {word}" for word in _WORDS if counts[word] or word == _WORDS[0]]
    return ", ".join(shown)


_WORDS = ("complete", "cut at max_tokens", "cut at the end of the context", "failed", "cancelled", "not run")


def _ending(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    if outcome["finish_reason"] == FinishReason.CANCELLED:
        return "cancelled"
    if outcome["error"] is not None:
        return "failed"
    if outcome["finish_reason"] != FinishReason.LENGTH:
        return "complete"
    return _WORDS[2] if outcome["finish_detail"] == FinishDetail.CONTEXT else _WORDS[1]

"""An earlier run that a call goes on with: where it comes from, whether it is the same, and what it has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.rows import FinishReason
from mlx_notebook.gateway.frames.identity import KEY, differences, row_checksum
from mlx_notebook.gateway.frames.journal import read_saved
from mlx_notebook.gateway.frames.outcome import Outcome, outcomes_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandas import DataFrame

    from mlx_notebook.gateway.frames.rows import Table


@dataclass(slots=True)
class Earlier:
    """An earlier run. `outcomes` by (row, sample) come from a file; a frame's are matched when the data is known.

    `path` and `sound_bytes` are those of its file, where it has one; `retry` drops what failed.
    """

    identity: dict[str, Any]
    retry: bool
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)
    frame: DataFrame | None = None
    path: Path | None = None
    sound_bytes: int = 0

    def check_same(self, now: Mapping[str, Any], table: Table) -> None:
        """Raise ValueError unless the call asks for what the earlier run asked for; what differs is said."""
        found = differences(self.identity, now)
        if self.identity.get("prompts") != now["prompts"]:
            found += self._first_other_row(table)
        if found:
            raise ValueError(
                "resume: this is not the same run: "
                + "; ".join(dict.fromkeys(found))
                + ". Ask for the same, or start anew without resume (and under another save=)."
            )

    def _first_other_row(self, table: Table) -> list[str]:
        other = [row for row in table.rows if self.checksums.get(row.position) not in (None, row_checksum(row))]
        return [f"the first row that differs is row {other[0].position}"] if other else []

    def outcomes_for(self, table: Table, samples: int) -> dict[tuple[int, str, int], Outcome]:
        """What need not be run again: finished rows, and failed ones unless they are to be retried."""
        found = self.outcomes if self.frame is None else _by_row(self.frame, table, samples)
        return {(row, "", sample): outcome for (row, sample), outcome in found.items() if self._stays(outcome)}

    def _stays(self, outcome: Outcome) -> bool:
        if outcome["error"] is not None or outcome["finish_reason"] == FinishReason.CANCELLED:
            return not self.retry
        return True


def earlier_run(resume: Any, save: Any, retry: str | None, last: DataFrame | None) -> Earlier | None:
    """The run that `resume=` means; None for a new one. Retrying without a `resume=` means the last run.

    Raises:
        TypeError, ValueError, FileNotFoundError: there is nothing such to go on with.
    """
    import pandas as pd

    again = retry == "failed"
    if resume is None or resume is False:
        if not again:
            return None
        resume = True
    if isinstance(resume, pd.DataFrame):
        return _from_frame(resume, again)
    if resume is not True:
        if not isinstance(resume, str | os.PathLike):
            raise TypeError(f"resume={resume!r}: a frame of map(), the path of a saved run, or True")
        return _from_file(Path(os.fspath(resume)), again)
    if save is not None:
        path = Path(os.fspath(save))
        return _from_file(path, again) if path.exists() else None
    if last is None:
        raise ValueError("resume: there is no earlier run to go on with (no save=, and this gateway has run no map)")
    return _from_frame(last, again)


def _from_file(path: Path, retry: bool) -> Earlier:
    saved = read_saved(path)
    return Earlier(saved.identity, retry, saved.outcomes, saved.checksums, path=path, sound_bytes=saved.sound_bytes)


def _from_frame(frame: DataFrame, retry: bool) -> Earlier:
    about = frame.attrs.get(KEY)
    if about is None:
        raise ValueError(
            "resume: this frame no longer says which run it came from (some pandas operations drop `attrs`);"
            " resume from the frame as map() returned it, from gw.last_map, or from the file of save="
        )
    outcomes_in(frame)  # whether it has the columns
    return Earlier(about, retry, frame=frame)


def _by_row(frame: DataFrame, table: Table, samples: int) -> dict[tuple[int, int], Outcome]:
    """A frame's outcomes by (row, sample): by place where its index is the data's, else by label."""
    outcomes = outcomes_in(frame)
    index = table.index if samples == 1 else table.index.repeat(samples)
    if frame.index.equals(index) and (
        samples == 1 or frame["sample"].tolist() == list(range(samples)) * len(table.rows)
    ):
        keys = [(place // samples, place % samples) for place in range(len(outcomes))]
    elif table.index.is_unique and frame.index.isin(table.index).all():
        numbers = frame["sample"].tolist() if samples > 1 else [0] * len(frame)
        places = table.index.get_indexer(frame.index).tolist()
        keys = list(zip(places, numbers, strict=True))
    else:
        raise ValueError("resume: the frame's rows cannot be told apart by its index; resume from the file of save=")
    return {key: outcome for key, outcome in zip(keys, outcomes, strict=True) if outcome is not None}

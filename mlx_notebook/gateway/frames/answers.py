"""Columns of answers with a shape: parsed values, a schema's properties by type, choices with probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.columns import ColumnKind, columns_of
from mlx_notebook.core.grammar import GrammarKind, GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pandas import DataFrame

    from mlx_notebook.core.options import ParsedOptions
    from mlx_notebook.gateway.frames.outcome import Outcome

PROBABILITY = "p_"
"""Begins the name of the column with a choice's probability."""

_TYPES = {"integer": "Int64", "number": "float64", "boolean": "boolean", "string": "string", "object": "object"}


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """Which columns a call's answers make.

    `choices` are the categories of all rows together; `shares` says whether they have probabilities; `properties` are
    those of the schema, where they are wanted as columns.
    """

    choices: tuple[str, ...] = ()
    shares: bool = False
    parsed: bool = False
    properties: Mapping[str, ColumnKind] | None = None

    def of(self, outcomes: Sequence[Outcome | None], taken: Collection[str]) -> dict[str, Any]:
        """The columns, by name; a property whose name is `taken` is called `parsed.NAME`.

        What is taken does not hang on which columns a run happens to have, so that a frame says by itself which are
        the run's own and which are properties.
        """
        import pandas as pd

        found: dict[str, Any] = {}
        values = [None if outcome is None else outcome.get("parsed") for outcome in outcomes]
        if self.choices:
            kind = pd.CategoricalDtype(list(self.choices))
            found["choice"] = pd.Series(pd.Categorical(values, dtype=kind))
        elif self.parsed:
            found["parsed"] = _objects(values)
        if found:
            found["parse_error"] = _objects([None if one is None else one.get("parse_error") for one in outcomes])
        if self.choices and self.shares:
            found |= self._shares(outcomes)
        for name, kind_of in (self.properties or {}).items():
            column = [value.get(name) if isinstance(value, dict) else None for value in values]
            title = name
            while title in taken or title in found:
                title = f"parsed.{title}"
            found[title] = _typed(column, kind_of)
        return found

    def _shares(self, outcomes: Sequence[Outcome | None]) -> dict[str, Any]:
        import pandas as pd

        held = [(outcome or {}).get("probabilities") or {} for outcome in outcomes]
        columns = {
            PROBABILITY + choice: pd.Series([one.get(choice) for one in held], dtype="float64")
            for choice in self.choices
        }
        undecided = [None if outcome is None else outcome.get("undecided") for outcome in outcomes]
        return {**columns, "undecided": pd.Series(undecided, dtype="float64")}


def choices_in(frame: DataFrame) -> dict[str, list[Any]]:
    """What a frame's columns of choices say of its outcomes, by the outcomes' names; empty where it has none."""
    import pandas as pd

    if "choice" not in frame.columns or not isinstance(frame["choice"].dtype, pd.CategoricalDtype):
        return {}
    choices = frame["choice"].cat.categories
    found: dict[str, list[Any]] = {"parsed": frame["choice"].tolist()}
    shares = [f"{PROBABILITY}{one}" for one in choices]
    if shares and set(shares) <= set(frame.columns):
        found["probabilities"] = [
            None if any(map(pd.isna, row)) else dict(zip(choices, row, strict=True))
            for row in frame[shares].to_numpy().tolist()
        ]
    return found


def columns_for(common: ParsedOptions, own: Iterable[ParsedOptions], *, expand: Any) -> AnswerColumns:
    """The columns of a call.

    Args:
        common: the options for all rows.
        own: those of each row, where a Series gives some.
        expand: whether the schema's properties become columns.

    Raises:
        TypeError, ValueError: `expand` is no truth value, or there are no properties to expand.
    """
    if not isinstance(expand, bool):
        raise TypeError(f"expand={expand!r}: True or False")
    specs = [parsed.grammar for parsed in (common, *own) if parsed.grammar is not None]
    properties = _properties(common.grammar, specs) if expand else None
    if not specs:
        return AnswerColumns()
    choices: dict[str, None] = {}
    if all(spec.kind is GrammarKind.CHOICES for spec in specs):
        for spec in dict.fromkeys(specs):
            choices |= dict.fromkeys(spec.value)
    shares = common.sampling.logprobs is not None
    return AnswerColumns(tuple(choices), shares, parsed=True, properties=properties)


def _properties(common: GrammarSpec | None, specs: Sequence[GrammarSpec]) -> dict[str, ColumnKind]:
    if common is None or common.kind is not GrammarKind.JSON_SCHEMA or len(set(specs)) != 1:
        raise ValueError("expand=True needs one json_schema for all rows: its properties become the columns")
    found = columns_of(common.value)
    if not found:
        raise ValueError("expand=True: the json_schema describes no object with properties")
    return found


def _objects(values: list[Any]) -> Any:
    import numpy as np
    import pandas as pd

    cells = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        cells[at] = value  # one by one: a list as a value is one value, not a row of them
    return pd.Series(cells, dtype=object)


def _typed(values: list[Any], kind: ColumnKind) -> Any:
    """A column of its kind; of objects where some value does not fit (a whole number beyond 64 bits)."""
    import pandas as pd

    if kind.name == "object":
        return _objects(values)
    try:
        if kind.name == "category":
            return pd.Series(pd.Categorical(values, dtype=pd.CategoricalDtype(list(kind.among))))
        return pd.Series(values, dtype=_TYPES[kind.name])
    except (OverflowError, TypeError, ValueError):
        return _objects(values)

"""From a user's data to rows: the prompt of each, its own options, its seed, and what is wrong with it.

Everything is looked at before the first token. What is wrong with the call as a whole raises; what is wrong
with one row is noted there, and the others go on.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mlx_notebook.core.grammar import GrammarKind
from mlx_notebook.core.options import as_int, refuse_unknown
from mlx_notebook.core.seeds import row_seed
from mlx_notebook.errors import OverBudget, OverContext, UnsupportedRequest
from mlx_notebook.gateway.frames.template import Template, parse_template
from mlx_notebook.gateway.submission import draw_seed

if TYPE_CHECKING:
    from mlx_notebook.core.options import ParsedOptions
    from mlx_notebook.gateway.handle import Handle

ONE_PROMPT = "that is one prompt: generate() answers it, and map() takes a list of prompts"


class Answering(Protocol):
    """What `map` and `compare` need of a gateway."""

    name: str
    model_name: str

    @property
    def revision(self) -> str | None: ...
    @property
    def max_rows(self) -> int: ...
    def submit(self, prompt: Any, /, **options: Any) -> Any: ...
    def check(self, prompt: Any, /, **options: Any) -> int: ...
    def check_options(self, **options: Any) -> ParsedOptions: ...


@dataclass(slots=True)
class Row:
    """One row of the data. `problem` is a sentence when it cannot be submitted; `prompt` is None then or not."""

    position: int
    prompt: Any
    own: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(slots=True, eq=False)
class Job:
    """One sample of one row, ready to be submitted: `key` is (row, setting, sample)."""

    key: tuple[int, str, int]
    gateway: Answering
    prompt: Any
    options: dict[str, Any]
    problem: str | None = None
    handle: Handle | None = None


@dataclass(slots=True)
class Table:
    """A user's data as rows under an index."""

    rows: list[Row]
    index: Any


def read_data(data: Any, prompt: str | None, options: Mapping[str, Any]) -> Table:
    """Rows of a list, a Series or a DataFrame, each with the options that a Series gives it.

    Raises:
        TypeError, ValueError: the data, the template or a Series does not fit; it is named.
    """
    import pandas as pd

    if isinstance(data, pd.DataFrame):
        table = _from_frame(data, prompt, options)
    elif isinstance(data, pd.Series):
        table = _from_items(data.tolist(), data.index, prompt, _name_of(data))
    else:
        table = _from_list(data, prompt, options)
    for name, value in options.items():
        if isinstance(value, pd.Series):
            for row, own in zip(table.rows, _aligned(name, value, table.index), strict=True):
                if not _is_missing(own):
                    row.own[name] = own
    return table


def _from_list(data: Any, prompt: str | None, options: Mapping[str, Any]) -> Table:
    import pandas as pd

    if isinstance(data, str | bytes | Mapping) or not hasattr(data, "__iter__"):
        hint = ONE_PROMPT if isinstance(data, str) else "a list of prompts, a Series, or a DataFrame with prompt="
        raise TypeError(f"data: {hint}" if isinstance(data, str) else f"data: {hint}, not {type(data).__name__}")
    items = list(data)
    if items and all(isinstance(item, Mapping) for item in items):
        if prompt is not None:
            return _from_frame(pd.DataFrame(items), prompt, options)
        if all({"role", "content"} <= set(item) for item in items):
            raise TypeError(f"data: a list of messages; {ONE_PROMPT} (put the messages into a list)")
    return _from_items(items, pd.RangeIndex(len(items)), prompt, None)


def _from_items(items: list[Any], index: Any, prompt: str | None, name: str | None) -> Table:
    """A list or Series; its template's field is `{}`, or the Series' name."""
    if prompt is None:
        return Table([_checked(Row(i, item)) for i, item in enumerate(items)], index)
    names = [""] if name is None else ["", name]
    template = parse_template(prompt, names, what="item")
    _refuse_constant(template, prompt, names, {})
    rows = [_rendered(i, template, dict.fromkeys(names, item), "the item") for i, item in enumerate(items)]
    return Table(rows, index)


def _name_of(series: Any) -> str | None:
    return series.name if isinstance(series.name, str) and series.name else None


def _from_frame(data: Any, prompt: str | None, options: Mapping[str, Any]) -> Table:
    if prompt is None:
        first = data.columns[0] if len(data.columns) else "column"
        listed = ", ".join(map(str, data.columns)) or "none"
        raise TypeError(
            f'a DataFrame needs prompt=, a template over its columns such as "{{{first}}}" (there are: {listed})'
        )
    columns = list(data.columns)
    template = parse_template(prompt, columns)
    _refuse_constant(template, prompt, columns, options)
    for name in template.columns:
        if columns.count(name) > 1:
            raise ValueError(f"prompt: {columns.count(name)} columns are called {name!r}; rename them first")
    values = {name: data[name].tolist() for name in template.columns}
    rows = [
        _rendered(i, template, {name: values[name][i] for name in template.columns}, "column") for i in range(len(data))
    ]
    return Table(rows, data.index)


def _refuse_constant(template: Template, prompt: str, columns: Sequence[Any], options: Mapping[str, Any]) -> None:
    """A template without a field asks the same of every row, which nobody means unless the options differ."""
    import pandas as pd

    if template.columns or any(isinstance(value, pd.Series) for value in options.values()):
        return
    close = difflib.get_close_matches(prompt, [str(c) for c in columns if c != ""], n=1)
    field_text = "{" + (close[0] if close else str(columns[0]) if columns else "column") + "}"
    raise ValueError(
        f"prompt={prompt!r} names no column, so that every row would ask the same: did you mean {field_text}?"
    )


def _rendered(position: int, template: Template, values: Mapping[Any, Any], what: str) -> Row:
    label = "the item" if what == "the item" else None
    for name, value in values.items():
        if _is_missing(value):
            return Row(position, None, problem=f"{label or f'column {name!r}'} is missing ({value!r})")
    used = [value for name, value in values.items() if name in template.columns]
    if used and all(isinstance(value, str) and not value.strip() for value in used):
        names = label or " and ".join(f"column {name!r}" for name in template.columns)
        return Row(position, None, problem=f"{names} is empty")
    try:
        return _checked(Row(position, template.render(values)))
    except ValueError as error:
        return Row(position, None, problem=str(error))


def _checked(row: Row) -> Row:
    if _is_missing(row.prompt):
        row.problem, row.prompt = f"the prompt is missing ({row.prompt!r})", None
    elif isinstance(row.prompt, str) and not row.prompt.strip():
        row.problem = "the prompt is empty"
    return row


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def _aligned(name: str, series: Any, index: Any) -> list[Any]:
    """One value a row, by the index's labels; a list of rows has positions for labels.

    Raises:
        ValueError: the labels are others, or some occur twice.
    """
    import pandas as pd

    if not series.index.equals(index):
        if not series.index.is_unique or not index.isin(series.index).all():
            raise ValueError(
                f"{name}: this Series has {len(series)} values under other labels than the {len(index)} rows have;"
                " give it the data's index (pd.Series(values, index=df.index))"
            )
        series = series.reindex(index)
    values: list[Any] = series.tolist()
    if pd.api.types.is_float_dtype(series.dtype) and series.isna().any():
        # pandas made floats of whole numbers only because some are missing.
        values = [int(v) if not pd.isna(v) and float(v).is_integer() else v for v in values]
    return values


# ---------------------------------------------------------------- rows to jobs


def check_rows(gateway: Answering, rows: Sequence[Row], options: Mapping[str, Any]) -> None:
    """Note at each row what `submit` would refuse it for: too long, empty, of no known kind, an option out of range."""
    for row in rows:
        if row.problem is None:
            row.problem = problem_with(gateway, row.prompt, {**options, **row.own})


def options_of_rows(gateway: Answering, rows: Sequence[Row], options: Mapping[str, Any]) -> list[ParsedOptions]:
    """The options of each row that has a shape of its own and can be run."""
    return [
        gateway.check_options(**{**options, **row.own})
        for row in rows
        if row.problem is None and any(str(kind) in row.own for kind in GrammarKind)
    ]


def problem_with(gateway: Answering, prompt: Any, options: Mapping[str, Any]) -> str | None:
    """What `submit` would refuse this request for, in one sentence; None if it would take it."""
    try:
        gateway.check(prompt, **options)
    except (TypeError, ValueError, OverContext, OverBudget, UnsupportedRequest) as error:
        return str(error)
    return None


def common_options(options: Mapping[str, Any], system: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(values for all rows, Series with a value a row) of a call's options.

    Raises:
        TypeError, ValueError, UnsupportedRequest: a name that is no option.
    """
    import pandas as pd

    given = {**options, **({} if system is None else {"system": system})}
    refuse_unknown(given)
    series = {name: value for name, value in given.items() if isinstance(value, pd.Series)}
    return {name: value for name, value in given.items() if name not in series}, series


def samples_of(n: Any) -> int:
    """How many samples of each row, checked."""
    return as_int("n", n, 1, 10_000, "a whole number from 1 to 10000")


def run_seed(given: Any, earlier: Mapping[str, Any] | None) -> int:
    """The seed that all rows' seeds derive from: the user's, the earlier run's, or a drawn one."""
    if given is not None:
        return int(given)
    return draw_seed() if earlier is None else int(earlier["seed"])


def seed_of(row: Row, run_seed: int, sample: int) -> int:
    """The seed of one sample: derived from the run's, or counted on from the one that the user gave this row."""
    own = row.own.get("seed")
    if own is None:
        return row_seed(run_seed, row.position, sample)
    return int((int(own) + sample) % 2**64) if hasattr(own, "__index__") else 0


def describe_problems(problems: Mapping[int, str], index: Any, *, most: int = 10) -> str:
    """What is wrong with which rows, for people: named by position, and by the data's own label where that differs."""
    lines = [f"{len(problems)} of {len(index)} rows cannot be run:"]
    for position, text in list(problems.items())[:most]:
        label = index[position]
        named = "" if label == position else f" ({getattr(label, 'item', lambda label=label: label)()!r})"
        lines.append(f"  row {position}{named}: {text}")
    if len(problems) > most:
        lines.append(f"  and {len(problems) - most} more")
    return "\n".join(lines)

"""Order of admission: which waiting row goes first when there is room.

A policy only orders; the scheduler bounds it (no row is passed over more than a fixed number of
times) and checks budgets. Three are built in and pure. A user's own is a function
`policy(waiting, running) -> row ids (or RowViews), best first`; the engine thread calls it and hands its answer
in with the turn, so that a replay needs no user code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_notebook.core.rows import Row


class BuiltIn(StrEnum):
    """Policies that the core knows by name.

    priority: the highest priority first, first come first served within it.
    shortest: the fewest tokens to compute (prompt and answer limit) first.
    static: nobody joins a running batch; the next batch starts when the last row of this one is
        over. What serving did before continuous batching: a baseline to teach with.
    """

    PRIORITY = "priority"
    SHORTEST = "shortest"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class RowView:
    """What a policy may know of a row. Counts are tokens; `waited_s` is seconds in the queue."""

    id: int
    priority: int
    prompt_tokens: int
    max_tokens: int
    generated_tokens: int
    waited_s: float
    passed_over: int
    status: str


def view_of(row: Row, now_ns: int) -> RowView:
    """A row as a policy sees it."""
    return RowView(
        id=row.id,
        priority=row.request.priority,
        prompt_tokens=row.prompt_tokens,
        max_tokens=row.request.shape.sampling.max_tokens,
        generated_tokens=row.generated_tokens,
        waited_s=max(0, now_ns - row.queued_ns) / 1e9,
        passed_over=row.passed_over,
        status=str(row.status),
    )


def first_come(row: Row) -> tuple[int, int]:
    """Sort key of the default order; `static` has the same (it differs in when, not in whom)."""
    return -row.request.priority, row.seq


def least_work(row: Row) -> tuple[int, int]:
    """Sort key of `shortest`."""
    return row.prompt_tokens + row.request.shape.sampling.max_tokens, row.seq


def id_of(named: object) -> int | None:
    """The id that a policy named: a whole number of any kind (NumPy's too), or a RowView's; None for what is no id."""
    if isinstance(named, RowView):
        return named.id
    try:
        return index(named)  # type: ignore[arg-type]
    except TypeError:
        return None

"""What is known of one token of a row beside its text, for the stream view; the dashboard's words for the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.recorded_rows import RecordedRow
from mlx_notebook.notebook.run_actions import act, token_of_trace

if TYPE_CHECKING:
    from mlx_notebook.notebook.row_source import RowSource


def token_facts(row: RowSource, n: int) -> dict[str, Any] | None:
    """The facts of a row's n-th token (from 1) as a page gets them; None where nobody knows any more."""
    if isinstance(row, RecordedRow):
        try:
            return token_of_trace(row.trace, row.id, n)
        except LookupError:
            return None
    if not isinstance(row, Handle):
        return None
    for gateway in registry.gateways().values():
        if row.belongs_to(gateway.engine):
            try:
                found = act(gateway, {"do": "token", "row": row.id, "n": n})
            except LookupError:
                return None
            return found if isinstance(found, dict) else None
    return None

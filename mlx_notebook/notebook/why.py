"""`%mlxwhy`: where a request's time went, as a table; the same words as the views and `handle.explain()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.notebook.table_view import tabulate

if TYPE_CHECKING:
    from mlx_notebook.gateway.handle import Handle


def why_bundle(handle: Handle) -> dict[str, str]:
    """The reasons of a request as `text/plain` and escaped `text/html`, with what each took in milliseconds."""
    reasons = handle.explain()
    lines = [(f"{one.ms:,.1f}" if one.ms else "", one.code, one.text) for one in reasons]
    return tabulate(("ms", "what", f"request {handle.id}"), lines, numbers={"ms"})

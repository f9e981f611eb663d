"""Makes the views that `dashboard()`, `timeline()` and `stream()` of a gateway or a trace return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import as_int
from mlx_notebook.gateway.handle import Handle
from mlx_notebook.notebook.run_wire import GatewayFeed, TraceFeed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.notebook.dashboard_widget import Dashboard
    from mlx_notebook.notebook.stream_widget import StreamView
    from mlx_notebook.notebook.timeline_widget import Timeline
    from mlx_notebook.trace.trace import Trace


def dashboard_of(gateway: Gateway) -> Dashboard:
    """A dashboard of a gateway."""
    from mlx_notebook.notebook.dashboard_widget import Dashboard

    return Dashboard(GatewayFeed(gateway, Dashboard.wants))


def timeline_of(gateway: Gateway, rows: Any = None, last: int | None = None) -> Timeline:
    """A timeline of a gateway's rows: all, those given, or the last ones.

    Raises:
        TypeError, ValueError: `rows` are no handles or numbers, or `last` is no whole number from 1.
    """
    from mlx_notebook.notebook.timeline_widget import Timeline

    wanted = None if rows is None else ids_of(rows)
    if last is not None:
        as_int("last", last, 1, None, "a whole number from 1")
    view = Timeline(GatewayFeed(gateway, Timeline.wants, last=last, rows=wanted))
    if wanted is not None and len(wanted) <= 2:
        view.selected = list(wanted)
    return view


def timeline_of_trace(trace: Trace) -> Timeline:
    """A timeline of a loaded trace; needs neither model nor gateway."""
    from mlx_notebook.notebook.timeline_widget import Timeline

    return Timeline(TraceFeed(trace, Timeline.wants))


def dashboard_of_trace(trace: Trace) -> Dashboard:
    """What the batch did at the end of a loaded trace; nothing can be acted on."""
    from mlx_notebook.notebook.dashboard_widget import Dashboard

    return Dashboard(TraceFeed(trace, Dashboard.wants))


def stream_of(handles: Any) -> StreamView:
    """A live view of handles.

    Raises:
        TypeError, ValueError: something else was given, or none.
    """
    from mlx_notebook.notebook.stream_widget import StreamView

    chosen = [handles] if isinstance(handles, Handle) else list(handles)
    for one in chosen:
        if not isinstance(one, Handle):
            raise TypeError(f"stream() takes handles, as submit() returns them, not {type(one).__name__}")
    if not chosen:
        raise ValueError("stream() got no handle to show")
    return StreamView(
        chosen, title=chosen[0].model, keep=True, prompts=[one.title or one.prompt_text for one in chosen]
    )


def stream_of_trace(trace: Trace, ids: Sequence[int]) -> StreamView:
    """The texts of these requests of a trace, or of all whose text it has.

    Raises:
        LookupError, ValueError: a request or its text is not in the trace.
    """
    from mlx_notebook.notebook.recorded_rows import RecordedRow
    from mlx_notebook.notebook.stream_widget import StreamView

    chosen = ids or [row_id for row_id in trace.recording.requests if row_id in trace.about or not trace.with_text]
    if not chosen:
        raise LookupError("the trace has no request whose text it holds")
    return StreamView([RecordedRow(trace, row_id) for row_id in chosen], title=trace.title, keep=True)


def ids_of(rows: Any) -> tuple[int, ...]:
    """Row numbers of handles or numbers, one or many."""
    many = [rows] if isinstance(rows, int | Handle) else list(rows)
    return tuple(_id(one) for one in many)


def _id(one: object) -> int:
    if isinstance(one, Handle):
        return one.id
    if isinstance(one, int) and not isinstance(one, bool):
        return one
    raise TypeError(f"rows are handles or their numbers, not {type(one).__name__}")

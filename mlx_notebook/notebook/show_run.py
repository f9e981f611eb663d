"""What `%mlxdash` and `%mlxtrace` do once their line is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.find_gateway import meant
from mlx_notebook.notebook.printing import say
from mlx_notebook.notebook.show import kept_handle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle

TRACE = "%mlxtrace"


def open_gateway(magic: str, name: object = None) -> Gateway:
    """That gateway, the one of that name, or the current one.

    Raises:
        UsageError: there is none.
    """
    if name is not None:
        return meant(magic, name)
    current = registry.current()
    if current is None:
        raise UsageError(f"{magic}: no model is loaded")
    return current


def show_trace(word: object, options: Mapping[str, Any]) -> None:
    """Show the timeline of one request's gateway or of the current one; with `save`, write its log to a file.

    Raises:
        UsageError: an option has no meaning here, or there is no such request or gateway.
    """
    handle = None if word is None else kept_handle(TRACE, word)
    gateway = open_gateway(TRACE) if handle is None else _gateway_of(handle)
    last, file = options.get("last"), options.get("save")
    if handle is not None and last is not None:
        raise UsageError(f"{TRACE} takes the number of a request or --last, not both")
    if options.get("text") and file is None:
        raise UsageError(f"{TRACE}: --text goes with --save")
    if last is not None and last < 1:
        raise UsageError(f"{TRACE}: --last takes a whole number from 1, not {last}")
    if file is not None:
        # Why one request waited is in the records of the others: a part of the log would explain nothing.
        chosen = f"--last {last}" if last is not None else "" if handle is None else f"the request {handle.id}"
        if chosen:
            raise UsageError(f"{TRACE}: --save writes the whole log, so leave {chosen} out")
        path = gateway.save_trace(file, text=bool(options.get("text")))
        say(f"Wrote {path}: it opens at ui.perfetto.dev, and with mlx_notebook.load_trace.")
        return
    view = gateway.timeline(last=last)
    if handle is not None:
        view.selected = [handle.id]
    view.display()


def _gateway_of(handle: Handle) -> Gateway:
    for gateway in registry.gateways().values():
        if handle.belongs_to(gateway.engine):
            return gateway
    raise UsageError(f"{TRACE}: the gateway of request {handle.id} is closed, and its log with it")

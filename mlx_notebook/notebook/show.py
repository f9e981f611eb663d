"""Shows a kept handle again: `%mlxshow` and `Handle.show()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.blocking import follow, interruptible, print_text
from mlx_notebook.notebook.generate import publish
from mlx_notebook.notebook.provenance import provenance
from mlx_notebook.notebook.settings import Mode, mode_of
from mlx_notebook.notebook.static_html import frozen_bundle

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.notebook.settings import MlxNotebook


def kept_handle(magic: str, word: object) -> Handle:
    """The handle that this is, or that has this number.

    Raises:
        UsageError: neither, or none of those that are kept.
    """
    if isinstance(word, Handle):
        return word
    word = str(word)
    if not word.isdecimal():
        raise UsageError(f"{magic} takes the number of a request, not {word!r}")
    handle = registry.handle(int(word))
    if handle is not None:
        return handle
    ids = [kept.id for kept in registry.handles()]
    known = f"kept are {ids[0]} to {ids[-1]}" if ids else "nothing was submitted yet"
    raise UsageError(f"{magic}: there is no request {word}; {known}")


def show_handle(shell: InteractiveShell, settings: MlxNotebook, handle: Handle) -> None:
    """Show a handle as this execution can: live while it runs in a page, else its text when it is over."""
    mode = mode_of(shell, settings)
    if mode is Mode.WIDGET and not handle.done():
        from mlx_notebook.notebook.stream_widget import StreamView

        StreamView([handle], title=handle.model, metadata=provenance([handle])).display()
        return
    with interruptible():
        if mode is Mode.PRINT and not handle.done():
            print_text(handle)
            return
        follow(handle)
    data, about = frozen_bundle([handle], title=handle.model, metadata=provenance([handle]))
    publish(data, about, mode)

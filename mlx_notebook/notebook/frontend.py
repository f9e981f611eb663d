"""Whether a page that can show widgets listens to this kernel, and how it reaches us while a cell runs.

A page answers by saying hello: the widget's script does so as soon as the page has made its model.
Nobody waits for it on the way to showing a cell: a live view is displayed at once, and
when no hello came within HELLO_S the publisher replaces it by text. The answer is kept for the
kernel's life; "no" becomes "yes" whenever a hello comes after all (the page may have been busy,
or a kernel without a page got one).
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal

from mlx_notebook.bell import Latch

if TYPE_CHECKING:
    import anywidget

HELLO_S = float(os.environ.get("MLX_NOTEBOOK_HELLO_S", "2"))

Answer = Literal["yes", "no", "unknown"]


class _Page:
    """What is known of the page. Any thread may ask or tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: Answer = "unknown"
        self.heard = Latch()

    @property
    def answer(self) -> Answer:
        with self._lock:
            return self._answer

    def said_hello(self) -> None:
        with self._lock:
            self._answer = "yes"
        self.heard.set()

    def kept_silent(self) -> None:
        with self._lock:
            if self._answer == "unknown":
                self._answer = "no"


_page = _Page()


def state() -> Answer:
    """What is known now, without asking: "yes", "no" (nobody answered), or "unknown" (nobody was asked)."""
    return _page.answer


def said_hello() -> None:
    """A page answered."""
    _page.said_hello()


def kept_silent() -> None:
    """A page that was asked HELLO_S ago has not answered. A hello heard before outweighs it."""
    _page.kept_silent()


def forget() -> None:
    """Ask anew at the next view."""
    global _page
    _page = _Page()


def page_answers(timeout: float = HELLO_S) -> bool:
    """Whether a page with widgets answers; asks and waits up to `timeout` seconds unless the answer is known to be yes.

    Where the front end brings messages in only between cells (no subshells: VS Code, Colab,
    ipykernel 6), the answer to a question asked inside a cell comes after it: this says
    False then, and `state()` says yes soon after.
    """
    if _page.answer == "yes":
        return True
    if not kernel_has_comms():
        return False
    from mlx_notebook.notebook.stream_widget import StreamWidget

    page, widget = _page, StreamWidget(title="", rows=[])
    try:
        return page.heard.wait(timeout)
    finally:
        if page.answer == "yes":
            close_widget(widget)
        else:
            # Left open: a hello that comes later still tells us.
            page.kept_silent()


def kernel_has_comms() -> bool:
    """Whether this process is a kernel that talks to front ends (not plain Python, not terminal IPython)."""
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def let_comms_use_subshell(widget: anywidget.AnyWidget) -> None:
    """Let the page's messages reach `widget` while a cell runs, on ipykernel 7.4.0 too.

    That version sends each message of the page to the shell that last sent on the same comm,
    which is the main one when a cell made the widget, and so a blocking cell stops the Cancel
    button. This shadows that one private method, on this comm alone, and gives back what 7.3
    does: the front end chooses. Where the method is absent (other versions, no kernel) it does nothing.
    """
    comm: Any = widget.comm
    if callable(getattr(comm, "_reply_subshell_for", None)):
        comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001 - the guarded exception described above


def close_widget(widget: anywidget.AnyWidget) -> None:
    """Close a widget and the layout that came with it, so that neither is saved with the notebook."""
    layout = widget.layout
    widget.close()
    layout.close()

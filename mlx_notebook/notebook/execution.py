"""Which run of which cell the calling thread belongs to.

Front ends that can run a cell again name it (`cellId` in the request's metadata). Where none does, each
run counts as a cell of its own: two cells may hold the same text, and taking one for the other would
cancel rows that nobody asked to cancel.
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.hooks import Execution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

_runs: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)
_apart: ContextVar[bool] = ContextVar("apart", default=False)


def parent_message(shell: InteractiveShell) -> dict[str, Any]:
    """The message that asked the kernel for this execution; empty where there is no kernel."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return {}
    message = kernel.get_parent("shell")
    return message if isinstance(message, dict) else {}


def nobody_reads() -> bool:
    """Whether a tool without a reader runs this cell (nbconvert, papermill, nbval): it refuses to ask one for input."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell is not None and (parent_message(shell).get("content") or {}).get("allow_stdin") is False


@contextmanager
def apart() -> Iterator[None]:
    """Within, what is made belongs to this run alone: running the cell again does not replace it."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def current(shell: InteractiveShell) -> Execution:
    """The running execution. Never waits, never raises; callable from any thread."""
    message = parent_message(shell)
    run = str((message.get("header") or {}).get("msg_id") or "") or _run_in_shell(shell)
    cell = None if _apart.get() else (message.get("metadata") or {}).get("cellId") or _cell_in_shell(shell)
    return Execution(cell=str(cell or f"run {run}"), run=run)


def raw_cell(shell: InteractiveShell) -> str:
    """The source of the running cell as it was typed; "" outside one."""
    info = _info(shell)
    return str(info.raw_cell or "") if info is not None else ""


def _info(shell: InteractiveShell) -> Any:
    result = shell.displayhook.exec_result
    return None if result is None else result.info


def _cell_in_shell(shell: InteractiveShell) -> object:
    return getattr(_info(shell), "cell_id", None)


def _run_in_shell(shell: InteractiveShell) -> str:
    """A name that lasts as long as the shell's present `run_cell`."""
    result = shell.displayhook.exec_result
    if result is None:
        return f"call at {shell.execution_count}"
    if result not in _runs:
        _runs[result] = f"run {next(_numbers)}"
    return _runs[result]

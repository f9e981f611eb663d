"""Waiting in the caller's thread: interruptible everywhere, and never for oneself.

An interrupt cancels what the interrupted execution (one run of one cell) submitted and nothing
else; outside a notebook, where there are no executions, it cancels the request that was waited for.
It also makes paused gateways go on, so that pausing can hang nobody.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from mlx_notebook.errors import WouldDeadlock
from mlx_notebook.gateway.hooks import current_execution, hooks
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mlx_notebook.gateway.handle import Handle

SLICE_S = 0.5
"""An untimed lock wait cannot be interrupted on Windows; slices cost nothing elsewhere."""

engine_threads: set[int] = set()
"""Identities of live engine threads; each adds and removes its own."""

if hasattr(os, "register_at_fork"):  # a child's threads get the numbers of the parent's
    os.register_at_fork(after_in_child=engine_threads.clear)


def sleep_until(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Call `wait(seconds)` in slices until it says True; False when `timeout` seconds have passed."""
    end = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = SLICE_S if end is None else min(SLICE_S, end - time.monotonic())
            if wait(max(0.0, left)):
                return True
            if end is not None and time.monotonic() >= end:
                return False
    except KeyboardInterrupt:
        registry.resume_all()
        raise


def on_engine_thread() -> bool:
    """Whether this is an engine's thread: in a callback or processor of a row, or in `run_exclusive`."""
    return threading.get_ident() in engine_threads


def refuse_to_block(what: str) -> None:
    """Raise WouldDeadlock where `what` would wait for the thread that it is called on."""
    if on_engine_thread():
        raise WouldDeadlock(
            f"{what} on the engine thread (in a callback or processor) would wait for itself;"
            " hand the work to another thread."
        )
    refuse_as_holder(what)


def refuse_as_holder(what: str) -> None:
    """Raise WouldDeadlock where `what` waits for the device, and this very thread holds it."""
    if device_lease().held_by_thread(threading.get_ident()):
        raise WouldDeadlock(
            f"{what} while this thread holds the device lease would wait for itself;"
            " leave the `with ...lease()` block first."
        )


def refuse_where_paused(handles: Iterable[Handle]) -> None:
    """Raise WouldDeadlock where none of these can end, since this thread paused all of their gateways."""
    waited_for = [handle for handle in handles if not handle.done()]
    if waited_for and all(handle.is_held_by_me for handle in waited_for):
        waited_for[0].refuse_to_wait()


def interrupted(*waited_for: Handle) -> None:
    """An interrupt came while waiting: cancel this execution's rows, tell the host what still runs."""
    registry.resume_all()
    execution = current_execution()
    live = registry.live_handles()
    mine = (
        [h for h in waited_for if not h.done()]
        if execution is None
        else [handle for handle in live if handle.execution == execution]
    )
    for handle in mine:
        handle.cancel()
    if hooks.interrupted is not None:
        hooks.interrupted(mine, [handle for handle in live if handle not in mine])

"""What the process has: gateways by name, the current one, recent handles; and how all of it ends.

Gateways are held weakly, so that a forgotten one closes itself; `hold` keeps one on the host's
behalf (`%mlxload` binds no variable). At exit every engine is stopped, then joined; in a forked
child nothing of the parent's is usable, and everything unfinished says so at once.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from mlx_notebook.errors import GatewayDead
from mlx_notebook.gateway import lease
from mlx_notebook.gateway.standing import Forks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.hooks import Execution
    from mlx_notebook.gateway.thread import Engine

KEPT_HANDLES = 500
"""How many finished handles stay reachable by number."""

LOOKS = 4
"""How many kept handles are looked at, to let go of finished ones, when one more is kept."""

JOIN_AT_EXIT_S = 20.0
"""How long the exit waits for an engine that is inside one long native call."""

request_ids = itertools.count(1)

epochs = itertools.count(1)
"""One for each load of a model in this process: a placement belongs to the load that it was made under."""


def short_name(model_name: str) -> str:
    """A name to call it by: the last part of a path or id, without an ending."""
    last = model_name.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1]
    return last.removesuffix(".gguf") or "model"


class Registry:
    """Gateways and handles of this process. The lock guards the tables; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer of the user's may run inside any allocation
        self._gateways: weakref.WeakValueDictionary[str, Gateway] = weakref.WeakValueDictionary()
        self._held: dict[str, Gateway] = {}
        self._current: weakref.ref[Gateway] | None = None
        self._handles: dict[int, Handle] = {}
        self._patrol: deque[int] = deque()  # the numbers of the kept handles, the next to look at first
        self._let_go_to = 0
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self.forked_from_mlx = False

    # ------------------------------------------------------------ gateways

    def free_name(self, wanted: str) -> str:
        """`wanted`, or with the first number that makes it unused."""
        with self._lock:
            names = (wanted if n == 1 else f"{wanted}-{n}" for n in itertools.count(1))
            return next(name for name in names if name not in self._gateways)

    def add(self, gateway: Gateway) -> None:
        """Register under its name and make it the current one."""
        with self._lock:
            self._gateways[gateway.name] = gateway
            self._current = weakref.ref(gateway)

    def remove(self, gateway: Gateway) -> None:
        """Take a closed gateway out; another of the same name stays."""
        with self._lock:
            if self._gateways.get(gateway.name) is gateway:
                del self._gateways[gateway.name]
            if self._held.get(gateway.name) is gateway:
                del self._held[gateway.name]

    def predecessors(self, execution: Execution | None) -> list[Gateway]:
        """The open gateways that earlier runs of this cell made."""
        if execution is None:
            return []
        return [g for g in self.gateways().values() if g.execution is not None and execution.follows(g.execution)]

    def close_predecessors(self, execution: Execution | None) -> None:
        """A cell that is run again replaces the gateways of its earlier run: two models at once may not fit."""
        for gateway in self.predecessors(execution):
            gateway.close()

    def hold(self, gateway: Gateway) -> None:
        """Keep a gateway alive until it is closed, though no variable names it."""
        with self._lock:
            self._held[gateway.name] = gateway

    def make_current(self, gateway: Gateway) -> None:
        """Let `mn.submit` and the magics use this one from now on."""
        with self._lock:
            self._current = weakref.ref(gateway)

    def current(self) -> Gateway | None:
        """The gateway made or chosen last that is still open; None if there is none."""
        with self._lock:
            newest = self._current() if self._current is not None else None
            others = list(self._gateways.values())
        if newest is not None and not newest.closed:
            return newest
        return next((gateway for gateway in reversed(others) if not gateway.closed), None)

    def gateways(self) -> dict[str, Gateway]:
        """The open gateways by name, oldest first."""
        with self._lock:
            return dict(self._gateways)

    # ------------------------------------------------------------ handles

    def keep(self, handle: Handle) -> None:
        """Make a handle reachable by its number; the oldest finished ones are let go in time."""
        with self._lock:
            self._handles[handle.id] = handle
            self._patrol.append(handle.id)
            # A few looks each time, however many are kept: thousands may be open, and each submit comes through here.
            for _ in range(LOOKS):
                if len(self._handles) <= KEPT_HANDLES:
                    break
                self._look_at_next()

    def _look_at_next(self) -> None:
        self._patrol.rotate(-1)
        number = self._patrol[-1]
        kept = self._handles.get(number)
        if kept is None or kept.done():
            self._let_go_to = max(self._let_go_to, number)
            self._handles.pop(number, None)
            self._patrol.pop()  # the last to go: an interrupt before it leaves a number to look at, never a handle

    def handle(self, number: int) -> Handle | None:
        """The kept handle of this number."""
        with self._lock:
            return self._handles.get(number)

    def let_go(self, number: int) -> bool:
        """Whether a handle of this number was kept once and is no more."""
        with self._lock:
            return number <= self._let_go_to and number not in self._handles

    def last_handle(self) -> Handle | None:
        """The handle submitted last."""
        with self._lock:
            return next(reversed(self._handles.values()), None)

    def live_handles(self) -> list[Handle]:
        """Handles that are not over, oldest first."""
        with self._lock:
            handles = list(self._handles.values())
        return [handle for handle in handles if not handle.done()]

    def handles(self) -> Iterator[Handle]:
        """All kept handles, oldest first."""
        with self._lock:
            handles = list(self._handles.values())
        return iter(handles)

    # ------------------------------------------------------------ the end

    def add_engine(self, engine: Engine) -> None:
        """Know of an engine, as long as anybody else does."""
        with self._lock:
            self._engines.add(engine)

    def engines(self) -> list[Engine]:
        """The engines of this process, those of closed gateways too."""
        with self._lock:
            return [engine for engine in self._engines if engine.here]

    def stop_all(self) -> None:
        """Stop every engine, then wait for each: handles settle at once, threads clear their streams themselves."""
        engines = self.engines()
        for engine in engines:
            engine.stop()
        for engine in engines:
            engine.join(JOIN_AT_EXIT_S)

    def resume_all(self) -> None:
        """Paused gateways go on: whoever waited for one of them was interrupted."""
        with self._lock:
            engines = [engine for engine in self._engines if engine.alive]
        for engine in engines:
            engine.pausing.resume_after_interrupt()

    def orphan_all(self) -> None:
        """In a forked child: the locks may be held by threads that are not here, so make new ones."""
        forks.in_child()
        lease.forget_after_fork()
        self._lock = threading.RLock()
        # MLX's own threads stayed behind: an evaluation here would wait for them for ever.
        self.forked_from_mlx = self.forked_from_mlx or "mlx.core" in sys.modules
        for engine in list(self._engines):
            engine.orphan()
        for handle in self._handles.values():
            handle.orphan()

    def refuse_after_fork(self) -> None:
        """Raise GatewayDead where MLX cannot compute because it was imported before this process was forked."""
        if self.forked_from_mlx:
            raise GatewayDead(
                "this process was forked from one that had imported MLX, whose threads stayed there: computing here"
                ' would wait for ever. Start children with multiprocessing\'s "spawn" method.'
            )


registry = Registry()
forks = Forks(registry.engines)
atexit.register(registry.stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=registry.orphan_all)

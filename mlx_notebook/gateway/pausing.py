"""Pausing an engine by hand, stepping it, slowing it down; and that nothing can hang because of it.

A paused engine computes nothing, but cancels, closes, deadlines and other gateways' turns at the
device go on. It goes on itself when told to, when the last view that watches it closes, and when a
wait of ours is interrupted. Whoever paused it and then waits for a row on the same thread, with no
view open that could resume it, is told so instead of waiting for ever.

Threads: any thread may call anything. Whatever waits here waits interruptibly, and never on the engine thread.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.errors import WouldDeadlock
from mlx_notebook.gateway import waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.bell import Bell
    from mlx_notebook.gateway.thread import Engine


class Pausing:
    """The reins of one engine, as other threads hold them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.proxy(engine)
        self._by: int | None = None
        self._watchers: weakref.WeakSet[object] = weakref.WeakSet()
        self._lock = threading.RLock()

    @property
    def paused(self) -> bool:
        """Whether the engine was told to pause (it may still be at its last step)."""
        loop = self._engine.loop
        return loop is not None and loop.scheduler.reins.paused

    @property
    def stepping(self) -> int:
        """Turns that it will compute before it pauses again."""
        loop = self._engine.loop
        return 0 if loop is None else loop.scheduler.reins.steps

    @property
    def delay_s(self) -> float:
        """Seconds of rest after each step."""
        loop = self._engine.loop
        return 0.0 if loop is None else loop.scheduler.reins.delay_ns / 1e9

    def pause(self, *, wait: bool = True) -> None:
        """Compute nothing more after the step that is under way; with `wait`, return when that is done."""
        self._by = threading.get_ident() if wait else None
        self._ask(ev.PauseAsked, wait=wait)

    def resume(self, *, wait: bool = True) -> None:
        """Go on."""
        self._by = None
        self._ask(ev.ResumeAsked, wait=wait)

    def step(self, steps: int = 1, *, wait: bool = True) -> None:
        """Compute so many turns, then pause; with `wait`, return when they are done or nothing is left to compute.

        Raises:
            WouldDeadlock: `wait`, and this thread holds the device that the turns need.
        """
        if wait:
            waiting.refuse_as_holder("step()")
        self._by = threading.get_ident() if wait else self._by
        self._ask(lambda at: ev.StepAsked(at, steps), wait=wait)
        loop = self._engine.loop
        if wait and self._may_wait and loop is not None:
            self._until(lambda: loop.steps_left == 0 or not self.paused or not self._engine.busy, loop.rested)

    def pace(self, seconds: float, *, wait: bool = True) -> None:
        """Slow motion: rest so long after each step; 0 for full speed."""
        self._ask(lambda at: ev.PaceAsked(at, int(seconds * 1e9)), wait=wait)

    # ------------------------------------------------------------ nothing hangs

    def watch(self, view: object) -> None:
        """A view is open that can resume."""
        with self._lock:
            self._watchers.add(view)

    def unwatch(self, view: object) -> None:
        """A view is closed; the last one's end resumes."""
        with self._lock:
            was_there = view in self._watchers
            self._watchers.discard(view)
            last = was_there and not self._watchers
        if last and self.paused:
            self.resume(wait=False)

    def resume_after_interrupt(self) -> None:
        """Somebody who waited was interrupted."""
        if self.paused:
            self.resume(wait=False)

    @property
    def is_held_by_me(self) -> bool:
        """Whether this thread paused the engine, and nobody else could make it go on."""
        return self.paused and not self.stepping and self._by == threading.get_ident() and not len(self._watchers)

    def refuse_to_wait(self, what: str) -> None:
        """Raise WouldDeadlock where `is_held_by_me`."""
        if self.is_held_by_me:
            raise WouldDeadlock(
                f"{what}: this thread paused gateway {self._engine.name!r}, so nothing would come."
                " Call its resume() or step() first."
            )

    # ------------------------------------------------------------ asking

    @property
    def _may_wait(self) -> bool:
        return threading.get_ident() not in waiting.engine_threads

    def _ask(self, event: Callable[[int], ev.Event], *, wait: bool) -> None:
        self._engine.check()
        loop = self._engine.loop
        if loop is None:
            return
        heard: list[int] = []

        def work(at: int) -> None:
            loop.feed(event(at))
            loop.steps_left = loop.scheduler.reins.steps
            heard.append(at)
            loop.rested.ring()

        self._engine.call_soon(work)
        if wait and self._may_wait:
            self._until(lambda: bool(heard), loop.rested)

    def _until(self, true: Callable[[], bool], bell: Bell) -> None:
        """Wait till it holds (the bell rings when it may) or the engine is gone."""
        engine = self._engine
        waiting.sleep_until(lambda seconds: bell.wait_until(lambda: true() or not engine.alive, seconds), None)

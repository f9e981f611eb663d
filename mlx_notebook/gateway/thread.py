"""The engine thread and its life: load, run the loop, end cleanly; and the door for callers.

One long-lived daemon thread an engine. It loads the model and does all MLX work; callers only
enqueue. It knows records and backend but not the Gateway object, so that a forgotten gateway can
close itself. At the end it settles whoever is left, has the backend clear its own streams, and
can then be joined.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.bell import Latch
from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.scheduler import SchedulerSettings
from mlx_notebook.engine.backend import release_all
from mlx_notebook.errors import GatewayClosed, GatewayDead, MlxNotebookError
from mlx_notebook.failure import without_frames
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.exclusive import Exclusive
from mlx_notebook.gateway.intake import Intake
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.loop import EngineLoop
from mlx_notebook.gateway.pausing import Pausing
from mlx_notebook.gateway.place import PlacesInLine
from mlx_notebook.gateway.recorder import Recorder
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.standing import StandingPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.backend import Backend
    from mlx_notebook.gateway.lease import Ticket
    from mlx_notebook.gateway.policies import UserPolicy
    from mlx_notebook.gateway.record import RowRecord
    from mlx_notebook.gateway.standing import Stand


@dataclass(slots=True)
class Loading:
    """What a loader is given: where to report progress, and how to learn that nobody wants the model any more."""

    progress: Callable[[str, float | None], None]
    stop: Latch
    place: StandingPlace

    def check(self) -> None:
        """Raise InterruptedError when the load was given up; stand still if the process is about to fork."""
        self.place.visit(_synchronize)
        if self.stop.is_set():
            raise InterruptedError("the load was interrupted")


class Engine:
    """One engine thread with its loop and open rows. Every method may be called from any thread.

    Args:
        name: for people, in thread name, lease and errors.
        load: called on the engine thread, under the lease; returns the backend and whatever the
            gateway wants to know of it.
        max_queued: how many rows may wait.
        settings_for: called on the engine thread once the model is loaded; what its scheduler is made with.
        policy: a user's order of admission, if there is one.
        progress: called on the engine thread while loading, with (what, fraction or None).
    """

    def __init__(
        self,
        name: str,
        load: Callable[[Loading], tuple[Backend, Any]],
        *,
        max_queued: int,
        settings_for: Callable[[Engine], SchedulerSettings] | None = None,
        policy: UserPolicy | None = None,
        progress: Callable[[str, float | None], None] | None = None,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(vocab_size=0)
        self.loaded: Any = None
        self.origin: tuple[str | None, str | None] = (None, None)
        self.load_error: BaseException | None = None
        self.ready = Latch()
        self.intake = Intake(max_queued)
        self.loop: EngineLoop | None = None
        self.death: str | None = None
        self._pid = os.getpid()
        self._load: Callable[[Loading], tuple[Backend, Any]] | None = load
        self._settings_for = settings_for or (lambda _engine: SchedulerSettings())
        self._policy = policy
        self._standing = StandingPlace()
        self._loading = Loading(progress or _no_progress, Latch(), self._standing)
        self._backend: Backend | None = None
        self._places = PlacesInLine(name, self._hear)
        self.at_end: list[Callable[[], None]] = []
        self.pausing = Pausing(self)
        self.recorder = Recorder(lambda: None if self.loop is None else self.loop.ring)
        self._exclusives: set[Exclusive] = set()
        self._stopping = False
        self._ended = Latch()
        self._thread = threading.Thread(target=self._run, name=f"mlx-notebook engine {name}", daemon=True)
        registry.add_engine(self)

    def start(self) -> None:
        """Begin to load. Apart from making the engine, so that an interrupt in between leaves somebody to stop it."""
        self._thread.start()

    # ------------------------------------------------------------ state

    @property
    def here(self) -> bool:
        """Whether this is the process that made the engine (and not a forked child)."""
        return os.getpid() == self._pid

    @property
    def alive(self) -> bool:
        """Whether the engine takes work."""
        return self.here and not self._stopping and not self.intake.closed and self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether any request is not over; true from the moment of enqueue."""
        return not self.intake.idle.is_set()

    def check(self) -> None:
        """Raise GatewayDead or GatewayClosed unless the engine takes work."""
        self.check_process()
        if self._stopping or self.intake.closed:
            raise self._why_gone()

    def check_process(self) -> None:
        """Raise GatewayDead in a forked child."""
        if not self.here:
            raise GatewayDead(
                f"gateway {self.name!r} stayed in the parent process: this is a forked child. Ask it there, or start"
                ' children with multiprocessing\'s "spawn" method and make a Gateway in the child.',
                gateway=self.name,
            )

    def _why_gone(self) -> MlxNotebookError:
        if self.death is not None:
            return GatewayDead(self._obituary(), gateway=self.name, traceback_text=self.death)
        return GatewayClosed(f"gateway {self.name!r} is closed; make a new one, or restart() it.", gateway=self.name)

    def _obituary(self) -> str:
        lines = (self.death or "").strip().splitlines()
        reason = lines[-1] if lines else "unknown reason"
        return f"the engine thread of {self.name!r} died: {reason}; restart() brings it back."

    def why_waiting(self, row_id: int) -> str:
        """One sentence on why a queued row waits now."""
        ahead = None if self.loop is None else self.loop.scheduler.rows_ahead(row_id)
        if ahead is None:
            return "about to enter the queue"
        if self.pausing.paused:
            return "paused"
        holder = device_lease().holder
        if self._places.waits and holder is not None:
            return f"waiting for the device: {holder.owner} holds it ({holder.kind})"
        return "next in line" if ahead == 0 else f"behind {ahead} {'row' if ahead == 1 else 'rows'}"

    def free_bytes(self) -> int:
        """Bytes that the device (or the host) has free now; 0 where there is no real model."""
        from mlx_notebook.models.memory import free_memory

        return free_memory()

    # ------------------------------------------------------------ asking

    def submit(self, request: Request, record: RowRecord) -> None:
        """Enqueue a request. `record.taken` says whether its end is our care, also where this raises."""
        self.check()
        asked_ns = time.monotonic_ns()
        if not self.intake.submit(request, record, lambda at: self._the_loop.admit(at, asked_ns, record, request)):
            raise self._why_gone()
        self._places.take()

    def expect(self, record: RowRecord) -> None:
        """Count a row as open that will be submitted later; whoever closes us settles it."""
        if not self.intake.expect(record):
            raise self._why_gone()

    def cancel(self, row_id: int, detail: FinishDetail = FinishDetail.USER) -> bool:
        """Ask for a row's end; False where there is nobody left to ask."""
        return self.call_soon(lambda at: self._the_loop.feed(ev.CancelAsked(at, row_id, detail)))

    def reprioritize(self, row_id: int, priority: int) -> bool:
        """Another priority for a row that waits; False where there is nobody left to ask."""
        return self.call_soon(lambda at: self._the_loop.feed(ev.PriorityAsked(at, row_id, priority)))

    def extend(self, row_id: int, tokens: int, tell: Callable[[ev.Extended], None]) -> bool:
        """Ask for more tokens for a row; `tell` hears the answer on the engine thread. False: nobody left to ask."""
        return self.call_soon(lambda at: tell(self._the_loop.extend(at, row_id, tokens)))

    def call_soon(self, work: Callable[[int], None]) -> bool:
        """Have `work(at_ns)` run on the engine thread between two steps; False if the thread is gone."""
        return self.here and self.intake.put(work)

    def run_exclusive(self, function: Callable[[], Any]) -> Any:
        """Run `function()` on the engine thread under a lease of its own; its value, or its exception."""
        job = Exclusive(function)
        self._exclusives.add(job)
        ticket: Ticket | None = None
        try:
            self.check()  # only now: whoever stops the engine from here on finds the job and fails it
            ticket = device_lease().ask(self.name, "exclusive", on_grant=lambda held: self._run_or_fail(job, held))
            waiting.sleep_until(job.done.wait, None)
        finally:
            # A job that has begun keeps the device till it is done, though its caller was interrupted.
            if (job.give_up() or job.done.is_set()) and ticket is not None:
                device_lease().release(ticket)
            self._exclusives.discard(job)
        return job.outcome()

    def _run_or_fail(self, job: Exclusive, ticket: Ticket) -> None:
        def run(_at: int) -> None:
            job.run()
            device_lease().release(ticket)

        if not self.call_soon(run):
            job.fail(self._why_gone())
            device_lease().release(ticket)

    def _hear(self, event: Callable[[int], ev.Event], still_mine: Callable[[], bool]) -> None:
        def feed(at: int) -> None:
            if still_mine():
                self._the_loop.feed(event(at))

        self.call_soon(feed)

    # ------------------------------------------------------------ ending

    def stop(self) -> None:
        """Settle every handle at once and tell the thread to end; does not wait for it."""
        if not self.here:
            return
        self._loading.stop.set()
        self._stopping = True
        for record in self.intake.shut():
            record.settle(FinishReason.CANCELLED, FinishDetail.CLOSED)
        for job in list(self._exclusives):
            job.fail(self._why_gone())

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; False if it still runs."""
        if not self.here or self._thread.ident is None:  # in a forked child, or never started
            return True
        if threading.current_thread() is self._thread:
            return False
        # Not Thread.join: interrupted, Python 3.11's takes a running thread for an ended one.
        if not waiting.sleep_until(self._ended.wait, timeout):
            return False
        self._thread.join()
        return True

    def stand_still(self, stand: Stand) -> None:
        """Have the engine stand between two steps with nothing in flight; `stand.standing` goes up when it does."""
        if threading.current_thread() is self._thread:  # a callback forks: its engine stands here already
            _synchronize()
            stand.standing.set()
            return
        self._standing.ask(stand)
        if not self.here or not self._thread.is_alive():
            self._standing.leave()
        else:
            self.call_soon(lambda _at: self._standing.visit(self._the_loop.synchronize))

    def orphan(self) -> None:
        """In a forked child: fail what is open, so that nobody here waits for the parent's thread."""
        self._places.orphan()
        for record in self.intake.orphan():
            record.orphan()

    # ------------------------------------------------------------ the engine thread

    @property
    def _the_loop(self) -> EngineLoop:
        if self.loop is None:
            raise RuntimeError("the engine has no loop before its model is loaded")
        return self.loop

    def _run(self) -> None:
        waiting.engine_threads.add(threading.get_ident())
        try:
            if self._loads():
                self._the_loop.run(lambda: self._stopping)
        except BaseException:  # noqa: BLE001 - whatever it is, every handle must learn of it
            self.death = traceback.format_exc()
        finally:
            self._end()
            self._standing.leave()
            waiting.engine_threads.discard(threading.get_ident())
            self._ended.set()

    def _loads(self) -> bool:
        ticket = device_lease().ask(self.name, "load", breakable=False)
        try:
            while not ticket.granted.wait(0.1):
                self._loading.check()
            load, self._load = self._load, None  # a kept handle must not pin what the loader holds
            if load is None:
                raise RuntimeError("an engine loads once")  # noqa: TRY301
            self._backend, self.loaded = load(self._loading)
            self.origin = (self.loaded.source, self.loaded.revision)
            self.capabilities = self._backend.capabilities
            settings = self._settings_for(self)
            self.loop = EngineLoop(self._backend, self.intake, self._places, settings, self._policy)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked for the model
            self._stopping = True
            self.load_error = without_frames(error)
            return False
        finally:
            device_lease().release(ticket)
            self.ready.set()
        return True

    def _end(self) -> None:
        """Settle whoever is left, give the device back, let go of the model. Each step is attempted."""
        self._stopping = True
        records, unstarted = self.intake.leave()
        for attempt in (
            *(lambda r=r: self._settle_at_end(r) for r in records),
            self.intake.idle.set,
            *(lambda r=r: release_all(r) for r in unstarted),
            *(lambda e=e: e.fail(self._why_gone()) for e in list(self._exclusives)),
            self._close_backend,
            _give_streams_back,
            self._places.give_up,
            *self.at_end,
        ):
            try:
                attempt()
            except BaseException:  # noqa: BLE001 - the other steps must be attempted too
                self.death = self.death or traceback.format_exc()
        self.loaded = None

    def _settle_at_end(self, record: RowRecord) -> None:
        if self.death is None:
            record.settle(FinishReason.CANCELLED, FinishDetail.CLOSED)
        else:
            record.settle(FinishReason.ERROR, error=(self._obituary(), self.death), died=True)
            self._the_loop.scheduler.counters.failed += 1

    def _close_backend(self) -> None:
        backend, self._backend = self._backend, None
        if self.loop is not None:
            self.loop.retire()
        if backend is not None:
            backend.close()


def _synchronize() -> None:
    """Wait for what this thread has dispatched."""
    mlx = sys.modules.get("mlx.core")
    if mlx is not None:
        mlx.synchronize()


def _give_streams_back() -> None:
    """The thread's last act with MLX, also where a load failed half-way or a user's function computed here.

    A thread that ends with live streams can abort the process as it exits.
    """
    mlx = sys.modules.get("mlx.core")
    if mlx is not None:
        mlx.clear_streams()


def _no_progress(_what: str, _fraction: float | None) -> None:
    """Nobody watches the load."""

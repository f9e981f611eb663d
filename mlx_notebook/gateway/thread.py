"""The engine thread: takes events, asks the scheduler, has the backend execute, tells the handles.

One long-lived daemon thread an engine. It loads the model, does all MLX work and runs the loop;
callers only enqueue. Time is stamped here, as an event is drained. The thread knows handles and
backend but not the Gateway object, so that a forgotten gateway can close itself.

Threads: `submit`, `cancel`, `call_soon`, `stop` and the readers may be called from any thread;
all that is named `_on_engine...` runs on the engine thread. `_inbox_changed` guards the inbox, the
open handles and `_gone`; `_ticket_lock` guards our place in the line for the device.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.scheduler import Scheduler
from mlx_notebook.errors import GatewayClosed, GatewayDead, MlxNotebookError, QueueFull
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.exclusive import Exclusive
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.stats import RateMeter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.request import Request
    from mlx_notebook.engine.backend import Backend
    from mlx_notebook.gateway.lease import Ticket
    from mlx_notebook.gateway.record import RowRecord

log = logging.getLogger("mlx_notebook")

FLUSH_NS = 25_000_000
"""Readers are woken at most this often while rows write (and always when a row ends)."""


@dataclass(slots=True)
class Loading:
    """What a loader is given: a place to report progress, and a way to learn that nobody wants the model any more."""

    progress: Callable[[str, float | None], None]
    stop: threading.Event

    def check(self) -> None:
        """Raise InterruptedError when the load was given up."""
        if self.stop.is_set():
            raise InterruptedError("the load was interrupted")


class Engine:
    """One engine thread with its scheduler, backend and open handles.

    Args:
        name: for people, in thread name, lease and errors.
        make_backend: called on the engine thread, under the lease, to load; returns the backend
            and whatever the gateway wants to know of it.
        max_queued: how many rows may wait.
        chunk: prompt tokens a prefill chunk.
        progress: called on the engine thread while loading, with (what, fraction or None).
    """

    def __init__(
        self,
        name: str,
        make_backend: Callable[[Loading], tuple[Backend, Any]],
        *,
        max_queued: int,
        chunk: int,
        progress: Callable[[str, float | None], None] | None = None,
    ) -> None:
        self.name = name
        self.max_queued = max_queued
        self.scheduler = Scheduler(chunk=chunk)
        self.loaded: Any = None
        self.load_error: BaseException | None = None
        self.ready = threading.Event()
        self.capabilities = Capabilities(vocab_size=0)
        self.submitted = 0
        self.held_bytes = 0
        self.last_seen_ns = time.monotonic_ns()
        self.death: str | None = None
        self.meter = RateMeter()
        self._pid = os.getpid()
        self._make_backend = make_backend
        self._loading = Loading(progress or (lambda _what, _fraction: None), threading.Event())
        self._backend: Backend | None = None
        self._inbox: deque[Callable[[int], None]] = deque()
        self._inbox_changed = threading.Condition()
        self._open: dict[int, RowRecord] = {}
        self._idle = threading.Event()
        self._idle.set()
        self._queued = 0
        self._requests: dict[int, Request] = {}
        self._exclusives: set[Exclusive] = set()
        self._dirty: set[RowRecord] = set()
        self._flushed_ns = 0
        self._ticket: Ticket | None = None
        self._ticket_lock = threading.Lock()
        self._stopping = False
        self._gone = False
        self._thread = threading.Thread(target=self._run, name=f"mlx-notebook engine {name}", daemon=True)
        registry.engines.add(self)
        self._thread.start()

    # ------------------------------------------------------------ any thread

    @property
    def here(self) -> bool:
        """Whether this is the process that made the engine (and not a forked child)."""
        return os.getpid() == self._pid

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs and takes work."""
        return self.here and self._thread.is_alive() and not self._gone

    @property
    def busy(self) -> bool:
        """Whether any request is not over; true from the moment of enqueue."""
        return bool(self._open)

    @property
    def queued(self) -> int:
        """Rows that wait, counted from the moment of enqueue."""
        return self._queued

    def projected_bytes(self, bytes_of: Callable[[int], int]) -> int:
        """Bytes that the running rows would take if each ran to its limit; `bytes_of` is told a row's tokens."""
        rows = [r.row for r in list(self._open.values()) if r.row.admitted_ns]
        return sum(bytes_of(row.prompt_tokens + row.request.shape.sampling.max_tokens) for row in rows)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no request is open; False if the time passed first."""
        return self._idle.wait(seconds)

    def check(self) -> None:
        """Raise GatewayDead or GatewayClosed unless the engine takes work."""
        if not self.here:
            raise GatewayDead(
                f"gateway {self.name!r} stayed in the parent process: this is a forked child; make a new Gateway here.", gateway=self.name
            )
        if self._stopping or self._gone or self.death is not None:
            raise self._why_gone()

    def _why_gone(self) -> MlxNotebookError:
        if self.death is not None:
            return GatewayDead(self._obituary(), gateway=self.name, traceback_text=self.death)
        return GatewayClosed(f"gateway {self.name!r} is closed; make a new one, or restart() it.", gateway=self.name)

    def _obituary(self) -> str:
        return f"the engine thread of {self.name!r} died: {_last_line(self.death or '')}; restart() brings it back."

    def submit(self, request: Request, record: RowRecord) -> None:
        """Enqueue a request; its record is settled under our care from then on."""
        self.check()
        asked_ns = time.monotonic_ns()
        with self._inbox_changed:
            self.check()
            if self._queued >= self.max_queued:
                raise QueueFull(
                    f"{self._queued} rows wait and max_queued is {self.max_queued}: wait for some, or let gateway.map feed them.",
                    queued=self._queued,
                    limit=self.max_queued,
                )
            self._queued += 1
            self.submitted += 1
            self._idle.clear()
            self._open[record.id] = record
            self._requests[record.id] = request
            self._inbox.append(lambda at: self._on_engine_submitted(at, asked_ns, record, request))
            self._inbox_changed.notify()
        self._take_place_in_line()

    def cancel(self, row_id: int, detail: FinishDetail = FinishDetail.USER) -> bool:
        """Ask for a row's end; False where there is nobody left to ask."""
        return self.call_soon(lambda at: self._feed(ev.CancelAsked(at, row_id, detail)))

    def call_soon(self, work: Callable[[int], None]) -> bool:
        """Have `work(at_ns)` run on the engine thread between two steps; False if the thread is gone."""
        if not self.here:
            return False
        with self._inbox_changed:
            if self._gone:
                return False
            self._inbox.append(work)
            self._inbox_changed.notify()
        return True

    def run_exclusive(self, function: Callable[[], Any]) -> Any:
        """Run `function()` on the engine thread under a lease of its own; its value, or its exception."""
        self.check()
        job = Exclusive(function)
        with self._inbox_changed:
            self._exclusives.add(job)
        ticket = device_lease().ask(
            self.name, "exclusive", on_grant=lambda t: self._run_or_fail(job, t), on_break=lambda: None
        )
        try:
            waiting.sleep_until(job.done.wait, None)
        except BaseException:
            if job.give_up():
                device_lease().release(ticket)
            raise
        finally:
            self._exclusives.discard(job)
        return job.outcome()

    def _run_or_fail(self, job: Exclusive, ticket: Ticket) -> None:
        def run(_at: int) -> None:
            job.run()
            device_lease().release(ticket)

        if not self.call_soon(run):
            job.fail(self._why_gone())
            device_lease().release(ticket)

    def refuse_to_block(self, what: str) -> None:
        """Raise where waiting for this engine could never end."""
        waiting.refuse_to_block(what)

    def why_waiting(self, row_id: int) -> str:
        """One sentence on why a queued row waits now; empty if it does not."""
        ahead = self.scheduler.rows_ahead(row_id)
        if ahead is None:
            return "about to enter the queue"
        holder = device_lease().holder
        ticket = self._ticket
        if ticket is not None and not ticket.held and holder is not None:
            return f"waiting for the device: {holder.owner} holds it ({holder.kind})"
        if ahead == 0:
            return "next in line"
        return f"behind {ahead} {'row' if ahead == 1 else 'rows'}"

    def stop(self) -> None:
        """Settle every handle at once and tell the thread to end; does not wait for it."""
        if not self.here:
            return
        self._loading.stop.set()
        with self._inbox_changed:
            self._stopping = True
            records = list(self._open.values())
            self._inbox_changed.notify()
        for record in records:
            record.settle(FinishReason.CANCELLED, FinishDetail.CLOSED)

    def orphan(self) -> None:
        """In a forked child: fail what is open, so that nobody here waits for the parent's thread."""
        self._inbox_changed, self._ticket_lock = threading.Condition(), threading.Lock()
        for record in list(self._open.values()):
            record.orphan()
        self._open = {}

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; False if it still runs."""
        if not self.here or threading.current_thread() is self._thread:
            return not self.here
        waiting.sleep_until(lambda seconds: self._thread.join(seconds) or not self._thread.is_alive(), timeout)
        return not self._thread.is_alive()

    def _take_place_in_line(self) -> None:
        with self._ticket_lock:
            if self._ticket is not None or self._gone:
                return
            self._ticket = device_lease().ask(
                self.name,
                "rows",
                on_grant=lambda ticket: self._hear(ticket, ev.LeaseGranted),
                on_waiters=lambda ticket, some: self._hear(ticket, ev.LeaseWanted if some else ev.LeaseUnwanted),
                breakable=False,
            )

    def _hear(self, ticket: Ticket, event: Callable[[int], ev.Event]) -> None:
        """News of a ticket, for the engine thread; one that was given back meanwhile must not speak for the next."""

        def feed(at: int) -> None:
            with self._ticket_lock:
                mine = self._ticket is ticket
            if mine:
                self._feed(event(at))

        self.call_soon(feed)

    # ------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        waiting.engine_threads.add(threading.get_ident())
        try:
            if self._on_engine_load():
                while not self._stopping:
                    self._on_engine_drain()
                    self._on_engine_turn()
                self._feed(ev.CloseAsked(time.monotonic_ns()))
        except BaseException:
            self.death = traceback.format_exc()
        finally:
            self._on_engine_end()
            waiting.engine_threads.discard(threading.get_ident())

    def _on_engine_load(self) -> bool:
        ticket = device_lease().ask(self.name, "load", breakable=False)
        try:
            while not ticket.granted.wait(0.1):
                self._loading.check()
            self._backend, self.loaded = self._make_backend(self._loading)
            self.capabilities = self._backend.capabilities
            self.scheduler.max_rows = self.capabilities.max_rows
        except BaseException as error:
            self.load_error = without_frames(error)
            self._stopping = True
            return False
        finally:
            device_lease().release(ticket)
            self.ready.set()
        return True

    def _on_engine_drain(self) -> None:
        with self._inbox_changed:
            # A frozen count: a caller that submits without end must not keep us from stepping.
            work = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for item in work:
            item(time.monotonic_ns())

    def _on_engine_turn(self) -> None:
        self.last_seen_ns = time.monotonic_ns()
        steps = self.scheduler.handle(ev.Turn(self.last_seen_ns))
        for step in steps:
            self._execute(step)
        if steps and not self._stopping:
            return
        self._flush()
        with self._inbox_changed:
            if not self._inbox and not self._stopping:
                self._inbox_changed.wait(self._seconds_to_deadline())

    def _seconds_to_deadline(self) -> float | None:
        deadline = self.scheduler.next_deadline_ns
        return None if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)

    def _on_engine_submitted(self, at_ns: int, asked_ns: int, record: RowRecord, request: Request) -> None:
        steps = self.scheduler.handle(ev.Submitted(at_ns, asked_ns, request, record.placement))
        record.row = self.scheduler.rows.get(request.id, record.row)
        for step in steps:
            self._execute(step)

    def _feed(self, event: ev.Event) -> None:
        for step in self.scheduler.handle(event):
            self._execute(step)

    def _execute(self, step: ev.Instruction) -> None:
        _EXECUTE[type(step)](self, step)

    def _ask_lease(self, _step: ev.AskLease) -> None:
        self._take_place_in_line()

    def _give_lease(self, _step: ev.GiveLease) -> None:
        self._the_backend.synchronize()
        with self._ticket_lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            device_lease().release(ticket)

    def _open_row(self, step: ev.Open) -> None:
        request = self._requests.pop(step.row_id)
        self._leave_queue()
        ticket, record = self._ticket, self._open.get(step.row_id)
        if ticket is not None and record is not None:
            record.lease_granted_ns = int(ticket.since * 1e9)
        try:
            self._the_backend.open(request)
        except BaseException as error:
            failed = _as_text(error)
            now = time.monotonic_ns()
            self._feed(ev.PrefillDone(now, step.row_id, 0, 0, now, failed))

    def _prefill(self, step: ev.Prefill) -> None:
        if step.row_id in self.scheduler.rows:
            self._feed(self._the_backend.prefill(step))

    def _decode(self, step: ev.Decode) -> None:
        row_ids = tuple(row_id for row_id in step.row_ids if row_id in self.scheduler.rows)
        if not row_ids:
            return
        outcome = self._the_backend.decode(ev.Decode(row_ids))
        if isinstance(outcome, ev.StepDone):
            for row in outcome.outcomes:
                record = self._open.get(row.row_id)
                if record is not None:
                    record.push(row)
                    self._dirty.add(record)
            self.meter.add(outcome.at_ns, len(outcome.outcomes))
        self._feed(outcome)
        if outcome.at_ns - self._flushed_ns >= FLUSH_NS:
            self._flush()

    def _flush(self) -> None:
        self._flushed_ns = time.monotonic_ns()
        self.held_bytes = self._the_backend.held_bytes()
        dirty, self._dirty = self._dirty, set()
        for record in dirty:
            record.notify()

    def _drop(self, step: ev.Drop) -> None:
        try:
            self._the_backend.drop(step.row_id)
        except BaseException:
            log.exception("freeing request %d failed; the others go on", step.row_id)

    def _rewind(self, step: ev.Rewind) -> None:
        self._the_backend.rewind(step.row_id)

    def _settle(self, step: ev.Settle) -> None:
        request = self._requests.pop(step.row_id, None)
        if request is not None:
            self._leave_queue()
            dispose(request)
        with self._inbox_changed:
            record = self._open.pop(step.row_id, None)
        if record is not None:
            self._dirty.discard(record)
            record.settle(step.reason, step.detail, step.error)
        if not self._open:
            self._idle.set()

    def _leave_queue(self) -> None:
        with self._inbox_changed:
            self._queued -= 1

    @property
    def _the_backend(self) -> Backend:
        if self._backend is None:
            raise RuntimeError("the engine has no backend yet")
        return self._backend

    def _on_engine_end(self) -> None:
        """Settle whoever is left, give the device back, let go of the model. Each step is attempted."""
        with self._inbox_changed:
            self._gone = True
            work, self._inbox = list(self._inbox), deque()
            records, self._open = list(self._open.values()), {}
            requests, self._requests = list(self._requests.values()), {}
            exclusives, self._exclusives = list(self._exclusives), set()
            self._queued = self.held_bytes = 0
        for attempt in (
            *(lambda r=r: self._settle_at_end(r) for r in records),
            *(lambda r=r: dispose(r) for r in requests),
            *(lambda e=e: e.fail(self._why_gone()) for e in exclusives),
            self._close_backend,
            self._release_place,
            self._idle.set,
        ):
            try:
                attempt()
            except BaseException:
                self.death = self.death or traceback.format_exc()
        del work
        self.loaded = None

    def _settle_at_end(self, record: RowRecord) -> None:
        if self.death is None:
            record.settle(FinishReason.CANCELLED, FinishDetail.CLOSED)
        else:
            record.settle(FinishReason.ERROR, error=(self._obituary(), self.death), died=True)

    def _close_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _release_place(self) -> None:
        with self._ticket_lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            device_lease().release(ticket)


_EXECUTE: dict[type, Callable[[Engine, Any], None]] = {
    ev.AskLease: Engine._ask_lease,
    ev.GiveLease: Engine._give_lease,
    ev.Open: Engine._open_row,
    ev.Prefill: Engine._prefill,
    ev.Decode: Engine._decode,
    ev.Drop: Engine._drop,
    ev.Rewind: Engine._rewind,
    ev.Settle: Engine._settle,
}


def dispose(request: Request) -> None:
    """Release what an unstarted request owns: every release is attempted, a failing one is logged."""
    for release in request.owned:
        try:
            release()
        except BaseException:
            log.exception("releasing what request %d owned failed", request.id)


def without_frames(error: BaseException) -> BaseException:
    """The error and its causes without their frames, which would pin the arrays that they hold."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        pending += [link.__cause__, link.__context__]
    return error


def _as_text(error: BaseException) -> tuple[str, str]:
    text = "".join(traceback.format_exception(error))
    without_frames(error)
    return f"{type(error).__name__}: {error}", text


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "unknown reason"

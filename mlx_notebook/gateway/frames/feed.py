"""Feeds jobs to gateways a few at a time, so that the batch stays full and the queue never does.

Runs on the caller's thread, which may be interrupted at any line: a job stays in the table of those under way
until its outcome has been handed over, so that nothing finished is lost.
"""

from __future__ import annotations

import contextlib
import queue
from collections import Counter, deque
from typing import TYPE_CHECKING

from mlx_notebook.errors import GatewayClosed, GatewayDead, MlxNotebookError, OverBudget, OverContext, QueueFull
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.frames.outcome import Outcome, outcome_of, refused
from mlx_notebook.gateway.frames.progress import DRAW_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.gateway.frames.rows import Answering, Job
    from mlx_notebook.gateway.handle import Handle


class Feed:
    """Runs jobs to their ends.

    Args:
        jobs: in the order in which they are to be submitted.
        settle: called with each job and its outcome, on the caller's thread; what it raises ends the run.
        draw: called a few times a second with the handles under way.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        settle: Callable[[Job, Outcome], None],
        draw: Callable[[Sequence[Handle]], None],
    ) -> None:
        self._todo: dict[int, deque[Job]] = {}
        for job in jobs:
            self._todo.setdefault(id(job.gateway), deque()).append(job)
        self._under_way: dict[int, Job] = {}
        self._running: Counter[int] = Counter()
        self._over: queue.SimpleQueue[Handle] = queue.SimpleQueue()
        self._settle = settle
        self._draw = draw

    def run(self) -> None:
        """Submit and collect until nothing is left.

        Raises:
            GatewayClosed, GatewayDead: a gateway went away with rows unfinished.
            WouldDeadlock: this thread paused every gateway that still has rows.
        """
        while self._fill() or self._under_way:
            waiting.refuse_where_paused(job.handle for job in self._under_way.values() if job.handle is not None)
            waiting.sleep_until(self._hear, DRAW_S)
            self.collect()
            self._draw([job.handle for job in self._under_way.values() if job.handle is not None])

    def give_up(self) -> list[Handle]:
        """Hand over what is finished, cancel the rest, wait for nothing; the handles that were cancelled."""
        # An interrupt may have come between a submission and our note of it.
        noted = [*self._under_way.values(), *(job for jobs in self._todo.values() for job in jobs)]
        self._todo.clear()
        started = [(job, job.handle) for job in noted if job.handle is not None]
        for job, handle in started:
            if handle.done():
                with contextlib.suppress(GatewayClosed, GatewayDead):
                    self._hand_over(job, handle)
        left = [handle for _job, handle in started if not handle.done()]
        for handle in left:
            handle.cancel()
        return left

    def collect(self) -> None:
        """Hand over every job that is over."""
        for key, job in list(self._under_way.items()):
            if job.handle is not None and job.handle.done():
                self._hand_over(job, job.handle)
                del self._under_way[key]
                self._running[id(job.gateway)] -= 1

    def _hand_over(self, job: Job, handle: Handle) -> None:
        error = handle.exception()
        detail = getattr(getattr(error, "result", None), "finish_detail", None)
        if isinstance(error, GatewayDead):
            raise error
        if detail == "closed":
            raise GatewayClosed(
                f"gateway {job.gateway.name!r} was closed with rows unfinished", gateway=job.gateway.name
            )
        self._settle(job, outcome_of(handle))

    def _hear(self, seconds: float) -> bool:
        """Wait for any row's end; several ends that came together are heard as one."""
        try:
            self._over.get(timeout=seconds)
            while True:
                self._over.get_nowait()
        except queue.Empty:
            return any(job.handle is not None and job.handle.done() for job in self._under_way.values())

    def _fill(self) -> bool:
        """Submit as many as fit now; whether any are still to come."""
        for key, jobs in list(self._todo.items()):
            while jobs and self._running[key] < window(jobs[0].gateway):
                if not self._submit(jobs[0]):
                    break
                jobs.popleft()
            if not jobs:
                del self._todo[key]
        return bool(self._todo)

    def _submit(self, job: Job) -> bool:
        """Submit one job; False where the gateway's queue is full of other cells' rows."""
        if job.problem is not None:
            self._settle(job, refused(job.problem, job.options.get("seed")))
            return True
        try:
            job.handle = job.gateway.submit(job.prompt, **job.options)
        except QueueFull:
            return False
        except (GatewayClosed, GatewayDead):
            raise
        except (MlxNotebookError, TypeError, ValueError, OverContext, OverBudget) as error:
            # It passed the check; since then the gateway was restarted with another model.
            self._settle(job, refused(str(error), job.options.get("seed")))
            return True
        handle = job.handle
        if handle is None:
            raise RuntimeError("submit gives a handle")
        self._under_way[handle.id] = job
        self._running[id(job.gateway)] += 1
        handle.add_done_callback(self._over.put)
        return True


def window(gateway: Answering) -> int:
    """Rows to have under way at once: a full batch, and as many again to take the places that fall free."""
    return 2 * max(1, gateway.max_rows)

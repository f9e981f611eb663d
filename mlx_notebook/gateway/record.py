"""A row's record: what the engine thread writes of one request, and everybody else reads.

Threads: the engine thread pushes text and settles; closing a gateway settles from the caller's
thread. The lock guards the lists and the outcome; it is never held while user code runs, and nobody
sleeps on it. Settling is idempotent and the first to come wins, so that every waiting reader is freed
at once even while the engine is inside a native call.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_notebook.bell import Bell, Latch
from mlx_notebook.core.request import UserCode
from mlx_notebook.core.rows import FinishDetail, FinishReason, Row, RowStatus
from mlx_notebook.core.thinking import ThinkingSplitter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.events import RowOutcome
    from mlx_notebook.core.placement import Placement
    from mlx_notebook.core.request import Request
    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.core.thinking import ThinkingMarks
    from mlx_notebook.gateway.hooks import Execution

log = logging.getLogger("mlx_notebook")


class RowRecord:
    """Everything that is known of one submitted request.

    Args:
        request: the checked request.
        placement: how it is served.
        execution: the cell run that submitted it, None outside a notebook.
        keep: kept alive until the row is over (its gateway, which would close itself if forgotten).
        marks: what the model writes around its thinking, if it does.

    Attributes:
        taken: whether an engine took it in, and so will settle it.
        over: up once it is settled.
        ends: for each token, how long the text was once it was known.
        news: rings when there is more text, and at the end.
    """

    def __init__(
        self,
        request: Request,
        placement: Placement,
        execution: Execution | None,
        keep: object,
        marks: ThinkingMarks | None = None,
    ) -> None:
        self.id = request.id
        self.placement = placement
        self.execution = execution
        self.row = Row(request, seq=-1, queued_ns=time.monotonic_ns())
        self.taken = False
        self.over = Latch()
        self.news = Bell()
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.shares: tuple[float, ...] = ()
        self.length = 0
        self.reason: FinishReason | None = None
        self.detail: FinishDetail | None = None
        self.error: tuple[str, str] | None = None
        self.died = False
        self.lease_granted_ns = 0
        self.settled_ns = 0
        self._lock = threading.RLock()
        self._keep: object | None = keep
        self.ends = array("q")
        self._parts: list[str] = []
        self._thoughts: list[str] = []
        self._marks = marks
        self._splitter = _splitter_for(request, marks)
        self._callbacks: deque[Callable[[], object]] = deque()

    @property
    def done(self) -> bool:
        """Whether the row is over, however it ended."""
        return self.over.is_set()

    @property
    def status(self) -> RowStatus:
        """Where the row is now. The row's own final status counts only once readers may see the outcome."""
        if self.reason is not None:
            return self.reason.status
        return RowStatus.DECODE if self.row.status.final else self.row.status

    @property
    def text(self) -> str:
        """All text that may be shown now."""
        with self._lock:
            self._parts = ["".join(self._parts)]
            return self._parts[0]

    def pieces(self, after: int = 0) -> list[str]:
        """The text that each token after the first `after` brought; the last of a row that is over has the rest too."""
        with self._lock:
            text, ends = self.text, self.ends
            begin = ends[after - 1] if 0 < after <= len(ends) else 0
            found = []
            for end in ends[after:]:
                found.append(text[begin:end])
                begin = end
            if found and self.done:
                found[-1] += text[begin:]
            return found

    @property
    def reasoning(self) -> str | None:
        """The thinking so far, without the space around it; None where there was none."""
        with self._lock:
            if self._splitter is None or not self._splitter.thought:
                return None
            self._thoughts = ["".join(self._thoughts)]
            return self._thoughts[0].strip()

    @property
    def thinking(self) -> bool:
        """Whether the row is inside its thinking marks now."""
        return self._splitter is not None and self._splitter.inside and not self.done

    def become(self, request: Request, placement: Placement) -> None:
        """Take the request that the row is really to be, in place of a provisional one that nobody took in."""
        with self._lock:
            self.placement = placement
            self.row = Row(request, seq=-1, queued_ns=time.monotonic_ns())
            self._splitter = _splitter_for(request, self._marks)

    def push(self, outcome: RowOutcome) -> None:
        """Take one step's outcome (engine thread); readers are woken by `news`, not by this."""
        with self._lock:
            if self.over.is_set():
                return
            if outcome.token_id is not None:
                self.token_ids.append(outcome.token_id)
            if outcome.text:
                self._add(*(("", outcome.text) if self._splitter is None else self._splitter.push(outcome.text)))
            if outcome.token_id is not None:
                self.ends.append(self.length)
            if outcome.logprob is not None:
                self.logprobs.append(outcome.logprob)
            self.shares = outcome.shares or self.shares

    def _add(self, thought: str, shown: str) -> None:
        """Append thinking and answer; under the lock."""
        if thought:
            self._thoughts.append(thought)
        if shown:
            self._parts.append(shown)
            self.length += len(shown)

    def follow(self, row: Row) -> None:
        """From now on the scheduler's row tells how far it is; what is over stays as it ended."""
        with self._lock:
            if not self.done:
                self.row = row

    def settle(
        self,
        reason: FinishReason,
        detail: FinishDetail | None = None,
        error: tuple[str, str] | None = None,
        *,
        died: bool = False,
    ) -> None:
        """End the row, wake everybody, run the callbacks; only the first call counts.

        Args:
            error: (message, traceback as text) for `FinishReason.ERROR`.
            died: whether it was the engine thread that failed, not the row.
        """
        with self._lock:
            if not self.done:
                if self._splitter is not None:
                    self._add(*self._splitter.flush())
                self.reason, self.detail, self.error, self.died = reason, detail, error, died
                self.settled_ns = time.monotonic_ns()
                self.row = self._as_it_ended(self.row)
                self.over.set()
        self.news.ring()
        while (callback := self._next_callback()) is not None:  # also what an interrupted call before this one left
            self._call(callback)
        self._keep = None  # last of all: a gateway that nobody else holds closes itself here, and settles its rows

    def _as_it_ended(self, row: Row) -> Row:
        """A copy of one's own: the scheduler may still count on a row that a closing gateway settled.

        The user's functions may hold arrays, which a kept handle must not pin: they are left out.
        """
        request = replace(row.request, code=UserCode(), owned=(), compiled=None)
        return replace(
            row,
            request=request,
            chunks=list(row.chunks),
            token_ids=list(self.token_ids),
            ended_ns=row.ended_ns or self.settled_ns,
        )

    def _next_callback(self) -> Callable[[], object] | None:
        with self._lock:
            return self._callbacks.popleft() if self._callbacks else None

    def when_done(self, callback: Callable[[], object]) -> None:
        """Run `callback` at the end: now if that has come, else on the thread that settles."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise  # a Ctrl-C that came meanwhile is no failure of the callback's
            log.exception("a done-callback of request %d raised; the others go on", self.id)

    def orphan(self) -> None:
        """In a forked child: neither the engine thread is here nor whoever held our lock as the process forked."""
        self._lock = threading.RLock()
        if self.done:
            return
        self._callbacks = deque()
        message = f"request {self.id} belongs to the parent process; its engine thread is not in this forked child."
        self.settle(FinishReason.ERROR, error=(message, ""), died=True)


def _splitter_for(request: Request, marks: ThinkingMarks | None) -> ThinkingSplitter | None:
    if marks is None:
        return None
    return ThinkingSplitter(marks, inside=marks.left_open_by(request.shape.prompt_ids))

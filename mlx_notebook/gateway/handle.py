"""A handle: one request as its user holds it, with a Future's manners and a live text.

Any thread may read, wait and cancel. What leaves here is plain Python; `text_so_far`, `progress()`
and the repr never wait. In a forked child the engine thread is not there: unfinished requests
have failed there, so nothing can wait for ever.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.figures import figures_of
from mlx_notebook.core.options import as_int
from mlx_notebook.core.results import Result
from mlx_notebook.core.rows import FinishDetail, RowStatus
from mlx_notebook.errors import Cancelled, GatewayDead, MlxNotebookError, RowFailed
from mlx_notebook.gateway.explaining import beside_the_log, explain_row
from mlx_notebook.gateway.extending import ask_to_extend
from mlx_notebook.gateway.hooks import hooks
from mlx_notebook.gateway.planned import PlannedForHandles
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.shapes import answer_of
from mlx_notebook.gateway.waiting import SLICE_S, interrupted, refuse_to_block, sleep_until
from mlx_notebook.terminal import printable
from mlx_notebook.trace.spans import Span, spans_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from mlx_notebook.core.explain import TimedReason
    from mlx_notebook.core.placement import Reason
    from mlx_notebook.core.recording import Recording
    from mlx_notebook.core.results import TokenLogprob
    from mlx_notebook.gateway.record import RowRecord
    from mlx_notebook.gateway.thread import Engine

log = logging.getLogger("mlx_notebook")

POLL_S = 0.03
"""How often an awaiting reader looks: wake-ups are coalesced, 20 to 50 a second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A row at one moment, for views. Times in milliseconds; `waiting` and `thinking` are a sentence or empty."""

    status: RowStatus
    prompt_tokens: int
    prefilled: int
    cached_tokens: int
    generated_tokens: int
    decode_tps: float | None
    ttft_ms: float | None
    elapsed_ms: float
    finish_reason: str | None
    finish_detail: str | None
    error: str | None
    waiting: str
    thinking: str = ""
    paused: bool = False


class Handle(PlannedForHandles):
    """One submitted request. Made by `Gateway.submit`.

    Attributes:
        id: number of the row, unique in the process.
        placement: what the row got, and why not more.
        prompt_text: the prompt as text, the chat template's marks included.
        model: name of the model that answers.
    """

    def __init__(self, record: RowRecord, engine: Engine, options: dict[str, Any], model: str) -> None:
        self.id = record.id
        self.placement = record.placement
        self._options = options
        self.prompt_text = record.row.request.prompt_text
        self.model = model
        self.execution = record.execution
        self._record = record
        self._engine = engine
        self._parsed: dict[str, Any] | None = None

    # ------------------------------------------------------------ reading without waiting

    @property
    def options(self) -> dict[str, Any]:
        """The options that hold, the drawn seed included: a copy, whose changes change nothing here."""
        return {name: _copied(value) for name, value in self._options.items()}

    @property
    def status(self) -> RowStatus:
        """Where the row is now."""
        return self._record.status

    @property
    def text_so_far(self) -> str:
        """The text that may be shown now."""
        return self._record.text

    @property
    def reasoning_so_far(self) -> str | None:
        """What the model has written inside its thinking marks until now; None if it has not thought."""
        return self._record.reasoning

    @property
    def shaped(self) -> bool:
        """Whether the answer is held to a shape."""
        return self._record.row.request.shape.grammar is not None

    @property
    def title(self) -> str:
        """The first line of what the user wrote."""
        return self._record.row.request.title

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """(role, content) of the chat that was asked with, the system's first; none for a raw prompt or token ids."""
        return self._record.row.request.messages

    def pieces(self, after: int = 0) -> list[str]:
        """The text that each token (after the first `after`) brought, so far; never waits."""
        return self._record.pieces(after)

    def logprobs_so_far(self, after: int = 0, stop: int | None = None) -> list[TokenLogprob]:
        """Log-probabilities of the tokens so far (after the first `after`), empty if not asked for; never waits."""
        return self._record.logprobs[after:stop] if self._options.get("logprobs") is not None else []

    def text_from(self, position: int) -> str:
        """The text after its first `position` characters; never waits."""
        return self.text_so_far[position:] if self._record.length > position else ""

    def progress(self) -> Progress:
        """A snapshot for views; never waits."""
        now, record = time.monotonic_ns(), self._record
        row = record.row
        figures = figures_of(row, now)
        return Progress(
            status=self.status,
            prompt_tokens=row.prompt_tokens,
            prefilled=row.prefilled,
            cached_tokens=row.cached_tokens,
            generated_tokens=len(record.token_ids),
            decode_tps=figures.decode_tps,
            ttft_ms=figures.ttft_ms,
            elapsed_ms=((row.ended_ns or now) - row.queued_ns) / 1e6,
            finish_reason=None if record.reason is None else str(record.reason),
            finish_detail=None if record.detail is None else str(record.detail),
            error=None if record.error is None else record.error[0],
            waiting=self._engine.why_waiting(self.id) if self.status is RowStatus.QUEUED else "",
            paused=self._engine.pausing.paused and not self.done(),
            thinking=f"thinking, {len(record.reasoning or '')} characters so far" if record.thinking else "",
        )

    @property
    def trace(self) -> tuple[Span, ...]:
        """Spans of the request so far (queue, lease wait, prefill chunks, first token, decode, delivery)."""
        record = self._record
        return spans_of(
            record.row,
            lease_granted_ns=record.lease_granted_ns,
            settled_ns=record.settled_ns,
            now_ns=time.monotonic_ns(),
        )

    def done(self) -> bool:
        """Whether the row is over, however it ended."""
        return self._record.done

    def running(self) -> bool:
        """Whether the row is being computed."""
        return self.status in (RowStatus.PREFILL, RowStatus.DECODE)

    def cancelled(self) -> bool:
        """Whether the row was cancelled."""
        return self.status is RowStatus.CANCELLED

    # ------------------------------------------------------------ acting

    def cancel(self) -> bool:
        """Ask for the row's end; returns at once. False if it was over already."""
        return not self.done() and self._engine.cancel(self.id)

    def reprioritize(self, priority: int) -> bool:
        """Another priority (higher goes first) for a row that waits; returns at once. False if it waits no more.

        Raises:
            TypeError, ValueError: no whole number.
        """
        priority = as_int("priority", priority, -(2**31), 2**31 - 1, "a whole number; higher goes first")
        if self.status is not RowStatus.QUEUED or not self._engine.reprioritize(self.id, priority):
            return False
        self._options = {**self._options, "priority": priority}
        return True

    def extend(self, tokens: int) -> int:
        """Let the row write so many tokens more than its `max_tokens`; the limit that holds now. Waits a step at most.

        Raises:
            TypeError, ValueError: not a whole number from 1.
            OverContext, OverBudget: prompt and answer would exceed the model's context, or the KV budget;
                the row goes on under its old limit.
            MlxNotebookError: the row is over, or its gateway is gone.
            WouldDeadlock: called on the engine thread.
        """
        tokens = as_int("tokens", tokens, 1, 2**31 - 1, "a whole number from 1")
        refuse_to_block("extend()")
        limit = ask_to_extend(self._engine, self._record, tokens)
        self._options = {**self._options, "max_tokens": limit}
        return limit

    def explain(self, at_ns: int | None = None, *, recording: Recording | None = None) -> list[TimedReason]:
        """Where the request's time went, in words, in the order in which it went; never waits.

        Each reason has a stable `code`, a sentence, the milliseconds it took (`ms`; together they are the
        request's own figures) and the rows it names. With `at_ns` (monotonic nanoseconds), only that moment.
        `recording` spares reading the log, where the caller has just done so.
        """
        return explain_row(self._engine, self._record, self._options, at_ns, recording)

    def beside_the_log(self) -> list[Reason]:
        """Reasons for the request's time that the log does not know (a cache, a BLAS); never waits."""
        return beside_the_log(self._engine, self._record, self._options)

    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Call `callback(handle)` when the row is over: at once if it is, else on the engine thread.

        It must be quick; an exception in it is logged and goes no further.
        """
        self._record.when_done(lambda: callback(self))

    def orphan(self) -> None:
        """In a forked child: what is not over never will be."""
        self._record.orphan()

    def belongs_to(self, engine: Engine) -> bool:
        """Whether this engine computes the row."""
        return self._engine is engine

    def show(self) -> None:
        """Display this request's view again (in a notebook), or print its text so far."""
        if hooks.show is not None:
            hooks.show(self)
        else:
            print(printable(self.text_so_far))  # noqa: T201 - outside a notebook, showing is printing

    # ------------------------------------------------------------ waiting

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end and return the Result.

        Args:
            timeout: seconds; the row goes on when it passes.

        Raises:
            TimeoutError: the builtin one.
            Cancelled, RowFailed, GatewayDead: how the row ended; the first two carry what there was.
            WouldDeadlock: called on the engine thread, or by the holder of the device lease.
        """
        self._wait(timeout)
        error = self._make_error()
        if error is not None:
            raise error
        return self._make_result()

    def exception(self, timeout: float | None = None) -> MlxNotebookError | None:
        """Wait for the end; the error that `result()` would raise, or None."""
        self._wait(timeout)
        return self._make_error()

    @property
    def text(self) -> str:
        """The whole text; waits, and raises as `result()` does."""
        return self.result().text

    @property
    def reasoning(self) -> str | None:
        """The text inside the model's thinking marks, None without; waits, and raises as `result()` does."""
        return self.result().reasoning

    @property
    def parsed(self) -> Any:
        """What an answer with a shape says, None where it is not complete; waits, and raises as `result()` does."""
        return self.result().parsed

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All generated tokens; waits, and raises as `result()` does."""
        return self.result().token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities a token, None if not asked for; waits, and raises as `result()` does."""
        return self.result().logprobs

    @property
    def stats(self) -> dict[str, Any]:
        """Counts, times (ms) and rates (tokens/s); waits, and raises as `result()` does."""
        values = self.result().to_dict()
        return {k: v for k, v in values.items() if k.endswith(("_tokens", "_ms", "_tps")) or k.startswith("finish")}

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[str]:
        """Text deltas as they come; at the end raises as `result()` does."""
        position = 0
        while True:
            over = self.done()
            delta = self.text_from(position)
            if delta:
                position += len(delta)
                yield delta
            elif over:
                break
            else:
                self._wait_for_change(position)
        self.result()

    def __await__(self) -> Generator[Any, None, Result]:
        return self._await().__await__()

    async def __aiter__(self) -> AsyncIterator[str]:
        import asyncio

        position = 0
        while True:
            over = self.done()
            delta = self.text_from(position)
            if delta:
                position += len(delta)
                yield delta
            elif over:
                break
            else:
                self._refuse_to_block()
                try:
                    await asyncio.sleep(POLL_S)
                except asyncio.CancelledError:  # an interrupt of a cell may come as this, too
                    self.cancel()
                    registry.resume_all()
                    raise
                except KeyboardInterrupt:
                    interrupted(self)
                    raise
        await self._await()

    async def _await(self) -> Result:
        import asyncio

        self._refuse_to_block()
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        self.add_done_callback(lambda _handle: _wake(loop, woken))
        try:
            # Short waits: an interrupt reaches a coroutine only when its loop wakes by itself.
            while not self.done():
                await asyncio.wait([woken], timeout=0.1)
        except asyncio.CancelledError:
            self.cancel()
            registry.resume_all()
            raise
        except KeyboardInterrupt:
            interrupted(self)
            raise
        return self.result()

    def _wait(self, timeout: float | None) -> None:
        if self.done():
            return
        self._refuse_to_block()
        self.refuse_to_wait()
        try:
            if not sleep_until(self._record.over.wait, timeout):
                raise TimeoutError(f"request {self.id} is not done after {timeout} s; it goes on (cancel() ends it)")
        except KeyboardInterrupt:
            interrupted(self)
            raise

    def _wait_for_change(self, position: int) -> None:
        self._refuse_to_block()
        self.refuse_to_wait()
        try:
            record = self._record
            record.news.wait_until(lambda: record.length > position or record.done, SLICE_S)
        except KeyboardInterrupt:
            interrupted(self)
            raise

    @property
    def is_held_by_me(self) -> bool:
        """Whether this thread paused the gateway, and nobody else could make it go on."""
        return self._engine.pausing.is_held_by_me

    def refuse_to_wait(self) -> None:
        """Raise WouldDeadlock where `is_held_by_me`."""
        self._engine.pausing.refuse_to_wait(f"waiting for request {self.id}")

    def _refuse_to_block(self) -> None:
        if not self.done():
            refuse_to_block(f"waiting for request {self.id}")

    # ------------------------------------------------------------ outcome

    def _make_result(self) -> Result:
        record = self._record
        figures = figures_of(record.row, record.settled_ns)
        asked = self._options.get("logprobs") is not None
        return Result(
            text=self.text_so_far,
            token_ids=tuple(record.token_ids),
            finish_reason=str(record.reason),
            finish_detail=str(record.detail or ""),
            prompt_tokens=record.row.prompt_tokens,
            cached_tokens=record.row.cached_tokens,
            generated_tokens=len(record.token_ids),
            **asdict(figures),
            logprobs=tuple(record.logprobs) if asked else None,
            seed=int(self._options["seed"]),
            model=self.model,
            placement=self.placement,
            reasoning=record.reasoning,
            **self._answer(),
        )

    def _answer(self) -> dict[str, Any]:
        """What the answer says under its shape, read once: a pydantic class's validators are the user's code."""
        if self._parsed is None:
            self._parsed = answer_of(self._record, int(self._options["max_tokens"]))
        return self._parsed

    def _make_error(self) -> MlxNotebookError | None:
        """A fresh error object each time: a raised one carries its raiser's frames."""
        status = self.status
        if status is RowStatus.FINISHED:
            return None
        result = self._make_result()
        if status is RowStatus.CANCELLED:
            return Cancelled(f"request {self.id} was cancelled ({_CANCELLED_BY[self._record.detail]})", result=result)
        message, trace = self._record.error or ("unknown error", "")
        if self._record.died:
            return GatewayDead(message, gateway=self._engine.name, traceback_text=trace)
        return RowFailed(f"request {self.id} failed: {message}", result=result, traceback_text=trace)

    def __repr__(self) -> str:
        start = " ".join(self.text_so_far.split())
        shown = start if len(start) <= 60 else start[:59] + "\u2026"
        return f"<Handle {self.id} {self.status}: {len(self._record.token_ids)} tokens {shown!r}>"


_CANCELLED_BY: dict[FinishDetail | None, str] = {
    FinishDetail.USER: "asked for",
    FinishDetail.DEADLINE: "its deadline passed",
    FinishDetail.CLOSED: "its gateway was closed",
    None: "no reason recorded",
}


def _copied(value: Any) -> Any:
    """Dictionaries and lists anew, at any depth; what else a user put into them is theirs, and may refuse a copy."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, woken)
    except RuntimeError:
        log.debug("the loop that awaited a request is closed")

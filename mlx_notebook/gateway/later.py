"""A request whose prompt is made when another request is over: the next turn of a chat, for one.

Its handle is there at once and counts as open from then on: a gateway that closes settles it, `wait_idle`
waits for it. The prompt is made and encoded on a short-lived thread of its own, since encoding a long one on the
engine's would hold every running row up. Queue time and deadline count from that moment.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.errors import GatewayClosed, GatewayDead
from mlx_notebook.failure import as_text
from mlx_notebook.gateway import submission
from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.hooks import current_execution
from mlx_notebook.gateway.record import RowRecord
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.shapes import placement_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.placement import Capabilities, Placement
    from mlx_notebook.core.request import Request
    from mlx_notebook.gateway.handle import Progress
    from mlx_notebook.gateway.loading import ModelFacts
    from mlx_notebook.gateway.loop import EngineLoop
    from mlx_notebook.gateway.thread import Engine


class LaterHandle(Handle):
    """A handle that waits for another one first. `prompt_text` and `placement` are provisional until then.

    Threads: anybody may cancel while the making thread starts the row; the lock decides who was first.
    """

    def __init__(
        self, record: RowRecord, engine: Engine, options: dict[str, Any], model: str, *, after: Handle
    ) -> None:
        super().__init__(record, engine, options, model)
        self._after = after
        self._started = False
        self._starting = threading.Lock()

    def cancel(self) -> bool:
        """Ask for the row's end; a row that has not begun is over at once. False if it was over already."""
        with self._starting:
            begun = self._started
            self._started = True
        if begun:
            return super().cancel()
        return self._end(FinishReason.CANCELLED, FinishDetail.USER)

    def progress(self) -> Progress:
        """A snapshot for views; never waits."""
        shown = super().progress()
        begun = self._started or self.done()
        return shown if begun else replace(shown, waiting=f"request {self._after.id} comes first")

    def start(self, make: Callable[[], Request], place: Callable[[Request], Any]) -> None:
        """Make the request and submit it, unless it was cancelled or closed meanwhile; a failure is the row's."""
        with self._starting:
            if self._started or self.done():
                return
            self._started = True
        try:
            request = make()
            self._record.become(request, place(request))
            self.prompt_text, self.placement = request.prompt_text, self._record.placement
            self._engine.submit(request, self._record)
        except GatewayClosed:
            self._end(FinishReason.CANCELLED, FinishDetail.CLOSED)
        except GatewayDead as error:
            self._end(FinishReason.ERROR, None, (str(error), error.traceback_text), died=True)
        except BaseException as error:  # noqa: BLE001 - nobody is here to hear it: it becomes the row's own failure
            self._end(FinishReason.ERROR, None, as_text(error))

    def _end(
        self,
        reason: FinishReason,
        detail: FinishDetail | None,
        error: tuple[str, str] | None = None,
        *,
        died: bool = False,
    ) -> bool:
        if self.done():
            return False
        self._record.settle(reason, detail, error, died=died)
        self._engine.intake.end(self.id)
        return True


class Later:
    """Inherited by Gateway."""

    model_name: str
    _engine: Engine
    _facts: ModelFacts
    _capabilities: Capabilities
    _loop: EngineLoop
    _epoch: int

    def submit_after(self, after: Handle, make_prompt: Callable[[], Any], prompt: Any, /, **options: Any) -> Handle:
        """A request that is submitted when `after` is over, however it ended; its handle is there at once.

        Args:
            after: the request to wait for.
            make_prompt: gives the prompt then, on another thread.
            prompt: the prompt as far as it is known now: it is checked at once.
            options: as for `submit`, for a single answer.

        Raises:
            As `submit`; what is wrong only with the prompt made later fails the row.
        """
        engine = self._engine
        engine.check()

        def checked(asked: Any, held: dict[str, Any]) -> submission.Submission:
            memory = self._loop.scheduler.memory
            return submission.check_call(
                asked,
                held,
                facts=self._facts,
                capabilities=self._capabilities,
                kv_budget=memory.budget,
                prompt_cache=memory.prefixes.ceiling,
            )

        first = checked(prompt, options)
        if first.several:
            raise ValueError("submit_after takes one prompt and gives one answer")
        (known,), (held,) = first.requests, first.options
        # The seed that was drawn now is the one that holds.
        same = {**options, "seed": held["seed"]}

        def make() -> Request:
            return replace(checked(make_prompt(), same).requests[0], id=known.id)

        record = RowRecord(known, self._resolve(known), current_execution(), self, self._facts.thinking)
        handle = LaterHandle(record, engine, held, self.model_name, after=after)
        try:
            engine.expect(record)
            registry.keep(handle)
            after.add_done_callback(lambda _over: _begin(handle, make, self._resolve))
        except BaseException:  # refused, or interrupted half-way: a row that counts as open would never be over
            handle.cancel()
            raise
        return handle

    def _resolve(self, request: Request) -> Placement:
        cache_bytes = self._loop.scheduler.settings.prompt_cache
        return placement_of(request, self._capabilities, self._epoch, cache_bytes=cache_bytes)


def _begin(handle: LaterHandle, make: Callable[[], Request], place: Callable[[Request], Any]) -> None:
    if not handle.done():
        name = f"mlx-notebook request {handle.id}"
        threading.Thread(target=handle.start, args=(make, place), name=name, daemon=True).start()

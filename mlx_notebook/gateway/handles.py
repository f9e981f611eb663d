"""Several handles: a list with a list's manners, and waiting for many at once."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.gateway import waiting
from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.hooks import current_execution
from mlx_notebook.gateway.waiting import sleep_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from pandas import DataFrame

    from mlx_notebook.core.results import Result


class Handles(list[Handle]):
    """The handles of one call: `n > 1` samples, or a list of prompts, in order."""

    def results(self, timeout: float | None = None) -> list[Result]:
        """Every Result, in order; waits `timeout` seconds for all together, raises as `Handle.result` does."""
        end = None if timeout is None else time.monotonic() + timeout
        try:
            return [handle.result(None if end is None else max(0.0, end - time.monotonic())) for handle in self]
        except KeyboardInterrupt:
            if current_execution() is None:  # in a notebook the cell that submitted them decides
                self.cancel()
            raise

    def cancel(self) -> int:
        """Cancel all that are not over; how many were asked."""
        return sum(handle.cancel() for handle in self)

    def done(self) -> bool:
        """Whether all are over."""
        return all(handle.done() for handle in self)

    def to_frame(self) -> DataFrame:
        """A pandas frame, one row a handle, in order; waits; failed and cancelled rows keep what they had."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        shaped = ("parsed", "parse_error") if any(handle.shaped for handle in self) else ()
        names = [*_COLUMNS, *shaped]
        for handle in self:
            error = handle.exception()
            result = handle.result() if error is None else getattr(error, "result", None)
            values: dict[str, Any] = {} if result is None else result.to_dict()
            columns = {name: values.get(name) for name in names}
            rows.append({**columns, "error": None if error is None else str(error)})
        return pd.DataFrame(rows, columns=[*names, "error"])

    def __await__(self) -> Generator[Any, None, list[Result]]:
        return self._await().__await__()

    async def _await(self) -> list[Result]:
        try:
            return [await handle for handle in self]
        except BaseException:
            # Gathering is over: rows that nobody waits for any more would only hold places.
            if not all(handle.done() for handle in self):
                self.cancel()
            raise

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        return Handles(found) if isinstance(found, list) else found

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"


_COLUMNS = (
    "text",
    "finish_reason",
    "finish_detail",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "queue_ms",
    "ttft_ms",
    "tpot_ms",
    "seed",
)


def as_completed(handles: Iterable[Handle], timeout: float | None = None) -> Iterator[Handle]:
    """Yield each handle as its row ends, however it ends.

    Raises:
        TimeoutError: not all ended within `timeout` seconds of the first call.
        WouldDeadlock: called on the engine thread, by the lease's holder, or by who paused all of their gateways.
    """
    pending = dict.fromkeys(handles)
    count = len(pending)
    finished: queue.SimpleQueue[Handle] = queue.SimpleQueue()
    for handle in pending:
        handle.add_done_callback(finished.put)
    end = None if timeout is None else time.monotonic() + timeout
    while pending:
        if finished.empty():
            waiting.refuse_to_block("waiting for requests")
            waiting.refuse_where_paused(pending)
        try:
            found = _next(finished, pending, None if end is None else end - time.monotonic())
        except KeyboardInterrupt:
            waiting.interrupted(*pending)
            raise
        if found is None:
            raise TimeoutError(f"{len(pending)} of {count} requests are not done; they go on")
        if found in pending:  # each once, also where its callback comes after the fact
            del pending[found]
            yield found


def _next(finished: queue.SimpleQueue[Handle], pending: Mapping[Handle, None], timeout: float | None) -> Handle | None:
    """The next to come; None when the time has passed."""
    found: list[Handle] = []

    def take(seconds: float) -> bool:
        try:
            found.append(finished.get(timeout=seconds))
        except queue.Empty:
            # An interrupt elsewhere may have cut a callback short: look for oneself now and then.
            found.extend([handle for handle in pending if handle.done()][:1])
        return bool(found)

    return found[0] if sleep_until(take, timeout) else None


class Waited(NamedTuple):
    """What `wait` returns: two sets of handles."""

    done: set[Handle]
    not_done: set[Handle]


def wait(
    handles: Iterable[Handle],
    timeout: float | None = None,
    return_when: Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"] = "ALL_COMPLETED",
) -> Waited:
    """Wait for handles as `concurrent.futures.wait` does; running out of time is no error.

    Raises:
        ValueError: an unknown `return_when`.
    """
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(f"return_when={return_when!r}: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION")
    wanted = list(dict.fromkeys(handles))
    try:
        for handle in as_completed(wanted, timeout):
            failed = return_when == "FIRST_EXCEPTION" and handle.status is RowStatus.FAILED
            if return_when == "FIRST_COMPLETED" or failed:
                break
    except TimeoutError:
        pass
    done = {handle for handle in wanted if handle.done()}
    return Waited(done, set(wanted) - done)

"""What a page may ask of a gateway, by the words of docs/wire.md. Errors are raised with a sentence for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import as_int
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.static_html import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlx_notebook.core.recording import Recording
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.trace.trace import Trace

SLOWEST_MS = 60_000


def act(gateway: Gateway, asked: Mapping[str, Any]) -> object:
    """Do it; the value of the answer.

    Raises:
        ValueError, TypeError, LookupError, MlxNotebookError: it cannot be done; the sentence says why.
    """
    action = _ACTIONS.get(str(asked.get("do")))
    if action is None:
        raise ValueError(f"a page asked for {asked.get('do')!r}, which nobody knows")
    return action(gateway, asked)


def _handle(row_id: Any) -> Handle:
    handle = registry.handle(as_int("row", row_id, 0, None, "a row's number"))
    if handle is None:
        raise LookupError(f"request {row_id} is too long ago")
    return handle


def _cancel(_gateway: Gateway, asked: Mapping[str, Any]) -> int:
    return sum(_handle(row_id).cancel() for row_id in asked["rows"])


def _pause(gateway: Gateway, _asked: Mapping[str, Any]) -> None:
    gateway.engine.pausing.pause(wait=False)


def _resume(gateway: Gateway, _asked: Mapping[str, Any]) -> None:
    gateway.engine.pausing.resume(wait=False)


def _step(gateway: Gateway, asked: Mapping[str, Any]) -> None:
    steps = as_int("steps", asked.get("steps", 1), 1, 10_000, "a whole number from 1 to 10,000")
    gateway.engine.pausing.step(steps, wait=False)


def _pace(gateway: Gateway, asked: Mapping[str, Any]) -> None:
    delay = as_int("ms", asked["ms"], 0, SLOWEST_MS, f"milliseconds from 0 to {SLOWEST_MS:,}")
    gateway.engine.pausing.pace(delay / 1000, wait=False)


def _reprioritize(_gateway: Gateway, asked: Mapping[str, Any]) -> None:
    if not _handle(asked["row"]).reprioritize(asked["priority"]):
        raise ValueError(f"request {asked['row']} waits no more")


def _extend(_gateway: Gateway, asked: Mapping[str, Any]) -> int:
    return _handle(asked["row"]).extend(asked["tokens"])


def _token(gateway: Gateway, asked: Mapping[str, Any]) -> dict[str, Any]:
    handle, n = _handle(asked["row"]), int(asked["n"])
    recorder = gateway.engine.recorder
    with recorder.lock:
        found = token_of(recorder.refresh(), handle.id, n)
    pieces, known = handle.pieces(), handle.logprobs_so_far()
    found["text"] = clean_text(pieces[n - 1]) if 0 < n <= len(pieces) else ""
    if 0 < n <= len(known):
        one = known[n - 1]
        found["logprob"] = round(one.logprob, 3)
        found["top"] = [
            {"token_id": token_id, "text": clean_text(gateway.token_text(token_id)), "logprob": round(value, 3)}
            for token_id, value in one.top
        ]
    return found


def token_of(recording: Recording, row_id: int, n: int) -> dict[str, Any]:
    """What the log tells of one token: its id, how long its row waited for it, and who shared its step."""
    tokens = recording.tokens
    own = [i for i, row in enumerate(tokens["row"]) if row == row_id and n - 1 <= tokens["n"][i] <= n]
    place = next((i for i in own if tokens["n"][i] == n), None)
    if place is None:
        raise LookupError(f"the log knows no token {n} of request {row_id}")
    before = next((tokens["at"][i] for i in own if tokens["n"][i] == n - 1), recording.requests[row_id].admit_ns)
    step = tokens["step"][place]
    shared = [tokens["row"][i] for i in recording.tokens_of_step(step) if tokens["row"][i] != row_id]
    return {
        "token_id": tokens["token_id"][place],
        "step": step,
        "ms": round((tokens["at"][place] - before) / 1e6, 3),
        "shared": shared,
        "text": "",
        "logprob": None,
        "top": [],
    }


def token_of_trace(trace: Trace, row_id: int, n: int) -> dict[str, Any]:
    """The same from a trace, whose alternatives were not kept."""
    found, about = token_of(trace.recording, row_id, n), trace.about.get(row_id)
    if about is not None and 0 < n <= len(about.pieces):
        found["text"] = clean_text(about.pieces[n - 1])
    if about is not None and 0 < n <= len(about.logprobs):
        value = about.logprobs[n - 1]
        found["logprob"] = None if value is None else round(value, 3)
    return found


_ACTIONS: dict[str, Callable[[Gateway, Mapping[str, Any]], object]] = {
    "cancel": _cancel,
    "pause": _pause,
    "resume": _resume,
    "step": _step,
    "pace": _pace,
    "reprioritize": _reprioritize,
    "extend": _extend,
    "token": _token,
}

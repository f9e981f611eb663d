"""Feeds: what a view of a run reads, from a gateway at work or from a trace. They speak docs/wire.md.

One feed a view, over a recorder that all views of a gateway share. A feed costs nothing while nobody asks it; one that
was not asked for a while sends what it missed, or the whole history.

Threads: the publisher's calls all but `ask` and `whole`; the recorder's lock orders them.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.explain import explain
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.run_actions import act, token_of_trace
from mlx_notebook.notebook.run_cursor import ALL, Cursor, HandleWords, TraceWords, parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mlx_notebook.core.explain import TimedReason
    from mlx_notebook.core.recording import Recording
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.notebook.run_feed import Body
    from mlx_notebook.trace.trace import Trace


class TraceFeed:
    """A loaded trace: all of it at once, and nothing to act on."""

    live = False

    def __init__(self, trace: Trace, wants: Sequence[str] = ALL) -> None:
        self.title = trace.title
        self._trace = trace
        self._wants = tuple(wants)
        begin = trace.recording.begin_ns
        asked = [row.submit_ns for row in trace.recording.requests.values() if row.submit_ns >= 0]
        self._t0 = min([begin, *asked])

    def over(self) -> bool:
        """Never: it is looked at as long as somebody does, and there is no end to wait for."""
        return False

    def figures(self) -> dict[str, Any]:
        """What the gateway's were when the trace was made."""
        return {**figures_of(self._trace.figures), "missed": self._trace.missed}

    def whole(self, *, why: bool = False) -> Body:
        """Everything, as one body."""
        recording = self._trace.recording
        cursor = Cursor(TraceWords(self._trace), self._t0, self._wants)
        body = {**cursor.news(recording, recording.now_ns), "figures": self.figures()}
        if why:
            body["why"] = {str(row_id): told(self._trace.explain(row_id)) for row_id in recording.requests}
        return body

    def history(self) -> list[Body]:
        """Everything, in parts."""
        return parts_of(self.whole())

    def news(self) -> Body:
        """Nothing ever."""
        return {}

    def ask(self, asked: Mapping[str, Any]) -> object:
        """Why, and about tokens; nothing can be acted on."""
        if asked.get("do") == "why":
            at = asked.get("at")
            return told(self._trace.explain(int(asked["row"]), None if at is None else self._t0 + int(at) * 1000))
        if asked.get("do") == "token":
            return token_of_trace(self._trace, int(asked["row"]), int(asked["n"]))
        raise ValueError("this is a recorded run: nothing in it can be changed")

    def opened_by_reader(self) -> None:
        """Nothing can be held back."""

    def closed_by_reader(self) -> None:
        """Nothing is held back."""


class GatewayFeed:
    """A gateway at work. It does not keep the gateway alive."""

    live = True

    def __init__(
        self,
        gateway: Gateway,
        wants: Sequence[str] = ALL,
        *,
        last: int | None = None,
        rows: Collection[int] | None = None,
    ) -> None:
        self.title = gateway.name if gateway.name == gateway.model_name else f"{gateway.name} ({gateway.model_name})"
        self._gateway = weakref.ref(gateway)
        self._engine, loop = gateway.engine, gateway.loop
        self._t0 = loop.born_ns
        self._figures: dict[str, Any] = {}
        recorder = self._engine.recorder
        with recorder.lock:
            known = [*recorder.refresh().requests]
        since = known[-last] if last is not None and 0 < last <= len(known) else 0
        self._shown = (tuple(wants), rows, since)
        self._cursor = self._fresh()

    def _fresh(self) -> Cursor:
        return Cursor(HandleWords(), self._t0, *self._shown)

    def over(self) -> bool:
        """Whether the gateway is closed, dead or forgotten."""
        return not self._engine.alive

    def figures(self) -> dict[str, Any]:
        """The gateway at this moment; the last ones once it is gone."""
        gateway = self._gateway()
        if gateway is not None:
            pausing = self._engine.pausing
            self._figures = {
                **figures_of(gateway.stats().to_dict()),
                "places": self._places(),
                "paused": pausing.paused,
                "stepping": pausing.stepping,
                "delay_ms": round(pausing.delay_s * 1000),
                "missed": self._engine.recorder.recording.missed,
            }
        return dict(self._figures)

    def _places(self) -> int | None:
        loop = self._engine.loop
        return None if loop is None else loop.scheduler.settings.max_rows

    def history(self) -> list[Body]:
        """Everything the log still holds, in parts."""
        recorder = self._engine.recorder
        with recorder.lock:
            recording = recorder.refresh()
            self._cursor.forget()
            return parts_of(self._cursor.news(recording, time.monotonic_ns()))

    def news(self) -> Body:
        """What came since."""
        recorder = self._engine.recorder
        with recorder.lock:
            return self._cursor.news(recorder.refresh(), time.monotonic_ns())

    def whole(self, *, why: bool = False) -> Body:
        """Everything, as one body, without moving on."""
        recorder = self._engine.recorder
        with recorder.lock:  # no longer than a copy takes: the other views' news wait for it
            recording = recorder.refresh().copy()
        body = {**self._fresh().news(recording, time.monotonic_ns()), "figures": self.figures()}
        if why:
            ids = body.get("requests", {}).get("id", [])
            body["why"] = {str(row_id): told(_why(recording, row_id, None)) for row_id in ids}
        return body

    def ask(self, asked: Mapping[str, Any]) -> object:
        """Do what a page asks; waits for the engine's answer at most where there must be one (`extend`)."""
        if asked.get("do") == "why":
            at = asked.get("at")
            recorder = self._engine.recorder
            with recorder.lock:
                recording = recorder.refresh()
                return told(_why(recording, int(asked["row"]), None if at is None else self._t0 + int(at) * 1000))
        gateway = self._gateway()
        if gateway is None:
            raise ValueError("the gateway is gone")
        return act(gateway, asked)

    def opened_by_reader(self) -> None:
        """A view is open that can resume: who paused and waits need not be told that nobody would."""
        self._engine.pausing.watch(self)

    def closed_by_reader(self) -> None:
        """The last view was closed: a paused gateway goes on, unless another view watches it."""
        self._engine.pausing.unwatch(self)


def _why(recording: Recording, row_id: int, at_ns: int | None) -> list[TimedReason]:
    handle = registry.handle(row_id)
    if handle is None:
        return explain(recording, row_id, at_ns=at_ns, now_ns=time.monotonic_ns())
    return handle.explain(at_ns, recording=recording)


def told(reasons: Sequence[TimedReason]) -> list[dict[str, Any]]:
    """Reasons as the page gets them."""
    return [{"code": one.code, "text": one.text, "ms": round(one.ms, 3)} for one in reasons]


NO_LIMIT = 1 << 60


def figures_of(stats: Mapping[str, Any]) -> dict[str, Any]:
    """A gateway's statistics under the wire's names; what is not known is left out."""
    cache = stats.get("prompt_cache") or {}
    budget = stats.get("kv_budget_bytes")
    values = {
        "active": stats.get("active_rows"),
        "prefill": stats.get("prefill_rows"),
        "queued": stats.get("queued_rows"),
        "cache_hits": cache.get("hits"),
        "cache_misses": cache.get("misses"),
        "cache_tokens_reused": cache.get("tokens_reused"),
        "lease_holder": stats.get("lease_holder") or "",
        "tokens_per_s": round(float(stats.get("tokens_per_s") or 0.0), 1),
    }
    values.update({name: stats.get(name) for name in ("kv_bytes", "kv_projected_bytes", "steps", "model", "device")})
    return {
        **{name: value for name, value in values.items() if value is not None},
        "kv_budget_bytes": None if budget is None or budget >= NO_LIMIT else budget,
    }


def gateway_feed(
    gateway: Gateway, wants: Sequence[str] = ALL, *, last: int | None = None, rows: Collection[int] | None = None
) -> GatewayFeed:
    """A reading place in a gateway's run.

    Args:
        gateway: which; it is not kept alive.
        wants: the tables that the view is sent.
        last: only this many of the latest requests, and what comes after them.
        rows: only these requests.
    """
    return GatewayFeed(gateway, wants, last=last, rows=rows)


def trace_feed(trace: Trace, wants: Sequence[str] = ALL) -> TraceFeed:
    """A reading place in a recorded run."""
    return TraceFeed(trace, wants)

"""A trace: what one gateway's log held, kept apart from it; every view, frame, figure and export reads one.

Made from a live gateway (`gw.trace()`) or from a file (`mlx_notebook.load_trace`), where neither model nor
gateway is needed. No prompt and no answer is in it unless they were asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.explain import Tenure, TimedReason, explain
from mlx_notebook.core.placement import Reason
from mlx_notebook.core.recording import Recording, recording_of

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence

    from pandas import DataFrame


VIEWS = "mlx_notebook.notebook.views"
"""Views stand above traces and are found by name when somebody asks for one."""


NOT_KEPT = "text no longer kept"
"""Stands for the words of a request whose handle the process let go: it keeps those of the latest requests."""


@dataclass(frozen=True, slots=True)
class About:
    """What the log does not know of a request.

    Attributes:
        model: who answered.
        options: what held, plain values; without `system`, `stop` and other text unless text was asked for.
        prompt: the prompt's text; "" where it was not asked for.
        title: the first line of what the user wrote; "" where text was not asked for.
        pieces: the text that each token brought, in order; empty where it was not asked for.
        logprobs: each token's natural logarithm of its probability; empty where there are none.
        messages: (role, content) of the chat that was asked with; empty without text, for raw prompts and token ids.
        beside: reasons for its time that the log does not know, as (code, sentence).
    """

    id: int
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    title: str = ""
    pieces: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    beside: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Trace:
    """One run.

    Attributes:
        title: the gateway's name.
        columns: the log's records, name to whole numbers (see `mlx_notebook.core.ring`); times in nanoseconds.
        missed: records that the log had forgotten when the trace was made.
        about: what is known of requests beside the log, by id.
        figures: the gateway's statistics when the trace was made.
        epoch_ns: what to add to a time of `columns` to have nanoseconds since 1970.
        with_text: whether prompts and answers are in it.
        tenures: who else held the device meanwhile.
    """

    title: str
    columns: Mapping[str, Sequence[int]]
    missed: int = 0
    about: Mapping[int, About] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    epoch_ns: int = 0
    with_text: bool = False
    tenures: tuple[Tenure, ...] = ()

    @cached_property
    def recording(self) -> Recording:
        """The records, sorted into requests, steps, chunks, tokens, waits and controls."""
        return recording_of([self.columns], self.missed)

    def title_of(self, row_id: int) -> str:
        """The first line of what the user wrote; "" where text was not asked for, a remark where it is gone."""
        about = self.about.get(row_id)
        if about is not None:
            return about.title
        return NOT_KEPT if self.with_text else ""

    def requests(self) -> DataFrame:
        """A pandas frame, one row a request; see `mlx_notebook.trace.frames.requests_frame` for its columns."""
        from mlx_notebook.trace.frames import requests_frame

        return requests_frame(self)

    def steps(self) -> DataFrame:
        """A pandas frame, one row a decode step."""
        from mlx_notebook.trace.frames import steps_frame

        return steps_frame(self)

    def tokens(self) -> DataFrame:
        """A pandas frame, one row a generated token."""
        from mlx_notebook.trace.frames import tokens_frame

        return tokens_frame(self)

    def explain(self, row_id: int, at_ns: int | None = None) -> list[TimedReason]:
        """Where a request's time went, in words, as `handle.explain()` says it; with `at_ns`, that moment.

        Raises:
            LookupError: the trace has no such request.
        """
        about = self.about.get(row_id)
        beside = [] if about is None else [Reason(code, text) for code, text in about.beside]
        return explain(self.recording, row_id, at_ns=at_ns, tenures=self.tenures, beside=beside)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write a file that opens in Perfetto and Chrome's tracing page, and in `mlx_notebook.load_trace`.

        A trace without text leaves the tokens' ids and log-probabilities out of it, which would tell the words.
        """
        from mlx_notebook.trace.file import save

        return save(self, path)

    def to_chrome(self) -> dict[str, Any]:
        """The same as a dictionary in the trace-event format."""
        from mlx_notebook.trace.file import document_of

        return document_of(self)

    def to_opentelemetry(self, tracer_provider: Any = None) -> int:
        """Give every finished request to OpenTelemetry; see `mlx_notebook.trace.otel.export`."""
        from mlx_notebook.trace.otel import export

        return export(self, tracer_provider)

    def dashboard(self) -> Any:
        """The dashboard as the run ended; shown by being a cell's last value. It has `to_html(path=None)`."""
        return importlib.import_module(VIEWS).dashboard_of_trace(self)

    def timeline(self) -> Any:
        """The timeline of the run; shown by being a cell's last value. It has `to_html(path=None)` and `selected`."""
        return importlib.import_module(VIEWS).timeline_of_trace(self)

    def stream(self, *ids: int) -> Any:
        """The answers of these requests (all, if none is named) as a cell showed them; it has `to_html(path=None)`.

        Raises:
            ValueError: the trace was made without text.
            LookupError: there is no such request, or its text was no longer kept.
        """
        return importlib.import_module(VIEWS).stream_of_trace(self, ids)

    def __repr__(self) -> str:
        recording = self.recording
        return (
            f"<Trace of {self.title!r}: {len(recording.requests)} requests, {len(recording.steps)} steps,"
            f" {len(recording.tokens)} tokens{', with text' if self.with_text else ''}>"
        )

"""What a stream view says on the wire. `js/src/wire.ts` is its mirror.

Kernel to page: the trait `snapshot` is the truth; custom messages of kind "delta" bring what
is new since the number before. Page to kernel: custom messages only (hello, view, visible,
selection, gone, resync, cancel, tokens, token). Plain JSON everywhere: some front ends lose binary buffers.
Nothing here knows a widget, a thread or a clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.notebook.static_html import clean_text, ending_reason, prompt_title

if TYPE_CHECKING:
    from mlx_notebook.notebook.row_source import RowProgress, RowSource


class Figures(TypedDict):
    """A row without its text. Counts are tokens; None = there is no such figure yet."""

    status: str
    prompt_tokens: int
    prefilled: int
    generated: int
    tps: float | None
    first_s: float | None
    seconds: int | None
    waiting: str
    note: str


class Snapshot(TypedDict):
    """The whole view. `count` makes each one differ from the last, so that a page that asks gets an answer."""

    seq: int
    count: int
    title: str
    final: bool
    rows: list[dict[str, Any]]


def figures(progress: RowProgress) -> Figures:
    """A row's figures as a page shows them, rounded so that what looks the same is the same."""
    waits = progress.status in (RowStatus.QUEUED, RowStatus.PREFILL)
    return {
        "status": str(progress.status),
        "prompt_tokens": progress.prompt_tokens,
        "prefilled": progress.prefilled,
        "generated": progress.generated_tokens,
        "tps": _rounded(progress.decode_tps),
        "first_s": _rounded(None if progress.ttft_ms is None else progress.ttft_ms / 1000),
        "seconds": int(progress.elapsed_ms // 1000) if waits else None,
        "waiting": clean_text(progress.waiting) if waits else "",
        "note": clean_text(ending_reason(progress)) if progress.status.final else _thinking(progress),
    }


def _thinking(progress: RowProgress) -> str:
    """What a row that runs needs said: that it is paused, or (its answer still being empty) that the model thinks."""
    if progress.paused:
        return "paused: resume() on its gateway, or the dashboard's button, lets it go on"
    return progress.thinking


def _rounded(value: float | None) -> float | None:
    return round(value, 1) if value is not None and math.isfinite(value) else None


class RowCursor:
    """How far the page has been told about one row."""

    def __init__(self, handle: RowSource, prompt: str) -> None:
        self._handle = handle
        self._prompt = prompt_title(prompt)
        self._told: dict[str, Any] = {}
        self._position = 0
        self._followers: set[str] = set()
        self._tokens = 0

    @property
    def followed(self) -> bool:
        """Whether a view wants the text token by token."""
        return bool(self._followers)

    def follow_tokens(self, on: bool, view: str) -> None:
        """Tell a view the text token by token too, from the first on; or no longer, as soon as no view wants it."""
        if on:
            self._followers.add(view)
            self._tokens = 0
        else:
            self._followers.discard(view)

    def tell_tokens_anew(self) -> None:
        """A page missed some: begin with the first again, for those who follow."""
        self._tokens = 0

    def whole(self) -> dict[str, Any]:
        """All there is to say about the row; what follows is told from here."""
        # The figures first: text may only grow beyond what they say, and a final status has all its text.
        self._told = dict(figures(self._handle.progress()))
        text = self._handle.text_so_far
        self._position = len(text)
        return {**self._told, "id": self._handle.id, "prompt": self._prompt, "text": clean_text(text)}

    def news(self) -> dict[str, Any]:
        """What changed since; empty if nothing did."""
        now = dict(figures(self._handle.progress()))
        news = {key: value for key, value in now.items() if self._told.get(key) != value}
        self._told = now
        if text := self._handle.text_from(self._position):
            self._position += len(text)
            news["add"] = clean_text(text)
        if self._followers and (tokens := self._new_tokens(self._tokens)) is not None:
            news["tok"] = tokens
        return news

    def _new_tokens(self, after: int) -> dict[str, Any] | None:
        handle = self._handle
        # The row's end first: the last token may get more text till then, and is held back.
        over = handle.done()
        pieces = handle.pieces(after)
        pieces = pieces if over else pieces[:-1]
        if not pieces:
            return None
        self._tokens = after + len(pieces)
        known = handle.logprobs_so_far(after)[: len(pieces)]
        chances = [_chance(one.logprob) for one in known]
        return {
            "from": after,
            "texts": [clean_text(piece) for piece in pieces],
            "chances": chances + [None] * (len(pieces) - len(chances)),
        }


def _chance(logprob: float) -> float | None:
    return round(math.exp(min(0.0, logprob)), 4) if not math.isnan(logprob) else None

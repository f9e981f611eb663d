"""What the dashboard and the timeline say on the wire. `js/src/boardwire.ts` is its mirror.

Kernel to page, custom messages:
  news     seq, whole, title, origin_ns, final; log (records of the ring, see `encode`), rows (what is
           new of some rows), figures (the gateway's), texts (pieces of followed rows).
           Records are found again by their index: a page takes what it lacks, and asks for what is
           missing. `whole` means that rows and figures are complete, so a page may begin here.
  ack      ask, ok, words: an action was heard, and what came of it in a sentence.
  because  ask, row, reasons [{code, text}]: why a row waited.
The trait `snapshot` is such a `news` message: without log while live, with all of it when final.

Page to kernel: hello, view, visible, selection, gone (as every view); want {after}: send the log from
that record on, and everything else whole; follow {rows}: send these rows' texts; do {ask, action,
row, value}: cancel, raise, extend, pause, resume, step, pace; why {ask, row, at_us}.

Counts are tokens; times are microseconds since `origin_ns`, or seconds where the name ends in `_s`.
Nothing here knows a widget, a thread or a clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypedDict

from mlx_notebook.core.ring import Kind
from mlx_notebook.notebook.static_html import clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.history import EventBatch

RECORDS_A_MESSAGE = 8_000
"""So many records make some 200 KB: history comes in parts that a page takes without a pause."""


class Log(TypedDict):
    """Records `first` on, in columns of one length; `missed` records before them are gone for good.

    `at` are microseconds since the origin: the first as it is, then differences. `spent` are microseconds.
    """

    first: int
    missed: int
    at: list[int]
    kind: list[int]
    row: list[int]
    step: list[int]
    a: list[int]
    b: list[int]
    spent: list[int]


class RowFacts(TypedDict):
    """What the log does not say of a row. `waiting` and `note` are sentences or empty."""

    id: int
    prompt: str
    status: str
    cached: int
    limit: int
    priority: int
    waiting: str
    note: str


class Figures(TypedDict):
    """The gateway at one moment; bytes are bytes. `paused` and `pace` (steps a second, 0 = full speed) are ours."""

    places: int
    active: int
    prefill: int
    queued: int
    tps: float
    kv_bytes: int
    kv_projected: int
    kv_budget: int
    weight_bytes: int
    cache_bytes: int
    cache_entries: int
    cache_hits: int
    cache_misses: int
    cache_tokens: int
    holder: str
    paused: bool
    pace: float
    closed: bool
    now_us: int


class Pieces(TypedDict):
    """Tokens `first` on of one row as text, one piece a token, with probabilities where they were asked for.

    `p` are probabilities of the tokens, `top` alternatives as [text, probability]; both empty without.
    """

    id: int
    first: int
    pieces: list[str]
    p: list[float | None]
    top: list[list[tuple[str, float]]]


class Why(TypedDict):
    """One reason in words."""

    code: str
    text: str


def encode(batch: EventBatch, origin_ns: int, limit: int = RECORDS_A_MESSAGE) -> Log:
    """The first `limit` records of a batch for the wire."""
    import numpy as np

    columns = {name: column[:limit] for name, column in batch.columns.items()}
    at = (columns["at_ns"] - origin_ns) // 1000
    at[1:] = np.diff(at)
    kind = columns["kind"]
    # A page has no use for token ids, and they are most of the bytes.
    a = np.where(kind == int(Kind.TOKEN), 0, columns["a"])
    return {
        "first": batch.first,
        "missed": batch.missed,
        "at": at.tolist(),
        "kind": kind.tolist(),
        "row": columns["row"].tolist(),
        "step": columns["step"].tolist(),
        "a": a.tolist(),
        "b": columns["b"].tolist(),
        "spent": (columns["spent_ns"] // 1000).tolist(),
    }


def pieces_of(text: str, ends: Sequence[int], first: int, *, over: bool) -> list[str]:
    """The text that each token from number `first` on brought; `ends` are the text's lengths after each token.

    What came after the last token (held-back text, flushed at the end) belongs to it once the row is `over`.
    """
    starts = [0, *ends]
    pieces = [clean_text(text[starts[i] : starts[i + 1]]) for i in range(first, len(ends))]
    if over and pieces:
        pieces[-1] = clean_text(text[starts[-2] :])
    return pieces


def probability(logprob: float) -> float | None:
    """A natural log-probability as a probability of four digits; None where it is no number."""
    return round(math.exp(min(logprob, 0.0)), 4) if not math.isnan(logprob) else None

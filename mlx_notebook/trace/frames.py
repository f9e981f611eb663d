"""A trace as pandas frames: requests, steps, tokens.

Times named `..._s` are seconds since the trace's first record, those named `..._ms` are lengths in milliseconds.
What never came is missing (NaN, or <NA> for whole numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.trace.trace import NOT_KEPT

if TYPE_CHECKING:
    from pandas import DataFrame

    from mlx_notebook.core.recording import RequestTrace
    from mlx_notebook.trace.trace import About, Trace


def requests_frame(trace: Trace) -> DataFrame:
    """One row a request, in order of submission; the index is `id`.

    Columns: `status, finish_reason, finish_detail, model, priority, prompt_tokens, cached_tokens, generated_tokens,
    max_tokens, slot, submitted_s, admitted_s, first_token_s, ended_s, queue_ms, prefill_ms, decode_ms, ttft_ms,
    tpot_ms, chunks, rewinds`; and `prompt, text` where the trace has text ("text no longer kept" where it had gone).
    """
    import pandas as pd

    recording = trace.recording
    chunks: dict[int, int] = {}
    for row_id in recording.chunks["row"]:
        chunks[row_id] = chunks.get(row_id, 0) + 1
    rows = [_request(trace, row, trace.about.get(row.id), chunks.get(row.id, 0)) for row in recording.requests.values()]
    frame = pd.DataFrame(rows, columns=["id", *_REQUEST, *(("prompt", "text") if trace.with_text else ())])
    return frame.set_index("id")


_REQUEST = (
    "status",
    "finish_reason",
    "finish_detail",
    "model",
    "priority",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "max_tokens",
    "slot",
    "submitted_s",
    "admitted_s",
    "first_token_s",
    "ended_s",
    "queue_ms",
    "prefill_ms",
    "decode_ms",
    "ttft_ms",
    "tpot_ms",
    "chunks",
    "rewinds",
)


def _request(trace: Trace, row: RequestTrace, about: About | None, chunks: int) -> dict[str, Any]:
    began = trace.recording.begin_ns
    values: dict[str, Any] = {
        "id": row.id,
        "status": str(row.status),
        "finish_reason": None if row.reason is None else str(row.reason),
        "finish_detail": None if row.detail is None else str(row.detail),
        "model": "" if about is None else about.model,
        "chunks": chunks,
        "rewinds": len(row.rewinds),
        "submitted_s": since(row.submit_ns, began),
        "admitted_s": since(row.admit_ns, began),
        "first_token_s": since(row.first_ns, began),
        "ended_s": since(row.end_ns, began),
        **figures_ms(row),
    }
    for name in ("priority", "prompt_tokens", "cached_tokens", "generated_tokens", "max_tokens", "slot"):
        values[name] = getattr(row, name)
    if trace.with_text:
        values["prompt"] = NOT_KEPT if about is None else about.prompt
        values["text"] = NOT_KEPT if about is None else "".join(about.pieces)
    return values


def figures_ms(row: RequestTrace) -> dict[str, float | None]:
    """A request's figures in milliseconds, None where what they need never came."""
    queued = row.admit_ns if row.admit_ns >= 0 else row.end_ns
    decode = _ms(row.first_ns, row.end_ns)
    later = row.generated_tokens - 1
    return {
        "queue_ms": _ms(row.submit_ns, queued),
        "prefill_ms": _ms(row.admit_ns, row.first_ns),
        "decode_ms": decode,
        "ttft_ms": _ms(row.submit_ns, row.first_ns),
        "tpot_ms": decode / later if decode is not None and later > 0 else None,
    }


def _ms(start_ns: int, end_ns: int) -> float | None:
    return (end_ns - start_ns) / 1e6 if start_ns >= 0 and end_ns >= 0 else None


def since(at_ns: int, begin_ns: int) -> float | None:
    """Seconds from the beginning, None where it has not come."""
    return (at_ns - begin_ns) / 1e9 if at_ns >= 0 else None


def steps_frame(trace: Trace) -> DataFrame:
    """One row a decode step; the index is `step`. Columns: `start_s, end_s, ms, rows, queued, tokens`."""
    import numpy as np
    import pandas as pd

    steps, began = trace.recording.steps, trace.recording.begin_ns
    start, end = (np.array(steps[name], dtype=np.int64) for name in ("start", "end"))
    numbers = np.array(steps["step"], dtype=np.int64)
    counted = pd.Series(np.array(trace.recording.tokens["step"], dtype=np.int64)).value_counts()
    return pd.DataFrame(
        {
            "start_s": (start - began) / 1e9,
            "end_s": (end - began) / 1e9,
            "ms": (end - start) / 1e6,
            "rows": np.array(steps["rows"], dtype=np.int64),
            "queued": np.array(steps["queued"], dtype=np.int64),
            "tokens": counted.reindex(numbers, fill_value=0).to_numpy(),
        },
        index=pd.Index(numbers, name="step"),
    )


def tokens_frame(trace: Trace) -> DataFrame:
    """One row a generated token, in order of time.

    Columns: `request, n` (1 is its first), `step, token_id, at_s, gap_ms` (since the request's token before), `shared`
    (rows that got a token in the same step), `user_ms` (the user's own code, where it was slow); `logprob` where it
    was asked for, and `text` where the trace has text. A file without text has neither `token_id` nor `logprob`.
    """
    import numpy as np
    import pandas as pd

    tokens, began = trace.recording.tokens, trace.recording.begin_ns
    columns = {name: np.array(tokens[name], dtype=np.int64) for name in tokens.names}
    at = pd.Series(columns["at"])
    frame = pd.DataFrame(
        {
            "request": columns["row"],
            "n": columns["n"],
            "step": columns["step"],
            "token_id": _ids(columns["token_id"]),
            "at_s": (columns["at"] - began) / 1e9,
            "gap_ms": at.groupby(columns["row"]).diff() / 1e6,
            "shared": pd.Series(columns["step"]).groupby(columns["step"]).transform("size"),
            "user_ms": columns["user"] / 1e6,
        }
    )
    pairs = list(zip(columns["row"].tolist(), columns["n"].tolist(), strict=True))
    if any(about.logprobs for about in trace.about.values()):
        frame["logprob"] = [_at(trace.about.get(row), "logprobs", n) for row, n in pairs]
    if trace.with_text:
        frame["text"] = [_at(trace.about.get(row), "pieces", n) or "" for row, n in pairs]
    return frame


def _ids(column: Any) -> Any:
    """Tokens' ids, missing where a file without text left them out."""
    import pandas as pd

    return pd.Series(column, dtype="Int64").mask(column < 0) if (column < 0).any() else column


def _at(about: About | None, what: str, n: int) -> Any:
    values = () if about is None else getattr(about, what)
    return values[n - 1] if 0 < n <= len(values) else None

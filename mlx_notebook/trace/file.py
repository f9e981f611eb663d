"""Trace files: one JSON document that Perfetto opens, and that `load_trace` reads back whole.

Beside the events of the trace-event format it holds, under "mlxNotebook", the log's own columns, so that
nothing is lost: every view, figure, frame and explanation works from a file as from the gateway. A file without
text has no token's id (-1 stands there) and no log-probability: with the model at hand both tell the words.
"""

from __future__ import annotations

import gzip
import json
import math
import pathlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from mlx_notebook.core.explain import Tenure
from mlx_notebook.core.ring import COLUMNS, Kind
from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.trace.chrome import events_of
from mlx_notebook.trace.trace import About, Trace

KEY = "mlxNotebook"
VERSION = 1

NO_ID = -1
"""Stands for a token's id in a file without text."""


def document_of(trace: Trace) -> dict[str, Any]:
    """The whole file as plain values."""
    columns = {name: [int(value) for value in trace.columns[name]] for name in COLUMNS}
    about = list(trace.about.values())
    if not trace.with_text:
        columns["a"] = [
            NO_ID if kind == Kind.TOKEN else a for kind, a in zip(columns["kind"], columns["a"], strict=True)
        ]
        about = [replace(one, logprobs=()) for one in about]
    return {
        "traceEvents": events_of(trace) if columns["kind"] else [],
        "displayTimeUnit": "ms",
        "otherData": {"producer": "mlx-notebook", "gateway": trace.title, "with_text": trace.with_text},
        KEY: {
            "version": VERSION,
            "title": trace.title,
            "missed": trace.missed,
            "epoch_ns": trace.epoch_ns,
            "with_text": trace.with_text,
            "figures": plain(trace.figures),
            "tenures": [list(one) for one in trace.tenures],
            "about": [plain({field.name: getattr(one, field.name) for field in fields(About)}) for one in about],
            "columns": columns,
        },
    }


def plain(value: Any) -> Any:
    """As JSON can carry it: no number for what is none (null), and what JSON does not know by its repr."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str | int) else repr(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return repr(value)


def save(trace: Trace, path: str | pathlib.Path) -> pathlib.Path:
    """Write a trace file (compressed where its name ends in `.gz`); the path.

    Raises:
        OSError: it cannot be written.
    """
    target = pathlib.Path(path)
    # No lone surrogate can be written as UTF-8: JSON's escapes carry them.
    text = json.dumps(document_of(trace), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    if target.suffix == ".gz":
        target.write_bytes(gzip.compress(text.encode("ascii"), mtime=0))
    else:
        target.write_text(text, encoding="ascii")
    return target


def load_trace(path: str | pathlib.Path) -> Trace:
    """Read a trace that `save_trace` wrote. No model is needed for it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no trace of ours; what is wrong is said.
    """
    source = pathlib.Path(path)
    content = source.read_bytes()
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        document = json.loads(content)
    except (ValueError, EOFError, OSError) as error:
        raise NotATrace(f"{source} is not a trace file: {error}") from error
    kept = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(kept, dict):
        what = "has trace events, but not the log itself" if _has_events(document) else "is not a trace file"
        raise NotATrace(f"{source} {what}: load_trace reads what save_trace wrote.")
    if kept.get("version") != VERSION:
        raise NotATrace(
            f"{source} is a trace of version {kept.get('version')!r}, and this package reads version {VERSION}:"
            " use the mlx-notebook that wrote it, or a newer one."
        )
    try:
        return _trace_of(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise NotATrace(f"{source} is a damaged trace file: {error!r}") from error


class NotATrace(MlxNotebookError, ValueError):  # noqa: N818 - reads as what it says
    """A file that `load_trace` cannot read."""


def _has_events(document: Any) -> bool:
    return isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document)


def _trace_of(kept: dict[str, Any]) -> Trace:
    columns = {name: [int(value) for value in kept["columns"][name]] for name in COLUMNS}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its columns differ in length: {lengths}")
    names = {field.name for field in fields(About)}
    about = [About(**{name: value for name, value in one.items() if name in names}) for one in kept["about"]]
    trace = Trace(
        title=str(kept["title"]),
        columns=columns,
        missed=int(kept["missed"]),
        about={one.id: _as_made(one) for one in about},
        figures=dict(kept["figures"]),
        epoch_ns=int(kept["epoch_ns"]),
        with_text=bool(kept["with_text"]),
        tenures=tuple(Tenure(*one) for one in kept.get("tenures", ())),
    )
    _ = trace.recording  # a record of a kind that does not exist is found now, not in a view
    return trace


def _as_made(about: About) -> About:
    """With tuples again, where JSON has lists only."""
    messages, beside = (tuple((str(a), str(b)) for a, b in pairs) for pairs in (about.messages, about.beside))
    return replace(about, pieces=tuple(about.pieces), logprobs=tuple(about.logprobs), messages=messages, beside=beside)

"""A run as it stays in a notebook: a picture (PNG), a table, and plain text that no timing changes.

Made from the same tables that the page gets (docs/wire.md). The picture shows each row on a time axis: hatched while it
waited, chunks of its prompt, its answer, and a sign for how it ended.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any

from mlx_notebook.notebook.static_html import METADATA_KEY, clean_text
from mlx_notebook.plots import STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

MOST_ROWS = 60
SIGNS = {
    "queued": "\u25cb",
    "prefill": "\u25d0",
    "decode": "\u25cf",
    "finished": "\u2713",
    "cancelled": "\u2298",
    "failed": "!",
}
WORDS = {"prefill": "reading prompt", "decode": "writing"}

_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:baseline"


def frozen_run(
    body: Mapping[str, Any], *, title: str, view: str, selected: Sequence[int] = ()
) -> tuple[dict[str, str], dict[str, Any]]:
    """A MIME bundle (`image/png`, `text/html`, `text/plain`) and its output metadata.

    The table and the plain text hold no times: a notebook that says the same also is the same. Texts of the
    rows in `selected` stand below the table.
    """
    rows = rows_of(body)
    picture = base64.b64encode(png(body, title)).decode("ascii") if rows else ""
    # Terminals obey control characters: none of a title's gets there.
    printable = "".join(character for character in clean_text(title) if character.isprintable())
    plain = f"{view} of {printable}: {summary(rows)}"
    image = (
        f'<img alt="{escape(plain)}" style="max-width:100%" src="data:image/png;base64,{picture}">' if picture else ""
    )
    html = (
        f'<div class="mlx-notebook"><p style="margin:0 0 .3em"><b>{escape(clean_text(title))}</b>: {summary(rows)}</p>'
        f"{image}{_table(rows)}{_texts(body, rows, selected)}</div>"
    )
    data = {"text/plain": plain, "text/html": html}
    if picture:
        data["image/png"] = picture
    return data, {METADATA_KEY: {"view": view, "title": clean_text(title)}}


def rows_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The requests as one dictionary each, with their titles, in order of their numbers."""
    table = body.get("requests") or {"id": []}
    titles = body.get("titles") or {"id": [], "title": []}
    named = dict(zip(titles["id"], titles["title"], strict=True))
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    for row in rows:
        row["title"] = clean_text(named.get(row["id"], ""))
    return sorted(rows, key=lambda row: int(row["id"]))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """ "3 requests: 2 finished, 1 failed"."""
    counts = Counter(str(row["status"]) for row in rows)
    states = ", ".join(f"{counts[state]} {WORDS.get(state, state)}" for state in SIGNS if counts[state])
    return f"{len(rows)} request{'' if len(rows) == 1 else 's'}{': ' if states else ''}{states}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    heads = ("row", "state", "prompt", "prompt tokens", "answer tokens", "")
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in heads)
    lines = [_line(row) for row in rows[-MOST_ROWS:]]
    older = len(rows) - len(lines)
    note = f'<p style="opacity:.72">{older} older rows are not listed</p>' if older > 0 else ""
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(lines)}</table>{note}'


def _line(row: Mapping[str, Any]) -> str:
    state = str(row["status"])
    sign = f'<b style="color:{STATES[state]}">{SIGNS[state]}</b>'
    cells = (
        f"#{row['id']}",
        f'<span style="white-space:nowrap">{sign} {WORDS.get(state, state)}</span>',
        f"<bdi>{escape(str(row['title']))}</bdi>",
        str(row["prompt_tokens"]),
        str(row["generated_tokens"]),
        escape(clean_text(str(row.get("note", "")))),
    )
    return "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _texts(body: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], selected: Sequence[int]) -> str:
    table = body.get("texts") or {"row": [], "text": []}
    parts: dict[int, list[str]] = {}
    for row, text in zip(table["row"], table["text"], strict=True):
        parts.setdefault(int(row), []).append(str(text))
    known = {int(row["id"]) for row in rows}
    shown = [one for one in selected if one in known and one in parts]
    style = "white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0"
    texts = {one: escape(clean_text("".join(parts[one]))) for one in shown}
    return "".join(
        f'<p style="margin:.6em 0 0"><b>#{one}</b></p><pre style="{style}">\n{text}</pre>'
        for one, text in texts.items()
    )


def png(body: Mapping[str, Any], title: str) -> bytes:
    """The picture of a run. At most the last MOST_ROWS rows are drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = rows_of(body)[-MOST_ROWS:]
    figure = Figure(figsize=(9.6, 1.3 + 0.24 * len(rows)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    zero = min((row["submit"] for row in rows if row["submit"] >= 0), default=0)
    now = max([int(body.get("now", 0)), *(row["end"] for row in rows)], default=0)
    chunks = body.get("chunks") or {"row": [], "start": [], "end": []}
    for place, row in enumerate(rows):
        _draw_row(axes, place, row, zero, now)
    ids = {row["id"]: place for place, row in enumerate(rows)}
    for row_id, start, end in zip(chunks["row"], chunks["start"], chunks["end"], strict=True):
        if row_id in ids:
            _bar(axes, ids[row_id], start - zero, end - zero, color=STATES["prefill"])
    _label(axes, rows, title)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _bar(axes: Axes, place: int, start_us: float, end_us: float, **style: Any) -> None:
    axes.broken_barh([(start_us / 1e6, max(end_us - start_us, 1) / 1e6)], (place - 0.36, 0.72), **style)


def _draw_row(axes: Axes, place: int, row: Mapping[str, Any], zero: int, now: int) -> None:
    end = row["end"] if row["end"] >= 0 else now
    admitted = row["admit"] if row["admit"] >= 0 else end
    _bar(
        axes,
        place,
        row["submit"] - zero,
        admitted - zero,
        facecolor="none",
        edgecolor=STATES["queued"],
        hatch="////",
        lw=0,
    )
    if row["first"] >= 0:
        _bar(axes, place, row["first"] - zero, end - zero, color=STATES["decode"])
    if row["end"] >= 0:
        axes.annotate(
            SIGNS[row["status"]],
            (end / 1e6 - zero / 1e6, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            color=STATES[row["status"]],
            weight="bold",
        )


def _label(axes: Axes, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    from matplotlib.patches import Patch

    names = [f"#{row['id']} {_plain(str(row['title']))}" for row in rows]
    # A prompt may hold "$": that is no formula.
    axes.set_yticks(range(len(rows)), [name.replace("$", r"\$") for name in names], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("seconds")
    axes.set_title(_plain(clean_text(title)).replace("$", r"\$"), fontsize=10, loc="left")
    marks = [
        Patch(facecolor="none", edgecolor=STATES["queued"], hatch="////", lw=0, label="waiting for a place"),
        Patch(color=STATES["prefill"], label="reading the prompt"),
        Patch(color=STATES["decode"], label="writing"),
    ]
    endings = {str(row["status"]) for row in rows if row["end"] >= 0}
    marks += [Patch(alpha=0, label=f"{sign} {state}") for state, sign in SIGNS.items() if state in endings]
    axes.figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain(text: str) -> str:
    """A title that any font can draw on one line: others' signs become "?", control characters go."""
    short = "".join(character for character in text if character.isprintable())
    short = short if len(short) <= 32 else short[:31] + "\u2026"
    return "".join(c if ord(c) < 0x500 or c in "\u2026\u2013\u2014\u2018\u2019\u201c\u201d" else "?" for c in short)

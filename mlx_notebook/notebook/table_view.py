"""`--view table`: one line a row, as plain and escaped HTML text that updates itself.

No widget: a table changes slowly enough for display updates. The publisher's thread owns it after
`display()`. Like every saved output it carries no timings and no numbers that differ from run to run.
"""

from __future__ import annotations

import time
import uuid
from html import escape
from typing import TYPE_CHECKING, Any

from mlx_notebook.notebook.publisher import publisher
from mlx_notebook.notebook.static_html import METADATA_KEY, ending_note, prompt_title, running_note
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlx_notebook.notebook.row_source import RowProgress, RowSource

UPDATE_S = 0.5
SHOWN_CHARACTERS = 80
_HEADINGS = ("prompt", "status", "tokens", "text")
_NUMBERS = {"tokens"}


class TableView:
    """Some rows as a table that follows them to their ends.

    Args:
        rows: each row's prompt as its user wrote it (without the chat template's marks), and its handle.
        metadata: goes into the output's metadata, under "mlx_notebook".
    """

    def __init__(self, rows: Sequence[tuple[str, RowSource]], *, metadata: Mapping[str, Any]) -> None:
        self._rows = tuple(rows)
        self._metadata = metadata
        self._display_id = f"mlx-notebook-{uuid.uuid4().hex}"
        self._shown: dict[str, str] = {}
        self._due = 0.0

    def display(self) -> None:
        """Show the table in the running cell and let the publisher keep it up to date."""
        self._publish(update=False)
        publisher().follow(self)

    def tick(self) -> bool:
        """Send the table if it changed (publisher's thread); False once the rows have ended."""
        over = all(handle.done() for _, handle in self._rows)
        if over or time.monotonic() >= self._due:
            self._due = time.monotonic() + UPDATE_S
            self._publish(update=True)
        return not over

    def stop(self) -> None:
        """Show the rows as they stand (publisher's thread)."""
        self._publish(update=True)

    def _publish(self, *, update: bool) -> None:
        from IPython.display import publish_display_data

        data, metadata = table_bundle(self._rows, metadata=self._metadata)
        if data == self._shown:
            return
        self._shown = data
        publish_display_data(data, metadata, transient={"display_id": self._display_id}, update=update)
        publisher().spend()


def table_bundle(
    rows: Sequence[tuple[str, RowSource]], *, metadata: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The rows (prompt, handle) as a MIME bundle and its metadata; never waits."""
    lines = [_line(prompt, handle) for prompt, handle in rows]
    return tabulate(_HEADINGS, lines, numbers=_NUMBERS), {METADATA_KEY: dict(metadata)}


def _line(prompt: str, handle: RowSource) -> tuple[str, ...]:
    progress = handle.progress()
    text = " ".join(handle.text_so_far.split())
    return (_cut(prompt_title(prompt)), _state(progress), f"{progress.generated_tokens}", _cut(text))


def _state(progress: RowProgress) -> str:
    if not progress.status.final:
        return running_note(progress)
    return ending_note(progress) or str(progress.status)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "\u2026"


def tabulate(
    headings: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: frozenset[str] | set[str] = frozenset()
) -> dict[str, str]:
    """A table as `text/plain` (aligned columns) and `text/html` (escaped); columns in `numbers` align right."""
    clean = [[printable(cell).replace("\n", " ").replace("\t", " ") for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(headings, *clean, strict=True)]
    plain = []
    for line in (headings, *clean):
        cells = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for heading, cell, width in zip(headings, line, widths, strict=True)
        ]
        plain.append("  ".join(cells).rstrip())
    return {"text/plain": "\n".join(plain), "text/html": _html(headings, clean, numbers)}


def _html(headings: Sequence[str], lines: Sequence[Sequence[str]], numbers: frozenset[str] | set[str]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f'<{tag} style="text-align:{"right" if heading in numbers else "left"}">{escape(cell)}</{tag}>'
            for heading, cell in zip(headings, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(row("td", line) for line in lines)
    return f'<table class="mlx-notebook"><thead>{row("th", headings)}</thead><tbody>{body}</tbody></table>'

"""What stays in the notebook: answers as escaped `text/html` and `text/plain`, without script.

Made so that every reader of notebook files shows it: JupyterLab, GitHub, nbconvert, offline.
It carries no timings and no numbers that change from run to run, so that a notebook that says
the same also is the same. Nothing here reads a clock, waits, or talks to a page.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlx_notebook.notebook.row_source import RowProgress, RowSource

TITLE_CHARACTERS = 100
METADATA_KEY = "mlx_notebook"

# GitHub takes styles away: a <pre> keeps its lines there, and wraps wherever styles are kept.
_TEXT = (
    "margin:0;padding:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;background:none;border:0;"
    "font-family:var(--jp-content-font-family,system-ui,sans-serif);font-size:inherit;line-height:1.5"
)
_ASIDE = "margin:0.25em 0 0;opacity:0.72;font-size:0.92em"
_ROW = "margin:0 0 0.9em"


def clean_text(text: str) -> str:
    """The text without what UTF-8 cannot carry (lone surrogates); each becomes the replacement character."""
    return text.encode("utf-8", "replace").decode("utf-8") if _has_surrogate(text) else text


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


def prompt_title(prompt: str) -> str:
    """The prompt's first line that says something, cut to a title's length."""
    line = next((line.strip() for line in clean_text(prompt).splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARACTERS else line[: TITLE_CHARACTERS - 1].rstrip() + "…"


def ending_reason(progress: RowProgress) -> str:
    """What a reader has to know about how a row ended, beyond its status; "" where there is nothing."""
    detail = progress.finish_detail or ""
    if progress.status is RowStatus.FAILED:
        return progress.error or "no reason was recorded"
    if progress.status is RowStatus.CANCELLED:
        return {"deadline": "its deadline passed", "closed": "the gateway was closed"}.get(detail, "")
    if detail == "max_tokens":
        return f"cut at max_tokens={progress.generated_tokens}"
    return "cut: the model's context was full" if detail == "context" else ""


def ending_note(progress: RowProgress) -> str:
    """How a row ended, in words, where the status does not stand beside it; "" where it simply ended."""
    reason = ending_reason(progress)
    if progress.status is RowStatus.FINISHED:
        return reason
    return f"{progress.status}: {reason}" if reason else str(progress.status)


def running_note(progress: RowProgress) -> str:
    """What a row that has not ended is doing, in words."""
    if progress.status is RowStatus.QUEUED:
        return f"waiting: {progress.waiting}" if progress.waiting else "waiting"
    paused = "paused, " if progress.paused else ""
    if progress.status is RowStatus.PREFILL:
        return f"{paused}reading the prompt, {progress.prefilled:,} of {_tokens(progress.prompt_tokens)}"
    return f"{paused}answering, {_tokens(progress.generated_tokens)} so far"


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def frozen_bundle(
    handles: Sequence[RowSource],
    *,
    title: str,
    metadata: Mapping[str, Any],
    prompts: Sequence[str] | None = None,
) -> tuple[dict[str, str], dict[str, Any]]:
    """The rows' texts as they stand: a MIME bundle and its output metadata. Never waits.

    `text/plain` is the text itself (without characters that would move a terminal) for one row; rows
    are numbered where there are more, and a row that failed, was cancelled or still runs says so on a
    line of its own. `metadata` goes under "mlx_notebook"; its values must be what JSON can carry.
    `prompts` are what the user typed, the headings where there are several rows; without them the
    handles' own text.
    """
    # The figures before the text: a final status has all its text.
    rows = [(handle, handle.progress()) for handle in handles]
    prompts = [handle.prompt_text for handle in handles] if prompts is None else prompts
    parts_html: list[str] = []
    parts_plain: list[str] = []
    for number, ((handle, progress), prompt) in enumerate(zip(rows, prompts, strict=True), start=1):
        text = clean_text(handle.text_so_far)
        note = clean_text(ending_note(progress) if progress.status.final else running_note(progress))
        heading = f"{number}. {prompt_title(prompt)}" if len(rows) > 1 else ""
        parts_html.append(_row_html(heading, text, note))
        parts_plain.append(_row_plain(heading, text, "" if _whole(progress) else note))
    caption = f"{title}: " if title else ""
    html = f'<div class="mlx-notebook" aria-label="{escape(clean_text(caption))}answer">{"".join(parts_html)}</div>'
    return {"text/plain": printable("\n\n".join(parts_plain)), "text/html": html}, {METADATA_KEY: dict(metadata)}


def standalone_page(body: str, *, title: str) -> str:
    """A whole HTML page around a bundle's `text/html`: no script, nothing fetched."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(clean_text(title))}</title>"
        "<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;"
        "max-width:46rem;margin:2rem auto;padding:0 1rem}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _whole(progress: RowProgress) -> bool:
    """Whether the row's text is an answer that needs no remark in plain text."""
    return progress.status is RowStatus.FINISHED


def _row_html(heading: str, text: str, note: str) -> str:
    head = f'<p style="{_ASIDE}"><b>{escape(heading)}</b></p>' if heading else ""
    body = f'<pre style="{_TEXT}">{_pre(text)}</pre>' if text or not note else ""
    tail = f'<p style="{_ASIDE}">{escape(note)}</p>' if note else ""
    return f'<div style="{_ROW}">{head}{body}{tail}</div>'


def _pre(text: str) -> str:
    # A parser drops one line break right after <pre>: a text that begins with one gets another.
    return ("\n" if text.startswith("\n") else "") + escape(text)


def _row_plain(heading: str, text: str, note: str) -> str:
    return "\n".join(part for part in (heading, text, f"[{note}]" if note else "") if part)

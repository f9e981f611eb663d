"""A run as the messages of docs/wire.md: what changed since a view last asked, in columns.

A cursor is one view's place in a recording that views share. Nothing here knows a widget, a thread or a clock.
`js/src/boardwire.ts` reads what this writes; `run_wire.py` hands it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.recording import CAUSES, CONTROLS, LEASE_WORDS
from mlx_notebook.core.rows import RowStatus
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.run_words import ending, waiting
from mlx_notebook.notebook.static_html import clean_text
from mlx_notebook.trace.trace import NOT_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mlx_notebook.core.recording import Recording, RequestTrace, Table
    from mlx_notebook.notebook.run_feed import Body
    from mlx_notebook.trace.trace import Trace

ALL = ("requests", "steps", "chunks", "waits", "controls", "tokens", "texts")
"""What a view may want."""

PART = 20_000
"""Entries of one message of the history."""

WAITERS = 200
"""So many waiting rows are told why when the reason changes; those behind them hear when their turn is near."""


class Words:
    """What a feed asks about requests beside the log: title, model, text and log-probabilities of tokens."""

    def title(self, row_id: int) -> tuple[str, str] | None:
        """(first line of the prompt, or that it is gone, model); None if nothing is known yet."""
        raise NotImplementedError

    def pieces(self, row_id: int, after: int) -> list[str]:
        """The text of each token after the first `after`."""
        raise NotImplementedError

    def logprob(self, row_id: int, n: int) -> float | None:
        """Of token `n`, None where it was not asked for."""
        raise NotImplementedError


class HandleWords(Words):
    """From the handles that the process keeps."""

    def title(self, row_id: int) -> tuple[str, str] | None:
        handle = registry.handle(row_id)
        if handle is None:
            return (NOT_KEPT, "") if registry.let_go(row_id) else None
        return handle.title, handle.model

    def pieces(self, row_id: int, after: int) -> list[str]:
        handle = registry.handle(row_id)
        return [] if handle is None else handle.pieces(after)

    def logprob(self, row_id: int, n: int) -> float | None:
        handle = registry.handle(row_id)
        known = [] if handle is None or n < 1 else handle.logprobs_so_far(n - 1, n)
        return known[0].logprob if known else None


class TraceWords(Words):
    """From a trace; without text in it, titles are empty."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._about = trace.about

    def title(self, row_id: int) -> tuple[str, str] | None:
        about = self._about.get(row_id)
        return self._trace.title_of(row_id), "" if about is None else about.model

    def pieces(self, row_id: int, after: int) -> list[str]:
        about = self._about.get(row_id)
        return [] if about is None else list(about.pieces[after:])

    def logprob(self, row_id: int, n: int) -> float | None:
        about = self._about.get(row_id)
        known = () if about is None else about.logprobs
        return known[n - 1] if 0 < n <= len(known) else None


class Cursor:
    """How far one view has been told.

    Args:
        words: titles and texts.
        t0_ns: the run's zero.
        wants: tables of `ALL`.
        rows: only these requests; None for all.
        since_row: only requests from this id on.
    """

    def __init__(
        self,
        words: Words,
        t0_ns: int,
        wants: Sequence[str] = ALL,
        rows: Collection[int] | None = None,
        since_row: int = 0,
    ) -> None:
        self._words = words
        self._t0 = t0_ns
        self._wants = frozenset(wants)
        self._rows = None if rows is None else frozenset(rows)
        self._since = since_row
        self.forget()

    def forget(self) -> None:
        """Start from the beginning."""
        self._clock = 0
        self._read = dict.fromkeys(("steps", "chunks", "waits", "controls", "tokens"), 0)
        self._titled: set[int] = set()
        self._texts: dict[int, tuple[int, int]] = {}
        self._waiting: dict[int, str] = {}

    def news(self, recording: Recording, now_ns: int) -> Body:
        """A body of what changed since the last call; {} if nothing did. Under the recorder's lock."""
        changed = [row for row in recording.changed_since(self._clock) if self._shown(row.id)]
        self._clock = recording.clock
        rows = {row.id: row for row in changed}
        rows.update((row.id, row) for row in self._new_reasons(recording, rows))
        body: Body = {}
        if rows:
            rows = dict(sorted(rows.items()))
            body["requests"] = self._requests(recording, list(rows.values()))
            titles = self._titles(rows)
            if titles["id"]:
                body["titles"] = titles
        for name in ("steps", "chunks", "waits", "controls", "tokens"):
            if name in self._wants:
                body.update(self._table(name, getattr(recording, name)))
        if "texts" in self._wants:
            texts = self._new_texts(recording, rows)
            if texts["row"]:
                body["texts"] = texts
        if body:
            body["now"] = self._us(now_ns)
        return body

    def _shown(self, row_id: int) -> bool:
        return row_id >= self._since and (self._rows is None or row_id in self._rows)

    def _us(self, at_ns: int) -> int:
        return max(0, (at_ns - self._t0) // 1000) if at_ns >= 0 else -1

    # ------------------------------------------------------------ requests

    def _new_reasons(self, recording: Recording, already: Mapping[int, RequestTrace]) -> Iterator[RequestTrace]:
        """Rows that wait for something else than the page was told."""
        for row_id in [*self._waiting][:WAITERS]:
            row = recording.requests.get(row_id)
            if row is None or row.status is not RowStatus.QUEUED:
                self._waiting.pop(row_id)
            elif row_id not in already and waiting(recording, row) != self._waiting[row_id]:
                yield row

    def _requests(self, recording: Recording, rows: list[RequestTrace]) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [] for name in _REQUESTS}
        for row in rows:
            sentence = waiting(recording, row) if row.status is RowStatus.QUEUED else ""
            if sentence:
                self._waiting[row.id] = sentence
            values = (
                row.id,
                str(row.status),
                row.slot,
                row.priority,
                row.prompt_tokens,
                row.cached_tokens,
                row.prefilled,
                row.generated_tokens,
                row.max_tokens,
                self._us(row.submit_ns),
                self._us(row.admit_ns),
                self._us(row.first_ns),
                self._us(row.end_ns),
                str(row.reason or ""),
                str(row.detail or ""),
                len(row.rewinds),
                sentence,
                ending(row),
            )
            _append(columns, *values)
        return columns

    def _titles(self, rows: Mapping[int, RequestTrace]) -> dict[str, list[Any]]:
        titles: dict[str, list[Any]] = {"id": [], "title": [], "model": []}
        for row_id in rows:
            if row_id in self._titled or (known := self._words.title(row_id)) is None:
                continue
            self._titled.add(row_id)
            _append(titles, row_id, *map(clean_text, known))
        return titles

    # ------------------------------------------------------------ tables that grow

    def _table(self, name: str, table: Table) -> Body:
        since, self._read[name] = self._read[name], table.next
        if since >= table.next:
            return {}
        columns = {column: list(values) for column, values in table.since(since).items()}
        made = _MAKERS[name](self, columns)
        return {name: made} if next(iter(made.values())) else {}

    def _steps(self, columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        return {**columns, "start": self._times(columns["start"]), "end": self._times(columns["end"])}

    def _chunks(self, columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        columns = self._of_shown(columns)
        return {**columns, "start": self._times(columns["start"]), "end": self._times(columns["end"])}

    def _waits(self, columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        return {**columns, "at": self._times(columns["at"]), "cause": [CAUSES[code] for code in columns["cause"]]}

    def _controls(self, columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        words = [CONTROLS[code] for code in columns["what"]]
        values = [
            value // 1_000_000 if word == "pace" else value for word, value in zip(words, columns["value"], strict=True)
        ]
        # Who stands behind us in the line for the device is the scheduler's affair.
        keep = [i for i, word in enumerate(words) if word != "lease" or values[i] < len(LEASE_WORDS) - 2]
        made: dict[str, list[Any]] = {
            "at": self._times(columns["at"]),
            "what": words,
            "row": columns["row"],
            "value": values,
        }
        return {name: [column[i] for i in keep] for name, column in made.items()}

    def _tokens(self, columns: dict[str, list[int]]) -> dict[str, list[Any]]:
        columns = self._of_shown(columns)
        made: dict[str, list[Any]] = {name: columns[name] for name in ("row", "step", "n")}
        if any(columns["user"]):
            made["user"] = [ns // 1000 for ns in columns["user"]]
        known = [self._words.logprob(row, n) for row, n in zip(made["row"], made["n"], strict=True)]
        if any(one is not None for one in known):
            made["logprob"] = [None if one is None else round(one, 3) for one in known]
        return made

    def _of_shown(self, columns: dict[str, list[int]]) -> dict[str, list[int]]:
        if self._rows is None and not self._since:
            return columns
        keep = [i for i, row_id in enumerate(columns["row"]) if self._shown(row_id)]
        return {name: [column[i] for i in keep] for name, column in columns.items()}

    def _times(self, column: list[int]) -> list[int]:
        t0 = self._t0
        return [(at - t0) // 1000 for at in column]

    # ------------------------------------------------------------ texts

    def _new_texts(self, recording: Recording, changed: Mapping[int, RequestTrace]) -> dict[str, list[Any]]:
        """Text that tokens brought; a row's last token gets what was held back to the end."""
        texts: dict[str, list[Any]] = {"row": [], "n": [], "text": []}
        for row_id in {**changed, **dict.fromkeys(self._texts)}:
            row = recording.requests.get(row_id)
            if row is None:
                self._texts.pop(row_id, None)
                continue
            told, characters = self._texts.get(row_id, (0, 0))
            # The last token's text may still have grown: it is asked for again.
            again = max(0, told - 1)
            pieces = self._words.pieces(row_id, again)
            for n, piece in enumerate(pieces, start=again + 1):
                new = piece[characters:] if n == told else piece
                if new:
                    _append(texts, row_id, n, clean_text(new))
            if pieces:
                self._texts[row_id] = (again + len(pieces), len(pieces[-1]))
            if row.status.final and again + len(pieces) >= row.generated_tokens and self._settled(row_id):
                self._texts.pop(row_id, None)
        return texts

    @staticmethod
    def _settled(row_id: int) -> bool:
        handle = registry.handle(row_id)
        return handle is None or handle.done()


def _append(table: dict[str, list[Any]], *values: Any) -> None:
    for column, value in zip(table.values(), values, strict=True):
        column.append(value)


_REQUESTS = (
    "id",
    "status",
    "slot",
    "priority",
    "prompt_tokens",
    "cached_tokens",
    "prefilled",
    "generated_tokens",
    "max_tokens",
    "submit",
    "admit",
    "first",
    "end",
    "reason",
    "detail",
    "rewinds",
    "waiting",
    "note",
)

_MAKERS: dict[str, Callable[[Cursor, dict[str, list[int]]], dict[str, list[Any]]]] = {
    "steps": Cursor._steps,  # noqa: SLF001 - the class's own methods, by table
    "chunks": Cursor._chunks,  # noqa: SLF001
    "waits": Cursor._waits,  # noqa: SLF001
    "controls": Cursor._controls,  # noqa: SLF001
    "tokens": Cursor._tokens,  # noqa: SLF001
}


def parts_of(body: Body, entries: int = PART) -> list[Body]:
    """A history in pieces of at most so many entries, requests and titles first; each entry once, in order."""
    parts: list[Body] = [{}]
    room = entries
    for name, table in body.items():
        if not isinstance(table, dict) or name == "figures":
            continue
        length = len(next(iter(table.values())))
        begin = 0
        while begin < length:
            if room <= 0:
                parts.append({})
                room = entries
            stop = min(length, begin + room)
            parts[-1][name] = {column: values[begin:stop] for column, values in table.items()}
            room -= stop - begin
            begin = stop
    for part in parts:
        part["now"] = body.get("now", 0)
    return parts

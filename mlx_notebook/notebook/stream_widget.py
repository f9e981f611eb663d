"""The live view of a cell: some rows, streaming into one widget, freezing into text when they end.

Lifecycle of a `StreamView`: `display()` in the cell shows the widget and hands the view to the
publisher; every `tick()` sends what is new; when all rows have ended the display is replaced
by escaped text (`freeze.py`), and the widget closes once the page has that. Where no page
says hello in time, the display is updated as text instead; a late hello brings the widget back.

The thread contract: `display` belongs to the cell's thread; `tick`, `stop` and every trait to
the publisher's; `_on_message` comes on the kernel's main thread or on a comm subshell and only
notes facts under a lock, cancels (which never waits), and acknowledges.
`js/src/stream.ts` is this file's twin.
"""

from __future__ import annotations

import logging
import pathlib
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.execution import nobody_reads
from mlx_notebook.notebook.freeze import Freeze
from mlx_notebook.notebook.page_views import PageViews
from mlx_notebook.notebook.publisher import publisher
from mlx_notebook.notebook.static_html import frozen_bundle, standalone_page
from mlx_notebook.notebook.stream_wire import RowCursor, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlx_notebook.notebook.row_source import RowSource

_STATIC = pathlib.Path(__file__).parent.parent / "static"
STATIC_TICK_S = 0.5
SNAPSHOT_S = 5.0
SNAPSHOT_BYTES_PER_S = 50_000

_log = logging.getLogger("mlx_notebook")


class StreamWidget(anywidget.AnyWidget):
    """The widget: a snapshot trait out, custom messages both ways. Only the publisher's thread sets the trait."""

    _esm = _STATIC / "stream.js"
    _css = _STATIC / "stream.css"
    snapshot = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, *, title: str, rows: list[dict[str, Any]]) -> None:
        first: Snapshot = {"seq": 0, "count": 0, "title": title, "final": False, "rows": rows}
        super().__init__(snapshot=first)
        frontend.let_comms_use_subshell(self)
        self.on_msg(self._hello)

    @staticmethod
    def _hello(_widget: object, content: Mapping[str, Any], _buffers: object) -> None:
        if content.get("kind") == "hello":
            frontend.said_hello()

    def __repr__(self) -> str:
        return f"StreamWidget({len(self.snapshot['rows'])} rows)"


class StreamView(traitlets.HasTraits):
    """Rows of one cell, shown live. See the module's docstring for its lifecycle and which thread calls what.

    Args:
        handles: the rows; one widget shows them all.
        title: the line on top, usually the model's name.
        keep: leave the widget live at the end instead of freezing it.
        on_frozen: called once on the publisher's thread when the cell's output is text for good.
        metadata: goes into the frozen output's metadata under "mlx_notebook": model, source, revision, options, seed.
        prompts: what the user typed, a title for each row; without them the handles' own text, chat marks included.

    Attributes:
        selected: the numbers (ids) of the rows that the reader chose; may be set from Python too.
    """

    selected = traitlets.List(traitlets.Int())

    def __init__(
        self,
        handles: Sequence[RowSource],
        *,
        title: str,
        keep: bool = False,
        on_frozen: Callable[[], object] | None = None,
        metadata: Mapping[str, Any] | None = None,
        prompts: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._handles = tuple(handles)
        self._prompts = tuple(prompts) if prompts is not None else tuple(handle.prompt_text for handle in handles)
        self._title = title
        self._keep = keep
        self._metadata = dict(metadata or {})
        self._cursors = [RowCursor(*row) for row in zip(self._handles, self._prompts, strict=True)]
        self._views = PageViews()
        self._display_id = f"mlx-notebook-{uuid.uuid4().hex}"
        self._freeze = Freeze(self._views, self._publish_frozen, on_frozen)
        self._widget: StreamWidget | None = None
        self._making = threading.Lock()
        self._asked_tokens: deque[tuple[int, bool, str]] = deque()
        self._as_text = False
        self._asked_at = 0.0
        self._text_at = 0.0
        self._shown: dict[str, Any] = {}
        self._seq = 0
        self._count = 0
        self._next_snapshot = 0.0
        self._final_sent = False

    @property
    def widget(self) -> StreamWidget:
        """The widget, made at first use."""
        with self._making:
            if self._widget is None:
                rows = [cursor.whole() for cursor in self._cursors]
                self._widget = StreamWidget(title=self._title, rows=rows)
                traitlets.link((self, "selected"), (self._widget, "selected"))
                self._widget.on_msg(self._on_message)
                self._next_snapshot = time.monotonic() + SNAPSHOT_S
            return self._widget

    def __repr__(self) -> str:
        rows = len(self._handles)
        return f"<live view of {rows} row{'' if rows == 1 else 's'}{' of ' if self._title else ''}{self._title}>"

    def display(self) -> None:
        """Show the view in the running cell and let the publisher feed it. Returns at once."""
        self._asked_at = time.monotonic()
        if nobody_reads() or frontend.state() == "no" or not frontend.kernel_has_comms():
            self._as_text = True
            self._publish(*self._text_bundle(), update=False)
        else:
            self._publish(*self._live_bundle(), update=False)
        publisher().follow(self)

    def _ipython_display_(self) -> None:
        self.display()

    def _repr_mimebundle_(self, **_asked: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """For notebooks that are not IPython's (marimo); the page that shows it says hello, and is fed from then on."""
        return self._live_bundle()

    def to_html(self, path: str | pathlib.Path | None = None) -> str:
        """The rows' texts as they stand, as a whole HTML page; also written to `path` (UTF-8) if given."""
        data, _ = self._text_bundle()
        page = standalone_page(data["text/html"], title=self._title or "mlx-notebook")
        if path is not None:
            pathlib.Path(path).write_text(page, encoding="utf-8")
        return page

    def tick(self) -> bool:
        """Send what is new (publisher's thread)."""
        if self._final_sent:
            return self._after_the_end()
        ended = all(handle.done() for handle in self._handles)
        self._choose_form(ended)
        if self._as_text:
            self._tick_text()
        else:
            self._tick_widget(ended)
        if not ended:
            return True
        self._final_sent = True
        return self._after_the_end()

    def stop(self) -> None:
        """Freeze as things stand: nobody will tick this view again (publisher's thread)."""
        if self._keep and not self._as_text:
            self._send_snapshot(final=True)
        else:
            self._freeze.now()

    def _after_the_end(self) -> bool:
        """A page may come, come back or ask for more after all is said, as long as its view lives."""
        if not self._as_text:
            missed, asked = self._views.take_resync(), self._take_token_asks()
            if missed:
                self._send_snapshot(final=True)
            if missed or asked:
                self._send_tokens(anew=missed)
            if self._keep:
                return False
        more = self._freeze.tick()
        if self._freeze.widget_may_close and self._widget is not None:
            frontend.close_widget(self._widget)
            publisher().spend(2)
        return more

    def _choose_form(self, ended: bool) -> None:
        """Widget or text: where no page ever said hello it is text, and one that says it late gets the widget."""
        if self._views.heard:
            if self._as_text and not ended:
                self._as_text = False
                self._publish(*self._live_bundle(), update=True)
        elif not self._as_text and time.monotonic() - self._asked_at > frontend.HELLO_S:
            # A page that answered for another view is there, and merely busy.
            frontend.kept_silent()
            self._as_text = frontend.state() == "no"

    def _tick_text(self) -> None:
        now = time.monotonic()
        if now < self._text_at:
            return
        data, metadata = self._text_bundle()
        if data != self._shown:
            self._text_at = now + STATIC_TICK_S
            self._publish(data, metadata, update=True)

    def _tick_widget(self, ended: bool) -> None:
        self._take_token_asks()
        missed = self._views.take_resync()
        if ended:
            self._send_tokens(anew=missed)  # before the last snapshot, which has none: their last piece came only now
            self._send_snapshot(final=True)
        elif missed:
            self._send_snapshot(final=False)
            self._tell_tokens_anew()
        elif self._views.visible:
            self._send_delta()
            if time.monotonic() >= self._next_snapshot:
                self._send_snapshot(final=False)

    def _take_token_asks(self) -> bool:
        """Note which rows' texts pages want token by token; True if one wants one anew."""
        asked = False
        while self._asked_tokens:
            row, on, view = self._asked_tokens.popleft()
            self._cursors[row].follow_tokens(on, view)
            asked = asked or on
        return asked

    def _note_token_ask(self, content: Mapping[str, Any]) -> None:
        row = int(content["row"])
        if not 0 <= row < len(self._handles):
            raise IndexError(f"there is no row {row}")
        self._asked_tokens.append((row, bool(content["on"]), str(content["view"])))

    def _forget_follower(self, view: str) -> None:
        self._asked_tokens.extend((row, False, view) for row in range(len(self._cursors)))

    def _send_tokens(self, *, anew: bool) -> None:
        """The tokens that followers have not got yet, or all; nothing where nobody follows."""
        if anew:
            self._tell_tokens_anew()
        if any(cursor.followed for cursor in self._cursors):
            self._send_delta()

    def _tell_tokens_anew(self) -> None:
        for cursor in self._cursors:
            cursor.tell_tokens_anew()

    def _send_delta(self) -> None:
        rows = [{"i": i, **news} for i, cursor in enumerate(self._cursors) if (news := cursor.news())]
        if rows:
            self._seq += 1
            self.widget.send({"kind": "delta", "seq": self._seq, "rows": rows})
            publisher().spend()

    def _send_snapshot(self, *, final: bool) -> None:
        rows = [cursor.whole() for cursor in self._cursors]
        self._count += 1
        snapshot: Snapshot = {
            "seq": self._seq,
            "count": self._count,
            "title": self._title,
            "final": final,
            "rows": rows,
        }
        self.widget.snapshot = {**snapshot}
        publisher().spend()
        size = sum(len(row["text"]) for row in rows)
        self._next_snapshot = time.monotonic() + max(SNAPSHOT_S, size / SNAPSHOT_BYTES_PER_S)

    def _live_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = self.widget._repr_mimebundle_()
        data: dict[str, Any] = dict(bundle[0]) if bundle else {}
        return {**data, "text/plain": repr(self)}, {}

    def _text_bundle(self) -> tuple[dict[str, str], dict[str, Any]]:
        return frozen_bundle(self._handles, title=self._title, metadata=self._metadata, prompts=self._prompts)

    def _publish_frozen(self) -> None:
        if self._asked_at:  # what was never shown by us has no output to turn into text
            self._publish(*self._text_bundle(), update=True)

    def _publish(self, data: Mapping[str, Any], metadata: Mapping[str, Any], *, update: bool) -> None:
        from IPython.display import publish_display_data

        self._shown = dict(data)
        publish_display_data(dict(data), dict(metadata), transient={"display_id": self._display_id}, update=update)
        publisher().spend()

    def _on_message(self, _widget: object, content: Mapping[str, Any], _buffers: object) -> None:
        """Hear the page. An exception here would show nowhere, so every one is logged."""
        try:
            kind = content.get("kind")
            if kind == "cancel":
                self._cancel(content)
            elif kind == "tokens":
                self._note_token_ask(content)
                publisher().follow(self)
            elif kind == "token":
                self._tell_token(int(content["row"]), int(content["n"]))
            elif self._views.hear(content):
                if kind == "gone":
                    self._forget_follower(str(content["view"]))
                publisher().follow(self)
        except Exception:  # noqa: BLE001 - whatever a page may send, the kernel goes on
            _log.exception("a message of the page was not understood: %r", content)

    def _tell_token(self, row: int, n: int) -> None:
        """What is known of one token beside its text: its step, who shared it, how long it took, alternatives."""
        from mlx_notebook.notebook.token_facts import token_facts

        facts = token_facts(self._handles[row], n)
        self.widget.send({"kind": "token", "row": row, "n": n, "facts": facts})
        publisher().spend()

    def _cancel(self, content: Mapping[str, Any]) -> None:
        for index in content["rows"]:
            self._handles[index].cancel()
        self.widget.send({"kind": "ack", "ask": content["ask"]})
        publisher().spend()

"""A view of a run in the page: the lifecycle that the dashboard and the timeline share.

Shown by being a cell's last value (or by `display()`). While somebody looks, each `tick()` sends what is
new; a page that comes late, comes back or missed something gets the history. When the run is over, the
display becomes a picture and a table, and the widget goes. Where no page shows widgets, the picture
and the table are shown at once.

The thread contract: `display` and `to_html` belong to the caller's thread; `tick`, `stop` and the trait
`snapshot` to the publisher's; `_on_message` comes on the kernel's main thread or on a comm subshell,
acknowledges at once, and waits for the engine at most where an action has an answer (`extend`).
"""

from __future__ import annotations

import logging
import pathlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

import traitlets

from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.execution import nobody_reads
from mlx_notebook.notebook.freeze import Freeze
from mlx_notebook.notebook.page_views import PageViews
from mlx_notebook.notebook.publisher import publisher
from mlx_notebook.notebook.run_page import run_page
from mlx_notebook.notebook.run_picture import frozen_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.notebook.run_feed import Body, RunFeed
    from mlx_notebook.notebook.run_widget import RunWidget

FIGURES_S = 0.25
GONE_S = 3.0
"""A page that reloads has no view for a moment; longer without one means that the reader closed it."""

_log = logging.getLogger("mlx_notebook")


class RunView(traitlets.HasTraits):
    """A run, shown live. Made by `gateway.dashboard()` and `gateway.timeline()`.

    Attributes:
        selected: ids of the rows that the reader chose; may be set from Python too.
    """

    view: ClassVar[str]
    wants: ClassVar[tuple[str, ...]]
    widget_class: ClassVar[type[RunWidget]]
    can_resume: ClassVar[bool] = False
    """Whether it has a button that lets a paused gateway go on: only such a view may hold a pause."""

    selected = traitlets.List(traitlets.Int())

    def __init__(self, feed: RunFeed) -> None:
        super().__init__()
        self._feed = feed
        self._views = PageViews()
        self._display_id = f"mlx-notebook-{uuid.uuid4().hex}"
        self._freeze = Freeze(self._views, self._publish_frozen)
        self._widget: RunWidget | None = None
        self._making = threading.Lock()
        self._as_text = False
        self._final = False
        self._asked_at = 0.0
        self._seq = 0
        self._count = 0
        self._parts: list[Body] = []
        self._part = 0
        self._figures_at = 0.0
        self._unseen_since: float | None = None
        self._watched = False

    def __repr__(self) -> str:
        return f"<{self.view} of {self._feed.title}>"

    # ------------------------------------------------------------ the caller's thread

    @property
    def widget(self) -> RunWidget:
        """The widget, made at first use; its traits are this object's."""
        with self._making:
            if self._widget is None:
                traits = {name: getattr(self, name) for name in self._shared()}
                self._widget = self.widget_class(snapshot=self._snapshot(), **traits)
                for name in traits:
                    traitlets.link((self, name), (self._widget, name))
                self._widget.on_msg(self._on_message)
            return self._widget

    def _shared(self) -> tuple[str, ...]:
        return ("selected", "brush") if self.has_trait("brush") else ("selected",)

    def _ipython_display_(self) -> None:
        self.display()

    def _repr_mimebundle_(self, **_asked: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """For notebooks that are not IPython's (marimo); the page that shows it says hello, and is fed from then on."""
        return self._live_bundle()

    def display(self) -> None:
        """Show the view in the running cell and let the publisher feed it. Returns at once."""
        self._asked_at = time.monotonic()
        if self._final or nobody_reads() or frontend.state() == "no" or not frontend.kernel_has_comms():
            self._as_text = True
            self._publish(*self._frozen_bundle(), update=False)
            return
        self._publish(*self._live_bundle(), update=False)
        publisher().follow(self)

    def to_html(self, path: str | pathlib.Path | None = None) -> str:
        """The run as it stands, as one HTML file that needs no network and no kernel; written to `path` if given.

        The prompts and the texts that this view shows are in it, as text; the rows and steps that are chosen are
        chosen there too.
        """
        page = run_page(
            self.view,
            self._snapshot(final=True),
            self._feed.whole(why=True),
            static=self._static_html(),
            chosen={name: list(getattr(self, name)) for name in self._shared()},
        )
        if path is not None:
            pathlib.Path(path).write_text(page, encoding="utf-8")
        return page

    def close(self) -> None:
        """End the view: it becomes a picture and a table, and what it held back goes on."""
        self._let_go()
        self._final = True
        publisher().follow(self)

    # ------------------------------------------------------------ the publisher's thread

    def tick(self) -> bool:
        """Send what is new; False = nothing more will come until somebody asks."""
        over = self._final or self._feed.over()
        if self._as_text and (over or not self._views.heard):
            return False
        if self._as_text:
            self._be_live_again()
        if not over and not self._views.heard:
            return self._wait_for_a_page()
        if self._views.take_resync():
            self._parts, self._part = self._feed.history() or [{}], 0
            self._figures_at = 0.0
        if self._part < len(self._parts):
            self._send_part()
            return over or self._somebody_looks()
        if over:
            return self._end()
        if self._views.visible:
            self._send_news()
        return self._somebody_looks()

    def stop(self) -> None:
        """Freeze as things stand: nobody will tick this view again."""
        if not self._as_text:
            self._let_go()
            self._freeze.now()

    def _end(self) -> bool:
        """The last word, once. A page that comes after it was given the history by `tick`."""
        self._final = True
        if self._widget is not None and not self._widget.snapshot.get("final"):
            self._send_news()
            self._widget.snapshot = self._snapshot(final=True)
            publisher().spend()
        more = self._freeze.tick()
        if self._freeze.widget_may_close and self._widget is not None:
            frontend.close_widget(self._widget)
            publisher().spend(2)
        return more

    def _wait_for_a_page(self) -> bool:
        """Where no page ever says hello, the picture and the table replace the widget."""
        if time.monotonic() - self._asked_at <= frontend.HELLO_S:
            return True
        frontend.kept_silent()
        if frontend.state() == "no":
            self._as_text = True
            self._publish_frozen()
            return False
        return True

    def _be_live_again(self) -> None:
        """A page said hello after all: it was busy, not absent."""
        self._as_text = False
        self._publish(*self._live_bundle(), update=True)

    def _somebody_looks(self) -> bool:
        """A view that was closed holds nothing back; it is followed again when a page shows it again."""
        if self._views.count:
            if self.can_resume and not self._watched:
                self._watched = True
                self._feed.opened_by_reader()
            self._unseen_since = None
            return True
        now = time.monotonic()
        if self._unseen_since is None:
            self._unseen_since = now
        if now - self._unseen_since < GONE_S:
            return True
        self._let_go()
        return False

    def _let_go(self) -> None:
        self._watched = False
        if self.can_resume:
            self._feed.closed_by_reader()

    def _send_part(self) -> None:
        # The history counts as the present state: deltas go on from its number.
        message = {"kind": "history", "seq": self._seq, "part": self._part, "parts": len(self._parts)}
        self._send({**message, **self._parts[self._part]})
        self._part += 1
        if self._part == len(self._parts):
            self._parts, self._part = [], 0

    def _send_news(self) -> None:
        body = self._feed.news()
        now = time.monotonic()
        if body or now >= self._figures_at:
            if now >= self._figures_at:
                self._figures_at = now + FIGURES_S
                body = {**body, "figures": self._feed.figures()}
            self._seq += 1
            self._send({"kind": "delta", "seq": self._seq, **body})

    def _send(self, message: Mapping[str, Any]) -> None:
        self.widget.send(dict(message))
        publisher().spend()

    def _snapshot(self, *, final: bool = False) -> dict[str, Any]:
        self._count += 1
        return {
            "seq": self._seq,
            "count": self._count,
            "view": self.view,
            "title": self._feed.title,
            "live": self._feed.live,
            "final": final,
            "figures": self._feed.figures(),
        }

    # ------------------------------------------------------------ pictures

    def _static_html(self) -> str:
        html: str = self._frozen_bundle()[0]["text/html"]
        return html

    def _frozen_bundle(self) -> tuple[dict[str, str], dict[str, Any]]:
        return frozen_run(self._feed.whole(), title=self._feed.title, view=self.view, selected=self.selected)

    def _live_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = self.widget._repr_mimebundle_()
        data: dict[str, Any] = dict(bundle[0]) if bundle else {}
        return {**data, "text/plain": repr(self)}, {}

    def _publish_frozen(self) -> None:
        if self._asked_at:  # what was never shown has no output to turn into a picture
            self._publish(*self._frozen_bundle(), update=True)

    def _publish(self, data: Mapping[str, Any], metadata: Mapping[str, Any], *, update: bool) -> None:
        from IPython.display import publish_display_data

        publish_display_data(dict(data), dict(metadata), transient={"display_id": self._display_id}, update=update)
        publisher().spend()

    # ------------------------------------------------------------ the page's messages

    def _on_message(self, _widget: object, content: Mapping[str, Any], _buffers: object) -> None:
        """Hear the page. An exception here would show nowhere, so every one is logged."""
        try:
            if content.get("kind") == "ask":
                self._answer(content)
            elif self._views.hear(content):
                if content.get("kind") == "hello" and self._views.doubtful:
                    self._send({"kind": "who"})
                publisher().follow(self)
        except Exception:  # noqa: BLE001 - whatever a page may send, the kernel goes on
            _log.exception("a message of the page was not understood: %r", content)

    def _answer(self, content: Mapping[str, Any]) -> None:
        ask = int(content["ask"])
        self._send({"kind": "ack", "ask": ask})
        ok, value, error = True, None, ""
        try:
            value = self._feed.ask(content)
        except (MlxNotebookError, ValueError, TypeError, LookupError) as refused:
            ok, error = False, str(refused)
        self._send({"kind": "answer", "ask": ask, "ok": ok, "value": value, "error": error})
        publisher().follow(self)

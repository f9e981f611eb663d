"""What the pages have told about their views of one widget: shown or hidden, selected in, gone.

The thread contract: any thread may call anything; a lock guards the facts, nobody waits.
A page is one load of one browser tab (its id changes on reload), a view one place in it. A page that
came after another is most likely its reload: the other's views count no more, unless they are heard again
(two tabs may show one notebook; a view that is asked who is there says that it is here).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class _View:
    page: str
    shown: bool = True
    selecting: bool = False
    replaced: bool = False


class PageViews:
    """The views of one widget, as far as pages told of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: list[str] = []
        self._views: dict[str, _View] = {}
        self._resync = False
        self._had_views = False

    def hear(self, content: Mapping[str, Any]) -> bool:
        """Note what a page says; True if there may be something to send now."""
        kind, view = content.get("kind"), str(content.get("view", ""))
        with self._lock:
            if kind == "hello":
                self._hello(str(content["page"]))
            elif kind == "view":
                self._views[view] = _View(str(content["page"]), shown=bool(content["on"]))
                self._had_views = self._resync = True
            elif kind == "resync":
                self._resync = True
            elif kind == "gone":
                self._views.pop(view, None)
            elif kind == "here" and view in self._views:
                self._views[view].replaced = False
            elif kind == "visible" and view in self._views:
                self._views[view].replaced = False
                self._views[view].shown = bool(content["on"])
                self._resync = self._resync or bool(content["on"])
            elif kind == "selection" and view in self._views:
                self._views[view].replaced = False
                self._views[view].selecting = bool(content["active"])
            else:
                return False
        return True

    def _hello(self, page: str) -> None:
        if page not in self._pages:
            self._pages.append(page)
            for other in self._views.values():
                other.selecting = False
                other.replaced = True

    def take_resync(self) -> bool:
        """Whether a page asked for the whole since the last time."""
        with self._lock:
            asked, self._resync = self._resync, False
            return asked

    @property
    def heard(self) -> bool:
        """Whether any page said hello."""
        with self._lock:
            return bool(self._pages)

    @property
    def visible(self) -> bool:
        """Whether somebody may be looking."""
        with self._lock:
            return any(view.shown for view in self._views.values())

    @property
    def count(self) -> int:
        """How many views pages show or hide now, as far as anybody can tell: a page may vanish without a word."""
        with self._lock:
            return sum(not view.replaced for view in self._views.values())

    @property
    def doubtful(self) -> bool:
        """Whether there are views of which nobody knows whether a page took their place."""
        with self._lock:
            return any(view.replaced for view in self._views.values())

    @property
    def selecting(self) -> bool:
        """Whether a reader has a selection in a view."""
        with self._lock:
            return any(view.selecting for view in self._views.values())

    @property
    def all_replaced(self) -> bool:
        """Whether, after the display was updated, no page shows the widget any more.

        A page that was reloaded knows the output from the saved file, and updates do not reach it:
        its view stays, and so must the widget. A page that never said hello cannot be judged.
        """
        with self._lock:
            if self._views or not self._pages:
                return False
            return self._had_views or len(self._pages) == 1

"""The end of a live view: when its output becomes text, and when its widget may go.

Text comes as soon as the rows have ended, but not while a reader has a selection in the view;
the widget goes when no page shows it any more, never before. This decides; it sends nothing itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.notebook.page_views import PageViews

SELECTION_S = 600.0


class Freeze:
    """Turns one view's output into text, once. Belongs to the publisher's thread."""

    def __init__(
        self, views: PageViews, publish: Callable[[], object], on_frozen: Callable[[], object] | None = None
    ) -> None:
        self._views = views
        self._publish = publish
        self._on_frozen = on_frozen
        self._held_since: float | None = None
        self._frozen = False
        self._closed = False

    def tick(self) -> bool:
        """Freeze if nothing holds it; True = ask again."""
        if not self._frozen and not self._held():
            self.now()
        return not self._frozen

    def now(self) -> None:
        """Freeze whatever holds it."""
        if self._frozen:
            return
        self._frozen = True
        self._publish()
        if self._on_frozen is not None:
            self._on_frozen()

    @property
    def widget_may_close(self) -> bool:
        """True once: the page has the text and no view of the widget is left."""
        if not self._frozen or self._closed or not self._views.all_replaced:
            return False
        self._closed = True
        return True

    def _held(self) -> bool:
        """Whether a selection holds the freeze; not for ever, since a page can vanish with its selection."""
        if not self._views.selecting:
            return False
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since < SELECTION_S

"""What a view of a run reads: the messages of docs/wire.md, whoever makes them (a gateway, a loaded trace, a fake)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

Body = dict[str, Any]
"""The body of a delta or of a part of the history: tables as columns, see docs/wire.md."""


class RunFeed(Protocol):
    """One view's reading place in a run. The publisher's thread calls everything but `ask`; nothing may wait."""

    @property
    def title(self) -> str:
        """The line on top: the gateway and its model."""
        ...

    @property
    def live(self) -> bool:
        """Whether rows can be acted on; False for a loaded trace."""
        ...

    def over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def figures(self) -> dict[str, Any]:
        """The gateway at this moment."""
        ...

    def history(self) -> list[Body]:
        """Everything so far, in parts; `news` goes on from here."""
        ...

    def news(self) -> Body:
        """What is new since the last call; empty if nothing is."""
        ...

    def whole(self, *, why: bool = False) -> Body:
        """Everything so far as one body, `figures` too, without moving on; any thread.

        With `why`, `why` holds for each row (its id as text) the reasons [{code, text}].
        """
        ...

    def ask(self, asked: Mapping[str, Any]) -> object:
        """Do what a page asks, `asked["do"]`; any thread. Raises MlxNotebookError or ValueError with a sentence."""
        ...

    def opened_by_reader(self) -> None:
        """A view is open in a page, one that can resume what is paused."""
        ...

    def closed_by_reader(self) -> None:
        """The last view was closed: whatever it held back goes on."""
        ...

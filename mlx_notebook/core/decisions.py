"""The decision log: every event a scheduler was given, kept compactly, so that a run can be replayed.

Fed to a fresh scheduler with the same settings, the events give the same instructions again. Steps
are the bulk: they are kept in one array of integers (two times, then two words a row), some tens of
bytes each; rare events are kept as they are. What cannot change a decision (texts, log-probabilities,
user code) is left out.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.request import UserCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN, _STEP, _RARE = 0, 1, 2


class DecisionLog:
    """Events in order. Unbounded: some tens of bytes a step."""

    def __init__(self) -> None:
        self._order = bytearray()
        self._words: array[int] = array("q")
        self._rare: list[ev.Event] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Bytes of the bulk (rare events not counted)."""
        return len(self._order) + 8 * len(self._words)

    def add(self, event: ev.Event) -> None:
        """Keep one event, before the scheduler handles it."""
        if isinstance(event, ev.Turn) and event.order is None:
            self._order.append(_TURN)
            self._words.append(event.at_ns)
        elif isinstance(event, ev.StepDone) and all(
            o.finish is None and o.error is None and o.token_id is not None for o in event.outcomes
        ):
            self._order.append(_STEP)
            self._words.extend((event.at_ns, event.began_ns, len(event.outcomes)))
            for outcome in event.outcomes:
                self._words.append(outcome.row_id)
                self._words.append(outcome.token_id if outcome.token_id is not None else -1)
        else:
            self._order.append(_RARE)
            self._rare.append(_lean(event))

    def events(self) -> Iterator[ev.Event]:
        """All events, oldest first, as a scheduler would be given them."""
        words, rare = iter(self._words), iter(self._rare)
        for code in bytes(self._order):
            if code == _TURN:
                yield ev.Turn(next(words))
            elif code == _STEP:
                at_ns, began_ns, count = next(words), next(words), next(words)
                outcomes = tuple(ev.RowOutcome(next(words), next(words)) for _ in range(count))
                yield ev.StepDone(at_ns, began_ns, outcomes)
            else:
                yield next(rare)


def _lean(event: ev.Event) -> ev.Event:
    """The event without what cannot change a decision."""
    if isinstance(event, ev.Submitted):
        bare = replace(event.request, code=UserCode(), owned=(), prompt_text="", title="")
        return replace(event, request=bare)
    if isinstance(event, ev.StepDone):
        return replace(event, outcomes=tuple(replace(o, text="", logprob=None) for o in event.outcomes))
    return event

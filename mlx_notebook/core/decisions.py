"""The decision log: every event a scheduler was given, kept compactly, so that a run can be replayed.

Fed to a fresh scheduler with the same settings, the events give the same instructions again. Steps
are the bulk: they are kept in one array of integers (two times, then two words a row), some tens of
bytes each. All other events are kept as bytes: a log that only grows must not give the garbage collector
more objects to look at with every request. What cannot change a decision (texts, log-probabilities,
user code, whatever a policy named that is no row) is left out.
"""

from __future__ import annotations

import pickle
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.request import UserCode
from mlx_notebook.core.rows import FinishDetail, FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN, _STEP, _OTHER = 0, 1, 2

_REASONS, _DETAILS = list(FinishReason), list(FinishDetail)


class DecisionLog:
    """Events in order. Unbounded: some tens of bytes a step, some hundreds (and the prompt's ids) a request."""

    def __init__(self) -> None:
        self._order = bytearray()
        self._words: array[int] = array("q")
        self._others: list[bytes] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return len(self._order) + 8 * len(self._words) + sum(map(len, self._others))

    def add(self, event: ev.Event) -> None:
        """Keep one event, before the scheduler handles it."""
        if isinstance(event, ev.Turn) and event.order is None:
            self._order.append(_TURN)
            self._words.append(event.at_ns)
        elif isinstance(event, ev.StepDone) and all(outcome.error is None for outcome in event.outcomes):
            self._order.append(_STEP)
            self._add_step(event)
        else:
            self._order.append(_OTHER)
            self._others.append(pickle.dumps(_lean(event), pickle.HIGHEST_PROTOCOL))

    def _add_step(self, step: ev.StepDone) -> None:
        words, ends = self._words, [outcome for outcome in step.outcomes if outcome.finish is not None]
        words.extend((step.at_ns, step.began_ns, len(step.outcomes), len(ends)))
        for outcome in step.outcomes:
            words.append(outcome.row_id)
            words.append(outcome.token_id if outcome.token_id is not None else -1)
        for outcome in ends:
            if outcome.finish is not None:
                reason, detail = outcome.finish
                words.extend((outcome.row_id, _REASONS.index(reason), _DETAILS.index(detail)))

    def events(self) -> Iterator[ev.Event]:
        """All events, oldest first, as a scheduler would be given them."""
        words, others = iter(self._words), iter(self._others)
        for code in bytes(self._order):
            if code == _TURN:
                yield ev.Turn(next(words))
            elif code == _STEP:
                yield _step_from(words)
            else:
                yield pickle.loads(next(others))  # noqa: S301 - bytes that this very object wrote


def _step_from(words: Iterator[int]) -> ev.StepDone:
    at_ns, began_ns, count, ending = (next(words) for _ in range(4))
    tokens = [(next(words), next(words)) for _ in range(count)]
    ends = {next(words): (_REASONS[next(words)], _DETAILS[next(words)]) for _ in range(ending)}
    outcomes = [
        ev.RowOutcome(row_id, token_id if token_id >= 0 else None, finish=ends.get(row_id))
        for row_id, token_id in tokens
    ]
    return ev.StepDone(at_ns, began_ns, tuple(outcomes))


def _lean(event: ev.Event) -> ev.Event:
    """The event without what cannot change a decision."""
    if isinstance(event, ev.Submitted):
        bare = replace(event.request, code=UserCode(), owned=(), prompt_text="", title="")
        return replace(event, request=bare)
    if isinstance(event, ev.StepDone):
        return replace(event, outcomes=tuple(replace(o, text="", logprob=None) for o in event.outcomes))
    if isinstance(event, ev.Turn):
        return replace(event, order=tuple(int(name) for name in event.order or () if isinstance(name, int)))
    return event

"""The decision log: every event a scheduler was given, kept compactly, so that a run can be replayed.

Fed to a fresh scheduler with the same settings, the events give the same instructions again. Steps
are the bulk: two times and four bytes a row each, and the rows themselves only where they are not those of
the step before. All other events are kept as bytes: a log that only grows must not give the garbage collector
more objects to look at with every request. What cannot change a decision (texts, log-probabilities,
user code, whatever a policy named that is no row) is left out.
"""

from __future__ import annotations

import pickle
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_notebook.core import events as ev
from mlx_notebook.core.policy import id_of
from mlx_notebook.core.request import UserCode
from mlx_notebook.core.rows import FinishDetail, FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN, _OTHER, _STEP = 0, 1, 2
_ROWS, _ENDS = 4, 8
"""Added to _STEP: its rows are named (they are not those of the step before); some of them ended."""

_NONE = -1

_BARE: dict[str, Any] = {
    "code": UserCode(),
    "owned": (),
    "compiled": None,
    "model_class": None,
    "prompt_text": "",
    "title": "",
}

_REASONS, _DETAILS = list(FinishReason), list(FinishDetail)


class DecisionLog:
    """Events in order. Unbounded: tens of bytes a step, some hundreds (and the prompt's ids) a request."""

    def __init__(self) -> None:
        self._order = bytearray()
        self._words: array[int] = array("q")
        self._tokens: array[int] = array("i")
        self._others: list[bytes] = []
        self._rows: list[int] = []

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return len(self._order) + 8 * len(self._words) + 4 * len(self._tokens) + sum(map(len, self._others))

    def add(self, event: ev.Event) -> None:
        """Keep one event, before the scheduler handles it."""
        if isinstance(event, ev.Turn) and event.order is None:
            self._order.append(_TURN)
            self._words.append(event.at_ns)
        elif isinstance(event, ev.StepDone) and all(outcome.error is None for outcome in event.outcomes):
            self._add_step(event)
        else:
            self._order.append(_OTHER)
            self._others.append(pickle.dumps(_lean(event), pickle.HIGHEST_PROTOCOL))

    def _add_step(self, step: ev.StepDone) -> None:
        code, words = _STEP, self._words
        words.extend((step.at_ns, step.began_ns))
        rows = [outcome.row_id for outcome in step.outcomes]
        if rows != self._rows:
            code |= _ROWS
            self._rows = rows
            words.append(len(rows))
            words.extend(rows)
        self._tokens.extend(_NONE if o.token_id is None else o.token_id for o in step.outcomes)
        ends = [(o.row_id, *o.finish) for o in step.outcomes if o.finish is not None]
        if ends:
            code |= _ENDS
            words.append(len(ends))
            for row_id, reason, detail in ends:
                words.extend((row_id, _REASONS.index(reason), _DETAILS.index(detail)))
        self._order.append(code)

    def events(self) -> Iterator[ev.Event]:
        """All events, oldest first, as a scheduler would be given them."""
        words, tokens, others = iter(self._words), iter(self._tokens), iter(self._others)
        rows: list[int] = []
        for code in bytes(self._order):
            if code == _TURN:
                yield ev.Turn(next(words))
            elif code == _OTHER:
                yield pickle.loads(next(others))  # noqa: S301 - bytes that this very object wrote
            else:
                at_ns, began_ns = next(words), next(words)
                if code & _ROWS:
                    rows = [next(words) for _ in range(next(words))]
                ends = _ends_from(words) if code & _ENDS else {}
                yield ev.StepDone(at_ns, began_ns, tuple(_outcome(row, next(tokens), ends) for row in rows))


def _ends_from(words: Iterator[int]) -> dict[int, tuple[FinishReason, FinishDetail]]:
    return {next(words): (_REASONS[next(words)], _DETAILS[next(words)]) for _ in range(next(words))}


def _outcome(row_id: int, token_id: int, ends: dict[int, tuple[FinishReason, FinishDetail]]) -> ev.RowOutcome:
    return ev.RowOutcome(row_id, None if token_id == _NONE else token_id, finish=ends.get(row_id))


def _lean(event: ev.Event) -> ev.Event:
    """The event without what cannot change a decision."""
    if isinstance(event, ev.Submitted):
        # Whatever else a request carries was made by somebody else, and may not be written down.
        return replace(event, request=replace(event.request, **_BARE))
    if isinstance(event, ev.StepDone):
        return replace(event, outcomes=tuple(o._replace(text="", logprob=None, shares=()) for o in event.outcomes))
    if isinstance(event, ev.Turn):
        ids = map(id_of, event.order or ())
        return replace(event, order=tuple(row_id for row_id in ids if row_id is not None))
    return event

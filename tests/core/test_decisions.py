"""The decision log: what goes in comes out, less what decides nothing; the collector gets nothing more to visit."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.decisions import DecisionLog
from mlx_notebook.core.request import UserCode
from mlx_notebook.core.rows import FinishDetail, FinishReason
from tests.core.driving import placed, request

ASKED = request(1, 30, priority=2, deadline=5.0)
ERROR = ("ValueError: mine", "Traceback ...")
END = FinishReason.LENGTH, FinishDetail.MAX_TOKENS

EVENTS: list[ev.Event] = [
    ev.Submitted(1, 0, ASKED, placed(ASKED)),
    ev.LeaseGranted(2, 7),
    ev.LeaseWanted(3, 7),
    ev.LeaseUnwanted(4, 7),
    ev.LeaseLost(5),
    ev.Turn(6),
    ev.Turn(7, (3, 1, 2)),
    ev.PolicyFailed(7),
    ev.PrefillDone(8, 7, (ev.PrefillPart(1, 0, 30, last=True),), {1: ERROR}),
    ev.Kept(9, 4, 30, 1 << 40),
    ev.StepDone(10, 9, (ev.RowOutcome(1, 5), ev.RowOutcome(2, None), ev.RowOutcome(3, 0, finish=END))),
    ev.StepDone(11, 10, (ev.RowOutcome(1, 5, error=ERROR), ev.RowOutcome(2, 6, finish=END))),
    ev.StepDone(12, 11, ()),
    ev.StepDone(13, 12, (ev.RowOutcome(1, 5), ev.RowOutcome(4, (1 << 31) - 1))),
    ev.StepDone(14, 13, (ev.RowOutcome(1, 6), ev.RowOutcome(4, 7))),
    ev.StepDone(15, 14, (ev.RowOutcome(1, 6, finish=END), ev.RowOutcome(4, 7))),
    ev.StepDone(16, 15, (ev.RowOutcome(4, 6),)),
    ev.StepFailed(13, (1, 2), ERROR),
    ev.BudgetSet(14, 1 << 40),
    ev.CancelAsked(15, 1, FinishDetail.USER),
    ev.PauseAsked(16),
    ev.StepAsked(17, 3),
    ev.ResumeAsked(18),
    ev.PaceAsked(19, 5),
    ev.PriorityAsked(20, 1, -4),
    ev.ExtendAsked(21, 1, 9),
    ev.CloseAsked(22),
]


def logged(events: list[ev.Event]) -> list[ev.Event]:
    log = DecisionLog()
    for event in events:
        log.add(event)
    assert len(log) == len(events)
    return list(log.events())


def test_every_event_comes_out_as_it_went_in() -> None:
    assert [repr(event) for event in logged(EVENTS)] == [repr(replace_code(event)) for event in EVENTS]


def replace_code(event: ev.Event) -> ev.Event:
    """A request is compared by identity, and its code is not kept."""
    if isinstance(event, ev.Submitted):
        return replace(event, request=replace(event.request, code=UserCode(), prompt_text="", title=""))
    return event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_it_is_the_event_and_no_other(event: ev.Event) -> None:
    (out,) = logged([event])
    assert type(out) is type(event)
    if not isinstance(event, ev.Submitted):
        assert out == event


class Big:
    """Stands for what a user's code holds."""


def test_nothing_of_the_users_is_kept() -> None:
    big = Big()
    watched = weakref.ref(big)
    log = DecisionLog()
    with_code = replace(ASKED, code=UserCode(on_token=lambda *_, held=big: held))
    log.add(ev.Submitted(1, 0, with_code, placed(with_code)))
    log.add(ev.Turn(2, (big, 1)))
    log.add(ev.StepDone(3, 2, (ev.RowOutcome(1, 5, "text", error=ERROR),)))
    del big, with_code
    gc.collect()
    assert watched() is None
    _, turn, step = log.events()
    assert turn == ev.Turn(2, (1,))
    assert isinstance(step, ev.StepDone)
    assert step.outcomes[0].text == ""


def test_a_step_of_the_same_rows_takes_some_bytes_a_row() -> None:
    log = DecisionLog()
    step = ev.StepDone(1 << 60, 1 << 60, tuple(ev.RowOutcome(row, row, "text") for row in range(32)))
    log.add(step)
    before = log.nbytes
    log.add(step)
    assert log.nbytes - before == 1 + 2 * 8 + 32 * 4


def test_the_collector_gets_no_more_to_visit() -> None:
    log = DecisionLog()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        for event in EVENTS:
            log.add(event)
    gc.collect()
    assert len(gc.get_objects()) <= before
    assert log.nbytes < 20 * 4000


def test_a_request_is_kept_without_what_cannot_be_written_down() -> None:
    class Local:
        """A class of the user's that pickle cannot find."""

    asked = replace(
        request(1), compiled=threading.RLock(), model_class=Local, code=UserCode(on_token=print), owned=(lambda: None,)
    )
    log = DecisionLog()
    log.add(ev.Submitted(0, 0, asked, placed(asked)))
    (kept,) = log.events()
    assert isinstance(kept, ev.Submitted)
    assert kept.request.shape == asked.shape
    assert (kept.request.compiled, kept.request.model_class, kept.request.owned) == (None, None, ())

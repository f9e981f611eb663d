"""Very many waiting rows: what a turn looks at does not grow with the line."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.line import LOOK_AHEAD
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.core.scheduler import Scheduler, SchedulerSettings
from tests.core.driving import Drive, last_token, token

WAITING = 2000
ROWS = 4


@dataclass
class Crowd:
    """A scheduler with a full batch that writes, and many behind it."""

    drive: Drive
    looked: int = 0

    def since(self) -> int:
        """Rows looked at since the last time."""
        before, self.looked = self.looked, self.drive.scheduler.line.looked
        return self.looked - before


def crowd(policy: BuiltIn = BuiltIn.PRIORITY, *, prompt: int = 3, waiting: int = WAITING, budget: int = 99) -> Crowd:
    """`budget`: in rows' worth of bytes."""
    settings = SchedulerSettings(max_rows=ROWS, chunk=4, policy=policy, cost=CacheCost(1), budget=budget * BLOCK)
    drive = Drive(Scheduler(settings), Mechanism.CONTINUOUS)
    for row_id in range(ROWS):
        drive.submit(row_id)
    drive.grant()
    drive.until_decode(ROWS - 1)
    for row_id in range(ROWS, ROWS + waiting):
        drive.submit(row_id, prompt, priority=row_id % 3)
    made = Crowd(drive)
    made.since()
    return made


def test_a_full_batch_looks_at_nobody() -> None:
    full = crowd()
    for _ in range(10):
        full.drive.turn()
        full.drive.stepped(*(token(row_id) for row_id in range(ROWS)))
    assert full.since() == 0


@pytest.mark.parametrize("policy", [BuiltIn.PRIORITY, BuiltIn.SHORTEST])
def test_a_line_that_waits_for_memory_is_looked_at_once_till_something_changes(policy: BuiltIn) -> None:
    blocked = crowd(policy, prompt=BLOCK, budget=ROWS)  # two blocks each, where one was left by the row that goes
    blocked.drive.stepped(last_token(0), token(1), token(2), token(3))
    blocked.drive.turn()
    assert 0 < blocked.since() <= 2 * LOOK_AHEAD
    for _ in range(10):
        said = blocked.drive.turn()
        assert said == [ev.Decode((1, 2, 3))]
        blocked.drive.stepped(token(1), token(2), token(3))
    assert blocked.since() == 0
    # Somebody who came may be smaller: then it is looked at again.
    blocked.drive.submit(-1, 3, priority=9)
    assert ev.Open(-1) in blocked.drive.turn()
    assert blocked.since() <= 2 * LOOK_AHEAD


@pytest.mark.parametrize(
    ("event", "admitted"),
    [
        (ev.BudgetSet(0, 5 * BLOCK), 1),
        (ev.CancelAsked(0, 1, FinishDetail.USER), 1),
        (ev.ExtendAsked(0, 4, BLOCK), 0),
        (ev.PriorityAsked(0, 4, -1), 0),
        (ev.LeaseUnwanted(0), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_makes_room_is_seen(event: ev.Event, admitted: int) -> None:
    blocked = crowd(prompt=BLOCK, budget=ROWS, waiting=5)
    blocked.drive.stepped(last_token(0), token(1), token(2), token(3))
    assert not any(isinstance(step, ev.Open) for step in blocked.drive.turn())
    blocked.drive.feed(event)
    assert sum(isinstance(step, ev.Open) for step in blocked.drive.turn()) == admitted


@pytest.mark.parametrize("policy", [BuiltIn.PRIORITY, BuiltIn.SHORTEST])
def test_one_that_joins_is_found_at_once(policy: BuiltIn) -> None:
    busy = crowd(policy)
    writing = list(range(ROWS))
    for _ in range(20):
        busy.drive.stepped(last_token(writing[0]), *(token(row_id) for row_id in writing[1:]))
        (opened,) = [step.row_id for step in busy.drive.turn() if isinstance(step, ev.Open)]
        busy.drive.until_decode(opened)
        writing = [*writing[1:], opened]
    assert busy.since() <= 20 * 4


def test_behind_the_fence_nobody_is_looked_at() -> None:
    fenced = crowd(waiting=0)
    fenced.drive.feed(ev.LeaseWanted(0))
    for row_id in range(ROWS, ROWS + WAITING):
        fenced.drive.submit(row_id)
    fenced.drive.stepped(last_token(0), token(1), token(2), token(3))
    fenced.since()
    for _ in range(5):
        fenced.drive.turn()
    assert fenced.since() == 0

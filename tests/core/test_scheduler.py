"""The scheduler as sequences of events and instructions: one row's life, its ends, order and the batch."""

from __future__ import annotations

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.core.recording import recording_of
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.core.scheduler import LeaseState, Scheduler, SchedulerSettings
from tests.core.driving import (
    LENGTH,
    MS,
    Drive,
    cancelled,
    chunk,
    failed,
    last_token,
    placed,
    request,
    scheduler,
    token,
)

BOOM = ("ValueError: boom", "Traceback ...")


def test_a_rows_whole_life() -> None:
    drive = Drive()
    assert drive.submit(1, prompt=9) == [ev.AskLease()]
    assert drive.turn() == []  # nothing runs without the device
    assert drive.grant() == []
    assert drive.turn() == [ev.Open(1), chunk(1, 0, 4, last=False)]
    drive.prefilled(chunk(1, 0, 4, last=False))
    # The last token never stands in a chunk alone: the second chunk takes it along.
    assert drive.turn() == [chunk(1, 4, 9, last=True)]
    drive.prefilled(chunk(1, 4, 9, last=True))
    assert drive.turn() == [ev.Decode((1,))]
    assert drive.stepped(token(1)) == []
    assert drive.turn() == [ev.Decode((1,))]
    assert drive.stepped(last_token(1)) == [ev.Drop(1), ev.Settle(1, *LENGTH)]
    assert drive.turn() == [ev.GiveLease()]
    assert drive.turn() == []
    assert drive.scheduler.lease is LeaseState.NONE
    counters = drive.scheduler.counters
    assert (counters.submitted, counters.finished, counters.steps) == (1, 1, 2)


def test_times_and_chunks_are_what_the_events_said() -> None:
    drive = Drive()
    drive.submit(1, prompt=9)
    row = drive.scheduler.rows[1]
    drive.grant()
    drive.until_decode(1)
    drive.stepped(token(1))
    drive.stepped(last_token(1))
    assert row.queued_ns == 0
    assert row.lease_wanted_ns == 1 * MS
    assert row.admitted_ns == 3 * MS
    assert [(c.start, c.stop) for c in row.chunks] == [(0, 4), (4, 9)]
    assert all(c.began_ns < c.ended_ns for c in row.chunks)
    assert row.first_token_ns == row.chunks[-1].ended_ns + MS
    assert row.ended_ns == drive.now_ns == row.first_token_ns + MS
    assert row.generated_tokens == 2


@pytest.mark.parametrize(
    ("prompt", "size", "chunks"),
    [
        (1, 4, [(0, 1)]),
        (4, 4, [(0, 4)]),
        (5, 4, [(0, 5)]),
        (6, 4, [(0, 4), (4, 6)]),
        (9, 4, [(0, 4), (4, 9)]),
        (3, 1, [(0, 1), (1, 3)]),
    ],
)
def test_chunks_cover_the_prompt_and_leave_no_last_token_alone(
    prompt: int, size: int, chunks: list[tuple[int, int]]
) -> None:
    drive = Drive(scheduler(chunk=size))
    drive.submit(1, prompt)
    row = drive.scheduler.rows[1]
    drive.grant()
    drive.until_decode(1)
    assert [(c.start, c.stop) for c in row.chunks] == chunks


# ---------------------------------------------------------------- ends


def test_cancelled_while_it_waits_for_the_device_gives_up_the_place() -> None:
    drive = Drive()
    drive.submit(1)
    assert drive.cancel(1) == [*cancelled(1, opened=False), ev.GiveLease()]
    assert drive.scheduler.lease is LeaseState.NONE


def test_cancelled_in_the_queue_leaves_the_others_where_they_are() -> None:
    drive = Drive()
    for row_id in (1, 2, 3):
        drive.submit(row_id)
    assert drive.cancel(2) == cancelled(2, opened=False)
    assert [drive.scheduler.rows_ahead(n) for n in (1, 2, 3)] == [0, None, 1]


def test_cancelled_between_chunks_drops_what_was_computed() -> None:
    drive = Drive()
    drive.submit(1, prompt=20)
    drive.grant()
    first = drive.turn()[-1]
    assert isinstance(first, ev.Prefill)
    drive.prefilled(first)
    assert drive.cancel(1) == [*cancelled(1, opened=True), ev.GiveLease()]
    assert drive.turn() == []


def test_a_chunk_that_comes_back_after_the_cancel_is_nobodys() -> None:
    drive = Drive()
    drive.submit(1, prompt=20)
    drive.grant()
    first = drive.turn()[-1]
    assert isinstance(first, ev.Prefill)
    drive.cancel(1)
    assert drive.prefilled(first) == []
    assert drive.turn() == []


def test_cancelled_while_it_writes_the_next_row_comes() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.submit(2)
    assert drive.cancel(1) == cancelled(1, opened=True)
    assert drive.stepped(token(1)) == []
    assert drive.turn()[0] == ev.Open(2)


def test_cancelled_twice_and_unknown_rows_are_ignored() -> None:
    drive = Drive()
    drive.submit(1)
    drive.cancel(1)
    assert drive.cancel(1) == []
    assert drive.cancel(99) == []
    assert drive.scheduler.counters.cancelled == 1


@pytest.mark.parametrize("stage", ["waiting", "queued", "prefill", "decode"])
def test_a_deadline_ends_the_row_at_any_stage(stage: str) -> None:
    drive = Drive()
    if stage == "queued":
        drive.decode_row(9)
    drive.submit(1, prompt=20, deadline=1.0)
    assert drive.scheduler.next_deadline_ns == drive.scheduler.rows[1].deadline_ns
    if stage in ("prefill", "decode"):
        drive.grant()
        assert ev.Open(1) in drive.turn()
    if stage == "decode":
        drive.until_decode(1)
    drive.now_ns += 1000 * MS
    said = drive.turn()
    expected = cancelled(1, FinishDetail.DEADLINE, opened=stage in ("prefill", "decode"))
    assert said[: len(expected)] == expected
    rest = {"waiting": [ev.GiveLease()], "queued": [ev.Decode((9,))]}
    assert said[len(expected) :] == rest.get(stage, [ev.GiveLease()])
    assert drive.scheduler.next_deadline_ns is None


def test_a_deadline_in_the_future_ends_nothing() -> None:
    drive = Drive()
    drive.submit(1, deadline=1.0)
    drive.grant()
    drive.now_ns = 999 * MS - MS
    assert ev.Open(1) in drive.turn()


def test_a_failed_chunk_is_that_rows_end() -> None:
    drive = Drive()
    drive.submit(1)
    drive.submit(2)
    drive.grant()
    first = drive.turn()[-1]
    assert isinstance(first, ev.Prefill)
    assert drive.prefilled(first, BOOM) == failed(1, BOOM)
    assert drive.turn()[0] == ev.Open(2)


def test_a_rows_own_error_in_a_step_ends_that_row_and_counts_its_token() -> None:
    drive = Drive()
    drive.decode_row(1)
    row = drive.scheduler.rows[1]
    assert drive.stepped(ev.RowOutcome(1, 7, "x", error=BOOM)) == failed(1, BOOM)
    assert row.generated_tokens == 1
    assert drive.scheduler.counters.failed == 1


def test_a_failed_step_is_tried_again_once_from_what_was_committed() -> None:
    drive = Drive()
    drive.decode_row(1, prompt=6)
    drive.stepped(token(1), token(1))
    assert drive.feed(ev.StepFailed(0, (1,), BOOM)) == [ev.Rewind(1)]
    assert drive.scheduler.rows[1].status == "queued"
    # Eight known tokens now, answer included; it is open already.
    assert drive.turn() == [chunk(1, 0, 4, last=False)]
    drive.prefilled(chunk(1, 0, 4, last=False))
    assert drive.turn() == [chunk(1, 4, 8, last=True)]
    drive.prefilled(chunk(1, 4, 8, last=True))
    assert drive.turn() == [ev.Decode((1,))]
    drive.stepped(token(1))
    assert drive.feed(ev.StepFailed(0, (1,), BOOM)) == failed(1, BOOM)
    assert drive.turn() == [ev.GiveLease()]


def test_a_rewound_row_that_is_cancelled_in_the_queue_is_dropped() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.feed(ev.StepFailed(0, (1,), BOOM))
    assert drive.cancel(1) == [*cancelled(1, opened=True), ev.GiveLease()]


def test_a_rewound_row_comes_before_those_that_came_later() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.submit(2)
    drive.feed(ev.StepFailed(0, (1,), BOOM))
    assert drive.turn() == [chunk(1, 0, 3, last=True)]


def test_close_ends_every_row_and_refuses_what_comes_after() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.submit(2)
    assert drive.feed(ev.CloseAsked(0)) == [
        *cancelled(1, FinishDetail.CLOSED, opened=True),
        *cancelled(2, FinishDetail.CLOSED, opened=False),
        ev.GiveLease(),
    ]
    assert drive.submit(3) == cancelled(3, FinishDetail.CLOSED, opened=False)
    assert drive.turn() == []
    assert drive.scheduler.counters.cancelled == 3


@pytest.mark.parametrize("error", [None, BOOM], ids=["an empty part", "a failed one"])
def test_what_was_not_computed_teaches_no_costs(error: tuple[str, str] | None) -> None:
    drive = Drive(scheduler(max_rows=2, chunk=None), Mechanism.CONTINUOUS)
    drive.submit(1, prompt=65)
    drive.grant()
    (_, first) = drive.turn()
    assert isinstance(first, ev.Prefill)
    planner = drive.scheduler.planner
    for _ in range(20):
        planner.learn(64, 40 * MS)
    before = planner.budget(rows_wait=True)
    if error is None:
        first = chunk(1, 64, 65, last=True)
    drive.prefilled(first, error)  # within a millisecond, as the tests' clock goes
    assert planner.budget(rows_wait=True) == before


# ---------------------------------------------------------------- order and the batch


def test_the_highest_priority_goes_first_and_first_come_within_it() -> None:
    drive = Drive()
    for row_id, priority in ((1, 0), (2, 5), (3, 5), (4, -1), (5, 0)):
        drive.submit(row_id, priority=priority)
    drive.grant()
    assert opened(drive) == [2, 3, 1, 5, 4]


def opened(drive: Drive) -> list[int]:
    """Rows in the order in which they begin, each run to its end."""
    order = []
    while drive.scheduler.rows:
        for step in drive.turn():
            if isinstance(step, ev.Open):
                order.append(step.row_id)
            elif isinstance(step, ev.Prefill):
                drive.prefilled(step)
            elif isinstance(step, ev.Decode):
                drive.stepped(*(last_token(row_id) for row_id in step.row_ids))
    return order


def test_shortest_begins_with_the_least_work() -> None:
    drive = Drive(Scheduler(SchedulerSettings(max_rows=1, chunk=4, policy=BuiltIn.SHORTEST)))
    for row_id, prompt in ((1, 9), (2, 3), (3, 5), (4, 3)):
        drive.submit(row_id, prompt, priority=row_id % 2)
    drive.grant()
    assert opened(drive) == [2, 4, 3, 1]


def test_under_the_static_policy_nobody_joins_a_batch_that_writes() -> None:
    drive = Drive(Scheduler(SchedulerSettings(max_rows=2, chunk=4, policy=BuiltIn.STATIC)), Mechanism.CONTINUOUS)
    for row_id in (1, 2, 3, 4, 5):
        drive.submit(row_id)
    drive.grant()
    batches: list[tuple[int, ...]] = []
    while drive.scheduler.rows:
        for step in drive.turn():
            if isinstance(step, ev.Prefill):
                drive.prefilled(step)
            elif isinstance(step, ev.Decode):
                batches.append(step.row_ids)
                drive.stepped(last_token(max(step.row_ids)))  # the younger ends first, and its place stays empty
    assert batches == [(1, 2), (1,), (3, 4), (3,), (5,)]


def test_a_users_answer_says_who_begins_and_the_rest_follows_in_the_default_order() -> None:
    drive = Drive()
    for row_id in (1, 2, 3, 4):
        drive.submit(row_id)
    drive.grant()
    assert drive.feed(ev.Turn(0, (3,)))[0] == ev.Open(3)
    drive.cancel(3)
    assert opened(drive) == [1, 2, 4]


def test_a_row_that_can_no_longer_fit_says_so_at_its_turn_and_holds_nobody_up() -> None:
    settings = SchedulerSettings(max_rows=2, chunk=None, cost=CacheCost(10), budget=30 * BLOCK)
    drive = Drive(Scheduler(settings), Mechanism.CONTINUOUS)
    drive.submit(1)
    drive.grant()
    drive.until_decode(1)
    drive.submit(2, prompt=2 * BLOCK)  # with its answer three blocks
    drive.submit(3)
    drive.feed(ev.BudgetSet(0, 29 * BLOCK))
    said = drive.turn()
    (settled,) = [step for step in said if isinstance(step, ev.Settle)]
    assert (settled.row_id, settled.reason, settled.opened) == (2, FinishReason.ERROR, False)
    assert settled.error is not None
    assert f"{30 * BLOCK:,} bytes" in settled.error[0]
    assert f"{29 * BLOCK:,} bytes" in settled.error[0]
    assert ev.Open(3) in said
    assert drive.scheduler.counters.failed == 1
    assert not any(isinstance(step, ev.Drop) for step in said)


def test_one_that_has_begun_goes_on_alone_though_the_budget_sank() -> None:
    settings = SchedulerSettings(max_rows=2, chunk=None, cost=CacheCost(10), budget=30 * BLOCK)
    drive = Drive(Scheduler(settings), Mechanism.CONTINUOUS)
    drive.submit(1, prompt=2 * BLOCK)
    drive.grant()
    drive.until_decode(1)
    drive.feed(ev.BudgetSet(0, 10 * BLOCK))
    drive.submit(2)
    drive.stepped(token(1))
    drive.feed(ev.StepFailed(0, (1,), BOOM))
    (again,) = [step for step in drive.turn() if isinstance(step, ev.Prefill)]
    assert [part.row_id for part in again.parts] == [1]
    assert drive.scheduler.counters.failed == 0
    drive.prefilled(again)
    drive.until_decode(1)
    assert drive.stepped(last_token(1)) == [ev.Drop(1), ev.Settle(1, *LENGTH)]


def test_a_policys_failure_is_in_the_log_and_decides_nothing() -> None:
    drive = Drive()
    drive.submit(1)
    before = drive.scheduler.ring.recorded
    assert drive.feed(ev.PolicyFailed(0)) == []
    taken = drive.scheduler.ring.since(before)
    recording = recording_of([taken.columns])
    assert recording.controls_of("policy") == [(drive.now_ns, 0, 0)]


def test_a_higher_priority_does_not_interrupt_the_row_that_runs() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.submit(2, priority=9)
    assert drive.turn() == [ev.Decode((1,))]


def test_a_serial_row_runs_alone() -> None:
    drive = Drive(scheduler(max_rows=4, chunk=4))
    drive.submit(1)
    drive.submit(2)
    drive.grant()
    opened = [step for _ in range(3) for step in drive.turn() if isinstance(step, ev.Open)]
    assert opened == [ev.Open(1)]


def test_continuous_rows_fill_the_batch_prefill_included_and_no_further() -> None:
    drive = Drive(scheduler(max_rows=2, chunk=4), Mechanism.CONTINUOUS)
    for row_id in (1, 2, 3):
        drive.submit(row_id)
    drive.grant()
    # Both are admitted; one prompt is read at a time.
    assert drive.turn() == [ev.Open(1), ev.Open(2), chunk(1, 0, 3, last=True)]
    drive.prefilled(chunk(1, 0, 3, last=True))
    assert drive.turn() == [chunk(2, 0, 3, last=True)]
    drive.prefilled(chunk(2, 0, 3, last=True))
    assert drive.turn() == [ev.Decode((1, 2))]
    assert (drive.scheduler.queued, drive.scheduler.prefilling, drive.scheduler.decoding) == (1, 0, 2)
    drive.stepped(last_token(1), token(2))
    assert drive.turn() == [ev.Open(3), chunk(3, 0, 3, last=True), ev.Decode((2,))]


def test_a_serial_row_waits_for_the_batch_to_empty_and_holds_back_those_behind_it() -> None:
    drive = Drive(scheduler(max_rows=4, chunk=4), Mechanism.CONTINUOUS)
    drive.decode_row(1)
    alone, behind = request(2), request(3)
    drive.feed(ev.Submitted(0, 0, alone, placed(alone, Mechanism.SERIAL)))
    drive.feed(ev.Submitted(0, 0, behind, placed(behind, Mechanism.CONTINUOUS)))
    assert drive.turn() == [ev.Decode((1,))]
    drive.stepped(last_token(1))
    assert drive.turn()[0] == ev.Open(2)
    drive.prefilled(chunk(2, 0, 3, last=True))
    assert drive.turn() == [ev.Decode((2,))]
    drive.stepped(last_token(2))
    assert drive.turn()[0] == ev.Open(3)


def test_the_same_events_give_the_same_instructions() -> None:
    def run() -> list[list[ev.Instruction]]:
        drive = Drive(scheduler(max_rows=2, chunk=4), Mechanism.CONTINUOUS)
        said = [drive.submit(n, prompt=n * 3, priority=n % 2) for n in range(1, 5)]
        said += [drive.grant(), drive.turn(), drive.cancel(3), drive.turn(), drive.feed(ev.CloseAsked(0))]
        return said

    assert run() == run()


def test_reasons_and_statuses_agree() -> None:
    assert [reason.status for reason in FinishReason] == ["finished", "finished", "cancelled", "failed"]

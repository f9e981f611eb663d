"""Rows that share a beginning read it once, whatever becomes of the row that reads it."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.explain import TimedReason, explain
from mlx_notebook.core.line import MAX_PASSED_OVER
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.core.recording import recording_of
from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.core.sharing import SLACK
from mlx_notebook.notebook.run_words import waiting
from tests.core.sharing_run import BEGINNING, SharingRun, ends, settings

SHARED = len(BEGINNING)


def reasons(run: SharingRun, row_id: int, now_ns: int | None = None) -> dict[str, TimedReason]:
    taken = run.ring.since(0)
    return {one.code: one for one in explain(recording_of([taken.columns]), row_id, now_ns=now_ns)}


@pytest.mark.parametrize(
    "how",
    [{}, {"trimmable": False}, {"chunk": None}, {"policy": BuiltIn.SHORTEST}],
    ids=["trimmable", "not trimmable", "chunks by time", "shortest"],
)
def test_a_beginning_that_thirty_two_rows_share_is_read_once(how: dict[str, Any]) -> None:
    run = SharingRun(settings(**how))
    run.burst(32)
    run.finish()
    assert run.computed == SHARED + 32 * (20 - 1)
    assert run.cached() == [0] + [SHARED] * 31
    assert run.opened[0] == 1
    # Nobody takes turns with the one who reads for all.
    reading = [step.parts for step in run.prefills if step.parts[0].start < SHARED]
    assert {part.row_id for parts in reading for part in parts} == {1}


def test_what_is_left_of_all_is_read_together_and_all_write_together() -> None:
    run = SharingRun(settings(chunk=None))
    run.burst(8)
    run.finish()
    assert len(run.prefills[-1].parts) == 8
    assert run.decodes[0] == tuple(range(1, 9))


def test_in_deterministic_mode_chunks_stay_where_they_are() -> None:
    run = SharingRun(settings(deterministic=True))
    run.burst(32)
    run.finish()
    parts = [part for step in run.prefills for part in step.parts]
    assert all(part.start % 512 == 0 and (part.last or part.stop % 512 == 0) for part in parts)
    assert run.cached() == [0] + [1_536] * 31
    assert run.computed == 2_019 + 31 * (2_019 - 1_536)


@pytest.mark.parametrize("trimmable", [True, False])
def test_equal_prompts_are_read_once_to_their_last_token(*, trimmable: bool) -> None:
    run = SharingRun(settings(trimmable=trimmable))
    for row_id in range(1, 9):
        run.submit(row_id, BEGINNING, sampling=SamplingOptions(max_tokens=2, temperature=0.1 * row_id, seed=row_id))
    run.finish()
    assert run.computed == SHARED - 1
    assert run.cached() == [0] + [SHARED - 1] * 7
    assert run.decodes[0] == tuple(range(1, 9))


def test_requests_that_come_while_the_beginning_is_read_wait_too() -> None:
    run = SharingRun(settings(trimmable=False))
    run.burst(1)
    run.turn()
    assert run.rows[1].prefilled == 512
    run.submit(2, (*BEGINNING, *ends(2)))
    run.finish()
    assert run.cached() == [0, SHARED]


def test_one_who_read_past_it_is_not_waited_for() -> None:
    run = SharingRun(settings(trimmable=False))
    run.burst(1)
    run.turn()
    run.submit(2, (*BEGINNING[:500], *ends(2, 900)))
    run.turn()
    assert run.opened == [1, 2]
    run.finish()


def test_one_read_in_a_single_chunk_before_others_came_stopped_where_its_call_said() -> None:
    run = SharingRun(settings(trimmable=False, chunk=4_000))
    run.submit(1, (*BEGINNING, *ends(1)), boundaries=(SHARED,))
    run.turn()
    run.turn()
    run.submit(2, (*BEGINNING, *ends(2)))
    run.finish()
    assert run.cached() == [0, SHARED]


@pytest.mark.parametrize("done", [0, 2], ids=["at once", "half-way"])
def test_if_the_reader_is_cancelled_the_next_one_reads(done: int) -> None:
    run = SharingRun()
    run.burst(5)
    for _ in range(1 + done):
        run.turn()
    assert run.opened == [1]
    run.feed(ev.CancelAsked(0, 1, FinishDetail.USER))
    run.turn()
    assert run.opened == [1, 2]
    run.finish()
    assert run.cached() == [0, 0] + [SHARED] * 3


def test_if_the_reader_fails_the_next_one_reads() -> None:
    run = SharingRun()
    run.burst(5)
    run.turn()
    part = ev.PrefillPart(1, 512, 1_024, last=False)
    run.feed(ev.PrefillDone(0, run.now_ns, (part,), {1: ("RuntimeError: boom", "")}))
    run.turn()
    assert run.opened == [1, 2]
    run.finish()
    assert run.cached() == [0, 0] + [SHARED] * 3


def test_if_the_state_cannot_be_kept_all_go_on() -> None:
    run = SharingRun(keeps=False)
    run.burst(4)
    while run.rows[1].prefilled < SHARED:
        run.turn()
        assert run.opened == [1]
    run.turn()
    assert run.opened[:2] == [1, 2]
    run.finish()
    assert run.cached() == [0] * 4


@pytest.mark.parametrize(
    "how",
    [
        {"prompt_cache": SHARED // 2, "cost": CacheCost(1)},
        {"prompt_cache": 0},
        {"policy": BuiltIn.STATIC},
    ],
    ids=["ceiling", "no cache", "static"],
)
def test_nobody_waits_where_nothing_could_come_of_it(how: dict[str, Any]) -> None:
    run = SharingRun(settings(**how))
    run.burst(4)
    run.turn()
    assert run.opened == [1, 2, 3, 4]
    run.finish()


@pytest.mark.parametrize("spare", [-1, 0, BLOCK])
def test_memory_for_few_rows_serves_all_of_them(spare: int) -> None:
    """The entry goes when a row needs its bytes; rows that began with it keep what they have."""
    run = SharingRun(settings(budget=3 * 32 * BLOCK + spare, cost=CacheCost(1)))
    run.burst(6)
    run.finish()
    assert run.cached()[1:3] == [SHARED] * 2
    assert run.computed < 4 * SHARED


def test_a_budget_that_sinks_meanwhile_keeps_nobody_for_ever() -> None:
    run = SharingRun(settings(budget=1 << 20, cost=CacheCost(1)))
    run.burst(3)
    run.turn()
    assert run.opened == [1]
    run.feed(ev.BudgetSet(0, 33 * BLOCK))
    run.finish()
    assert run.opened == [1, 2, 3]


def test_rows_that_want_no_cache_neither_wait_nor_lead() -> None:
    run = SharingRun()
    run.submit(1, (*BEGINNING, *ends(1)), cache_prompt=False)
    run.submit(2, (*BEGINNING, *ends(2)))
    run.submit(3, (*BEGINNING, *ends(3)), cache_prompt=False)
    run.turn()
    assert run.opened == [1, 2, 3]
    run.finish()
    assert run.cached() == [0, 0, 0]


def test_a_row_that_shares_too_little_does_not_wait() -> None:
    run = SharingRun()
    least = run.settings.worth_waiting
    run.submit(1, BEGINNING)
    run.submit(2, (*BEGINNING[: least - 1], *ends(2)))
    run.submit(3, (*BEGINNING[:least], *ends(3)))
    run.turn()
    assert run.opened == [1, 2]
    run.finish()
    assert run.cached() == [0, 0, least]


def test_nor_does_one_whose_beginning_is_nearly_all_in_the_cache() -> None:
    run = SharingRun()
    run.submit(1, BEGINNING)
    run.finish()
    run.submit(2, (*BEGINNING, *ends(9, 100), *ends(2)))
    run.submit(3, (*BEGINNING, *ends(9, 100), *ends(3)))
    run.turn()
    assert run.opened == [1, 2, 3]
    run.submit(4, (*BEGINNING, *ends(8, 150), *ends(4)))
    run.submit(5, (*BEGINNING, *ends(8, 150), *ends(5)))
    run.turn()
    assert run.opened == [1, 2, 3, 4]
    run.finish()
    assert run.cached() == [0, SHARED, SHARED, SHARED, SHARED + 150]


def test_groups_within_groups_read_each_beginning_once() -> None:
    run = SharingRun(settings(trimmable=False))
    for row_id in range(1, 9):
        run.submit(row_id, (*BEGINNING, *ends(90 + row_id % 2, 1_000), *ends(row_id)))
    run.finish()
    assert run.computed == SHARED + 2 * 1_000 + 8 * 19
    assert run.cached() == [0, SHARED] + [SHARED + 1_000] * 6


def test_ends_that_happen_to_begin_alike_cost_no_forward_of_their_own() -> None:
    run = SharingRun(settings(trimmable=False, chunk=4_000))
    run.submit(1, (*BEGINNING, *range(30)))
    for row_id, alike in ((2, 5), (3, 9), (4, 3), (5, 3)):
        run.submit(row_id, (*BEGINNING, *range(alike), *ends(row_id)))
    run.finish()
    assert run.rows[1].chunks[0].stop == SHARED + 3
    assert len(run.rows[1].chunks) == 2
    assert run.cached() == [0] + [SHARED + 3] * 4
    assert SLACK > 9 - 3


def test_others_pass_those_that_wait_but_not_for_ever() -> None:
    run = SharingRun(settings(chunk=16))
    run.burst(3)
    for row_id in range(10, 40):
        run.submit(row_id, ends(row_id))
    run.turn()
    assert run.opened == [1, *range(10, 10 + MAX_PASSED_OVER)]
    run.finish()
    assert run.opened[1 + MAX_PASSED_OVER :][:2] == [2, 3]
    assert run.cached()[:3] == [0, SHARED, SHARED]


def test_a_higher_priority_waits_for_the_beginning_as_well_and_goes_first_then() -> None:
    run = SharingRun()
    run.burst(3)
    run.submit(4, (*BEGINNING, *ends(4)), priority=5)
    run.turn()
    assert run.opened == [4]  # all came before the first turn
    run.submit(5, (*BEGINNING, *ends(5)), priority=9)
    run.turn()
    assert run.opened == [4]
    run.finish()
    assert run.opened == [4, 5, 1, 2, 3]


def test_a_user_s_policy_cannot_open_a_row_that_waits() -> None:
    run = SharingRun()
    run.burst(3)
    run.feed(ev.Turn(0, (2,)))
    run.feed(ev.Turn(0, (3, 1)))
    assert run.opened == [2]
    run.finish()
    assert run.cached() == [SHARED, 0, SHARED]


def test_rows_that_run_alone_wait_for_nobody() -> None:
    run = SharingRun()
    run.burst(3, mechanism=Mechanism.SERIAL)
    run.finish()
    assert run.opened == [1, 2, 3]
    assert "queue-shared-beginning" not in reasons(run, 2)


def test_pause_and_a_lost_device_keep_nobody_for_ever() -> None:
    run = SharingRun()
    run.burst(4)
    run.turn()
    run.feed(ev.PauseAsked(0))
    run.turn()
    run.feed(ev.CancelAsked(0, 1, FinishDetail.USER))
    run.feed(ev.ResumeAsked(0))
    run.turn()
    run.feed(ev.LeaseLost(0))
    run.finish()
    assert run.cached() == [0, 0, SHARED, SHARED]


def test_a_row_that_is_read_again_leads_nobody() -> None:
    run = SharingRun()
    run.submit(1, (*BEGINNING, *ends(1)), sampling=SamplingOptions(max_tokens=9))
    while not run.rows[1].token_ids:
        run.turn()
    run.feed(ev.StepFailed(0, (1,), ("RuntimeError: boom", "")))
    run.feed(ev.BudgetSet(0, 0))  # the entry goes
    run.feed(ev.BudgetSet(0, 1 << 40))
    run.turn()
    run.submit(2, (*BEGINNING, *ends(2)))
    run.turn()
    assert run.opened == [1, 2]
    run.finish()


def test_the_words_name_who_reads_and_how_much() -> None:
    run = SharingRun()
    run.burst(3)
    run.submit(4, ends(4, 30))
    run.turn()
    run.turn()
    now = recording_of([run.ring.since(0).columns])
    assert waiting(now, now.requests[2]) == waiting(now, now.requests[3])
    assert waiting(now, now.requests[2]) == "row 1 reads the beginning that both share (2,000 tokens)"
    found = reasons(run, 3, run.now_ns)["queue-shared-beginning"]
    assert found.text.endswith("in the queue for row 1, which read the beginning that both share (2,000 tokens).")
    assert found.rows == (1,)
    assert found.ms > 0
    run.finish()
    both, all_of_them = reasons(run, 3), explain(recording_of([run.ring.since(0).columns]), 3)
    assert both["queue-shared-beginning"].text.endswith("that both share (2,000 tokens).")
    assert both["cache-hit"].text.startswith("2,000 of 2,020 prompt tokens were in the prompt cache")
    assert "queue-shared-beginning" not in reasons(run, 1)
    assert "queue-shared-beginning" not in reasons(run, 4)
    row = run.rows[3]
    assert sum(one.ms for one in all_of_them) == pytest.approx((row.ended_ns - row.queued_ns) / 1e6)


def test_a_row_behind_one_that_waits_says_so() -> None:
    run = SharingRun(settings(chunk=16))
    run.burst(2)
    for row_id in range(10, 10 + MAX_PASSED_OVER + 1):
        run.submit(row_id, ends(row_id))
    run.turn()
    last = 10 + MAX_PASSED_OVER
    now = recording_of([run.ring.since(0).columns])
    assert waiting(now, now.requests[last]) == "row 1 reads the beginning that both share, behind row 2"
    text = reasons(run, last, run.now_ns + 1)["queue-shared-beginning"].text
    assert text.endswith("in the queue: row 2 waited for row 1, which read the beginning that both share.")


def test_it_says_so_no_more_once_nobody_reads_it() -> None:
    run = SharingRun(keeps=False)
    run.burst(2)
    run.turn()
    run.feed(ev.CancelAsked(0, 1, FinishDetail.USER))
    cancelled = run.now_ns
    run.finish()
    assert (
        explain(recording_of([run.ring.since(0).columns]), 2, at_ns=cancelled - 1)[0].code == "queue-shared-beginning"
    )

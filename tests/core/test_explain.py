"""Why a row waited, in words: scripted runs, one for each cause."""

from __future__ import annotations

import pytest

from mlx_notebook.core import events as ev
from mlx_notebook.core.explain import TimedReason, explain, figure, named
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import CacheCost
from mlx_notebook.core.recording import recording_of
from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.core.scheduler import SchedulerSettings
from tests.core.running import MS, Run


def reasons(run: Run, row_id: int) -> dict[str, TimedReason]:
    return {one.code: one for one in explain(run.recording(), row_id, now_ns=run.now)}


def test_the_batch_was_full() -> None:
    run = Run()
    for row_id in (1, 2, 3, 4):
        run.submit(row_id)
    run.until(1, 2, 3, 4)
    found = reasons(run, 4)["queue-batch-full"]
    assert found.text.endswith("in the queue: all 2 places were taken (rows 1 and 2). Row 3 stood before it.")
    assert found.ms == pytest.approx(figure_ms(run, 4), abs=5)
    assert found.rows == (1, 2)


def figure_ms(run: Run, row_id: int) -> float:
    row = run.rows[row_id]
    return (row.admitted_ns - row.queued_ns) / 1e6


def test_the_engine_was_at_something() -> None:
    run = Run()
    run.submit(1, asked_ms=7)
    run.round()
    assert "queue-turn" in reasons(run, 1)
    assert reasons(run, 1)["queue-turn"].ms > 7


def test_it_did_not_fit_the_budget() -> None:
    run = Run(SchedulerSettings(max_rows=4, chunk=8, cost=CacheCost(bytes_per_token=1000), budget=100_000))
    run.submit(1, prompt=10, max_tokens=8)
    run.submit(2, prompt=40, max_tokens=8)
    run.until(1)
    run.until(2)
    found = reasons(run, 2)["queue-budget"]
    assert "it did not fit beside row 1 (28,000 bytes more than the budget)" in found.text


def test_somebody_else_had_asked_for_the_device() -> None:
    run = Run()
    run.submit(1, max_tokens=3)
    run.round()
    run.feed(ev.LeaseWanted(run.tick(), run.place))
    run.submit(2)
    run.until(1)
    assert 2 in run.scheduler.rows
    assert reasons(run, 2)["queue-fence"].ms > 10
    assert "queue-batch-full" not in reasons(run, 2)
    run.until(2)


def test_the_device_was_somebody_else_s() -> None:
    run = Run(holds=False)
    run.submit(1)
    for _ in range(5):
        run.round()
    found = reasons(run, 1)["queue-device"]
    assert found.ms == pytest.approx(4, abs=1)


def test_a_row_that_runs_alone() -> None:
    run = Run()
    run.submit(1, mechanism=Mechanism.SERIAL)
    run.submit(2)
    run.until(1, 2)
    assert "row 1 had to run alone" in reasons(run, 2)["queue-alone"].text
    run.submit(3)
    run.submit(4, mechanism=Mechanism.SERIAL)
    run.until(3, 4)
    assert "it runs alone and waited until row 3 ended" in reasons(run, 4)["queue-empty"].text


def test_the_static_policy() -> None:
    run = Run(SchedulerSettings(max_rows=4, chunk=8, policy=BuiltIn.STATIC))
    run.submit(1)
    run.round()
    run.submit(2)
    run.until(1, 2)
    assert "nobody joined while row 1 ran" in reasons(run, 2)["queue-static-policy"].text


def test_others_came_later_and_went_first() -> None:
    run = Run(SchedulerSettings(max_rows=1, chunk=8))
    run.submit(1)
    run.round()
    run.submit(2)
    run.submit(3, priority=5)
    run.until(1, 2, 3)
    assert reasons(run, 2)["queue-passed-over"].text == "Row 3 came later and went first: a higher priority."
    assert "queue-passed-over" not in reasons(run, 3)
    assert "Row 3 stood before it." in reasons(run, 2)["queue-batch-full"].text


def test_paused_by_hand_while_it_waited_and_while_it_wrote() -> None:
    run = Run()
    run.feed(ev.PauseAsked(run.tick()))
    run.submit(1)
    for _ in range(10):
        run.round()
    run.feed(ev.StepAsked(run.tick(), 2))
    for _ in range(10):
        run.round()
    run.feed(ev.ResumeAsked(run.tick()))
    run.until(1)
    groups = [one for one in explain(run.recording(), 1) if one.code == "paused"]
    assert len([one for one in groups if one.ms >= 8]) == 2  # in the queue, and between its tokens


def test_chunks_of_its_own_and_of_others() -> None:
    run = Run()
    run.submit(1, prompt=5, max_tokens=12)
    run.round()
    run.submit(2, prompt=40, max_tokens=2)
    run.until(1, 2)
    long = reasons(run, 2)
    assert "reading 40 tokens of the prompt in 5 chunks" in long["prefill"].text
    assert long["prefill"].ms == pytest.approx(50)
    assert "it was the turn of row 1" in long["prefill-interleaved"].text
    short = reasons(run, 1)
    assert "held up 4 times while the prompt of row 2 was read" in short["decode-behind-chunk"].text
    assert short["decode-behind-chunk"].ms == pytest.approx(40)
    assert short["prefill-interleaved"].ms == pytest.approx(10)


def test_steps_shared_and_alone() -> None:
    run = Run()
    run.submit(1, max_tokens=6)
    run.submit(2, max_tokens=3)
    run.until(1, 2)
    found = reasons(run, 1)
    assert "shared with row 2 (up to 2 rows a step)" in found["decode-shared"].text
    assert found["decode-alone"].text.endswith("writing in 3 steps alone.")
    assert found["first-token"].ms == pytest.approx(10)


def test_slow_code_of_one_row_holds_up_all() -> None:
    run = Run()
    run.submit(1, max_tokens=3)
    run.submit(2, max_tokens=3)
    run.round()
    run.round()
    run.round(user_ms=4)
    run.until(1, 2)
    assert "its own and that of row 2" in reasons(run, 1)["user-code-slow"].text
    assert reasons(run, 1)["user-code-slow"].ms == pytest.approx(8)


def test_a_cold_step() -> None:
    run = Run()
    run.submit(1, max_tokens=9)
    run.round()
    run.round(step_ms=900)
    run.until(1)
    run.submit(2, max_tokens=9)
    run.until(2)
    assert reasons(run, 1)["cold-step"].ms == pytest.approx(900)
    assert "cold-step" not in reasons(run, 2)


def test_a_step_that_failed() -> None:
    run = Run()
    run.submit(1, max_tokens=4)
    run.round()
    run.turn()
    run.steps(fails=True)
    run.until(1)
    found = reasons(run, 1)
    assert found["rewind"].ms > 10
    assert "decode-alone" in found  # what came after the rewind is writing again


def test_slow_motion() -> None:
    run = Run()
    run.feed(ev.PaceAsked(run.tick(), 50 * MS))
    run.submit(1, max_tokens=4)
    for _ in range(3):
        run.round()
        run.tick(50)
    run.until(1)
    assert reasons(run, 1)["slow-motion"].ms > 50


def test_the_prompt_cache_had_its_beginning() -> None:
    run = Run(SchedulerSettings(max_rows=1, chunk=None, prompt_cache=1 << 20, cost=CacheCost(bytes_per_token=1)))
    run.submit(1, tokens=range(40), max_tokens=1)
    run.until(1)
    for step in [s for said in run.said for s in said if isinstance(s, ev.Drop)]:
        if step.keep_as is not None:
            run.feed(ev.Kept(run.tick(), step.keep_as, 40, 40))
    run.submit(2, tokens=range(50), max_tokens=1)
    run.until(2)
    assert reasons(run, 2)["cache-hit"].text.startswith("40 of 50 prompt tokens were in the prompt cache")


@pytest.mark.parametrize(
    ("detail", "code", "text"),
    [
        (FinishDetail.USER, "ended-user", "It was cancelled."),
        (FinishDetail.DEADLINE, "ended-deadline", "It was cancelled: its deadline passed."),
        (FinishDetail.CLOSED, "ended-closed", "It was cancelled: its gateway was closed."),
    ],
)
def test_how_it_ended(detail: FinishDetail, code: str, text: str) -> None:
    run = Run()
    run.submit(1)
    run.feed(ev.CancelAsked(run.tick(), 1, detail))
    assert reasons(run, 1)[code].text == text


def test_every_ending_has_its_sentence() -> None:
    from mlx_notebook.core.explain import _ENDINGS

    assert set(_ENDINGS) == {str(detail) for detail in FinishDetail}


def test_a_failed_row() -> None:
    run = Run()
    run.submit(1)
    run.grant()
    run.turn()
    run.chunks(fails=True)
    assert reasons(run, 1)["ended-error"].text == "It failed; its handle has the error."


def test_one_moment() -> None:
    run = Run()
    for row_id in (1, 2, 3):
        run.submit(row_id)
    for _ in range(3):  # two prompts, then a step
        run.round()
    at = run.now - 3 * MS
    run.until(1, 2, 3)
    (why,) = explain(run.recording(), 3, at_ns=at)
    assert why.code == "queue-batch-full"
    (what,) = explain(run.recording(), 1, at_ns=at)
    assert what.code == "first-token"
    assert explain(run.recording(), 1, at_ns=run.now + MS) == []


def test_a_moment_in_a_chunk_is_about_that_chunk_alone() -> None:
    run = Run()
    run.submit(1, prompt=40)
    moments = []
    for _ in range(2):
        run.round()
        moments.append(run.now - MS)
    assert "reading 16 tokens of the prompt in 2 chunks" in reasons(run, 1)["prefill"].text  # and not over yet
    run.until(1)
    texts = [explain(run.recording(), 1, at_ns=at)[0].text for at in moments]
    assert ["reading 8 tokens of the prompt in 1 chunk" in text for text in texts] == [True, True]
    assert "reading 40 tokens of the prompt in 5 chunks" in reasons(run, 1)["prefill"].text


def test_times_sum_to_the_whole() -> None:
    run = Run()
    for row_id in (1, 2, 3):
        run.submit(row_id, prompt=20)
    run.until(1, 2, 3)
    for row_id, row in run.rows.items():
        total = sum(one.ms for one in explain(run.recording(), row_id))
        assert total == pytest.approx((row.ended_ns - row.queued_ns) / 1e6)


def test_nobody_knows_such_a_request() -> None:
    with pytest.raises(LookupError, match="no request 9"):
        explain(recording_of([]), 9)


def test_a_beginning_that_was_overwritten() -> None:
    run = Run()
    run.submit(1)
    run.until(1)
    columns = {name: column[3:] for name, column in run.ring.since(0).columns.items()}
    found = explain(recording_of([columns], 3), 1)
    assert found[0].code == "log-overwritten"
    assert found[-1].code == "ended-max-tokens"


@pytest.mark.parametrize(("ms", "text"), [(0.123, "0.12 ms"), (3.21, "3.2 ms"), (123.4, "123 ms"), (12_345, "12.3 s")])
def test_figures(ms: float, text: str) -> None:
    assert figure(ms) == text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((), ""),
        ((3,), "row 3"),
        ((4, 3), "rows 3 and 4"),
        ((1, 2, 3), "rows 1, 2 and 3"),
        (range(1, 10), "rows 1, 2, 3, 4, 5, 6 and 3 more"),
    ],
)
def test_names_of_rows(ids: tuple[int, ...], text: str) -> None:
    assert named(ids) == text

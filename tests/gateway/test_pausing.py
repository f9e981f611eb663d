"""Pausing, stepping, slow motion, priorities and longer answers; and that nobody hangs because of them."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import MlxNotebookError, OverBudget, OverContext, WouldDeadlock
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.handles import as_completed
from mlx_notebook.gateway.handles import wait as wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.gateway.handle import Handle

PATIENCE_S = 60


@pytest.fixture
def gw() -> Iterator[Gateway]:
    can = Capabilities(vocab_size=0x110000, context_length=200, max_rows=2, continuous=True, kv_bytes_per_token=10)
    with Gateway.from_backend(ScriptedBackend(capabilities=can), kv_budget=4000) as gateway:
        yield gateway


def test_a_paused_gateway_computes_nothing_and_says_so(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=3)
    gw.pause()  # has been heard after the submission, so whatever could have run would have
    assert gw.paused
    assert gw.steps().empty
    progress = handle.progress()
    assert (progress.status, progress.waiting, progress.paused) == ("queued", "paused", True)
    gw.resume()
    assert handle.result(PATIENCE_S).generated_tokens == 3
    assert not handle.progress().paused


def test_steps_one_by_one(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=5)
    seen = []
    for _ in range(4):
        gw.step()
        seen.append(len(handle.text_so_far))
    assert seen == [0, 1, 2, 3]  # the first reads the prompt
    gw.step(50)  # more than there is to do
    assert handle.done()
    assert gw.paused


def test_stepping_pauses_what_runs(gw: Gateway) -> None:
    gate = threading.Event()
    handle = gw.submit("abc", max_tokens=100, on_token=lambda *_: gate.wait(PATIENCE_S) and None)
    gate.set()
    gw.step()
    text = handle.text_so_far
    gw.pause()
    assert handle.text_so_far == text
    gw.resume()
    assert len(handle.result(PATIENCE_S).text) == 100


def test_cancels_deadlines_and_closing_work_while_paused() -> None:
    gateway = Gateway.from_backend(ScriptedBackend())
    gateway.pause()
    cancelled, late, left = (
        gateway.submit("a"),
        gateway.submit("b", deadline=0.01),
        gateway.submit("c"),
    )
    assert cancelled.cancel()
    assert _ends(cancelled)
    assert _ends(late)
    assert late.progress().finish_detail == "deadline"
    gateway.close()
    assert left.progress().finish_detail == "closed"


def _ends(handle: Handle) -> bool:
    """Without waiting through the handle, which would refuse to."""
    over = threading.Event()
    handle.add_done_callback(lambda _handle: over.set())
    return over.wait(PATIENCE_S)


def test_the_device_is_free_while_paused(gw: Gateway) -> None:
    handle = gw.submit("abc", max_tokens=60, on_token=lambda *_: time.sleep(0.001))
    gw.step(5)
    with gw.lease(PATIENCE_S):
        assert not handle.done()
    gw.resume()
    assert handle.result(PATIENCE_S).generated_tokens == 60


def test_a_wait_on_the_thread_that_paused_is_refused(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc")
    waits = (
        handle.result,
        lambda: list(handle),
        gw.wait_idle,
        lambda: list(as_completed([handle])),
        lambda: wait_for([handle]),
        lambda: gw.generate("b"),
        lambda: gw.map(["c"], progress=False),
    )
    for wait in waits:
        with pytest.raises(WouldDeadlock, match=r"resume\(\) or step\(\)"):
            wait()
    timer = threading.Timer(0.05, gw.resume)
    heard = threading.Thread(target=lambda: handle.result(PATIENCE_S))
    heard.start()  # another thread may wait
    timer.start()
    heard.join()
    timer.join()
    assert handle.done()


def test_waiting_for_the_rows_of_a_paused_and_a_running_gateway(gw: Gateway) -> None:
    with Gateway.from_backend(ScriptedBackend()) as other:
        gw.pause()
        held, goes_on = gw.submit("abc", max_tokens=2), other.submit("abc", max_tokens=2)
        found = as_completed([held, goes_on])
        assert next(found) is goes_on
        with pytest.raises(WouldDeadlock):
            next(found)


def test_the_holder_of_the_device_cannot_step_but_may_pause(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=2)
    with gw.lease(PATIENCE_S):
        with pytest.raises(WouldDeadlock, match="holds the device lease"):
            gw.step()
        gw.slow_motion(0.001)
        gw.slow_motion(0)
        gw.resume()
        gw.pause()
        assert not handle.done()
    gw.step(2)
    assert len(handle.text_so_far) == 1


def test_a_view_that_watches_may_be_waited_for_and_its_end_resumes(gw: Gateway) -> None:
    class View:
        """Anything that is open."""

    first, second = View(), View()
    pausing = gw.engine.pausing
    pausing.watch(first)
    pausing.watch(second)
    gw.pause()
    handle = gw.submit("abc", max_tokens=3)
    pausing.refuse_to_wait("waiting")  # somebody could resume
    pausing.unwatch(first)
    assert gw.paused
    pausing.unwatch(second)
    assert handle.result(PATIENCE_S).generated_tokens == 3


def test_an_interrupted_wait_resumes(gw: Gateway) -> None:
    class View:
        """Open, so that the wait is not refused."""

    view = View()
    gw.engine.pausing.watch(view)
    gw.pause()
    other = gw.submit("other", max_tokens=3)
    handle = gw.submit("abc", max_tokens=3)
    me = threading.main_thread().ident
    assert me is not None
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        handle.result(PATIENCE_S)
    timer.join()
    assert other.result(PATIENCE_S).generated_tokens == 3


def test_pausing_from_a_callback_does_not_wait_for_itself(gw: Gateway) -> None:
    handle = gw.submit("abc", max_tokens=4, on_token=lambda *_: gw.pause())
    while not gw.paused:
        time.sleep(0.001)
    for _ in range(3):
        gw.step()
    assert handle.done()


def test_slow_motion_rests_after_each_step(gw: Gateway) -> None:
    gw.slow_motion(0.02)
    gw.submit("abc", max_tokens=4).result(PATIENCE_S)
    starts, ends = gw.steps().start_s.to_numpy(), gw.steps().end_s.to_numpy()
    assert (starts[1:] - ends[:-1] >= 0.019).all()
    gw.slow_motion(0)


def test_a_cancel_is_heard_in_slow_motion(gw: Gateway) -> None:
    gw.slow_motion(60)
    handle = gw.submit("abc", max_tokens=4)
    while not handle.running():
        time.sleep(0.001)
    assert handle.cancel()
    assert _ends(handle)


@pytest.mark.parametrize("seconds", [True, "1", None])
def test_slow_motion_takes_a_number(gw: Gateway, seconds: object) -> None:
    with pytest.raises(TypeError, match="seconds="):
        gw.slow_motion(seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, 61, float("nan"), float("inf")])
def test_slow_motion_has_a_range(gw: Gateway, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"0 .*to 60"):
        gw.slow_motion(seconds)


@pytest.mark.parametrize("n", [0, -1])
def test_step_takes_a_number_of_steps(gw: Gateway, n: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        gw.step(n)


# ---------------------------------------------------------------- priorities


def test_another_priority_goes_first(gw: Gateway) -> None:
    gw.pause()
    handles = [gw.submit("abc", max_tokens=3) for _ in range(4)]
    assert handles[3].reprioritize(5)
    assert handles[3].options["priority"] == 5
    gw.resume()
    gw.wait_idle(PATIENCE_S)
    frame = gw.requests().loc[[handle.id for handle in handles]]
    assert frame.admitted_s.iloc[3] < frame.admitted_s.iloc[1]
    assert frame.priority.tolist() == [0, 0, 0, 5]
    assert not handles[3].reprioritize(1)
    assert any(reason.code == "queue-passed-over" for reason in handles[1].explain())


@pytest.mark.parametrize("priority", ["1", 1.5, True])
def test_a_priority_is_a_whole_number(gw: Gateway, priority: object) -> None:
    with pytest.raises(TypeError, match="priority="):
        gw.submit("abc").reprioritize(priority)


# ---------------------------------------------------------------- longer answers


def test_a_running_row_may_write_more(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=4)
    gw.step(3)
    assert handle.extend(6) == 10
    gw.resume()
    result = handle.result(PATIENCE_S)
    assert (result.generated_tokens, result.finish_detail) == (10, "max_tokens")
    assert handle.options["max_tokens"] == 10
    assert gw.requests().loc[handle.id, "max_tokens"] == 10


def test_a_waiting_row_may_write_more(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=4)
    assert handle.extend(1) == 5
    gw.resume()
    assert handle.result(PATIENCE_S).generated_tokens == 5


def test_not_beyond_the_context(gw: Gateway) -> None:
    gw.pause()
    handle = gw.submit("abc", max_tokens=4)
    with pytest.raises(OverContext, match=r"would have 204 tokens .* context is 200") as raised:
        handle.extend(197)
    assert (raised.value.needed, raised.value.limit) == (204, 200)
    gw.resume()
    assert handle.result(PATIENCE_S).generated_tokens == 4


def test_not_beyond_the_budget(gw: Gateway) -> None:
    gw.pause()
    handles = [gw.submit("a" * 60, max_tokens=4) for _ in range(2)]
    gw.step(2)
    # Blocks of 64 columns: each takes 640 now, and 1,920 and 2,560 then, of 4,000.
    assert handles[0].extend(100) == 104
    with pytest.raises(OverBudget, match="KV memory and the budget is") as raised:
        handles[1].extend(136)
    assert raised.value.budget == 4000
    assert raised.value.needed > 4000
    gw.resume()
    assert [handle.result(PATIENCE_S).generated_tokens for handle in handles] == [104, 4]


def test_not_when_it_is_over(gw: Gateway) -> None:
    handle = gw.submit("abc", max_tokens=1)
    handle.result(PATIENCE_S)
    with pytest.raises(MlxNotebookError, match="is over: submit it again"):
        handle.extend(5)


def test_not_from_its_own_callback(gw: Gateway) -> None:
    errors: list[BaseException] = []

    def on_token(*_: object) -> None:
        try:
            handle.extend(5)
        except WouldDeadlock as error:
            errors.append(error)

    gw.pause()
    handle = gw.submit("abc", max_tokens=2, on_token=on_token)
    gw.resume()
    handle.result(PATIENCE_S)
    assert len(errors) == 2


@pytest.mark.parametrize("tokens", [0, -3])
def test_more_is_at_least_one(gw: Gateway, tokens: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        gw.submit("abc").extend(tokens)

"""Where a row can be when it is cut, one test each: who ends, who goes on, what is let go."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.rows import FinishDetail
from mlx_notebook.errors import Cancelled, GatewayClosed, GatewayDead
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import Defective, Stepped, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


def cancelled(handle: Any) -> Cancelled:
    error = handle.exception()
    assert isinstance(error, Cancelled)
    assert error.result is not None
    return error


def test_in_the_queue_it_leaves_and_the_others_keep_their_places(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    running, waiting, behind = (gateway.submit("ab", max_tokens=2) for _ in range(3))
    backend.next()
    backend.go()
    backend.next()  # by now it has seen all three
    assert waiting.progress().waiting == "behind 1 row"
    assert behind.progress().waiting == "behind 2 rows"
    assert waiting.cancel()
    backend.free()
    error = cancelled(waiting)
    assert error.result is not None
    assert (error.result.finish_detail, error.result.generated_tokens) == ("user", 0)
    assert running.result().finish_reason == behind.result().finish_reason == "length"
    assert backend.opened == [running.id, behind.id]


def test_waiting_for_the_device_it_gives_up_its_own_place(gateway_of: Make) -> None:
    gateway, other = gateway_of(), gateway_of()
    with gateway.lease():
        mine = gateway.submit("a", max_tokens=1)
        theirs = other.submit("a", max_tokens=1)
        assert device_lease().waiting == 2
        mine.cancel()
        wait_for(mine.done)
        wait_for(lambda: device_lease().waiting == 1)
        assert not theirs.done()
    assert theirs.result().generated_tokens == 1
    assert mine.cancelled()


def test_in_its_prompt_it_is_looked_at_between_chunks(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend, prefill_chunk=2)
    row = gateway.submit("abcdefgh", max_tokens=2)
    assert backend.next().what == "prefill"
    row.cancel()
    assert not row.done()
    backend.go()  # the chunk that was under way
    error = cancelled(row)
    assert error.result is not None
    assert (error.result.prompt_tps, error.result.text) == (None, "")
    assert row.progress().prefilled == 2
    assert backend.dropped == [row.id]


def test_writing_it_ends_at_its_next_commit_and_keeps_what_there_was(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    row, next_row = gateway.submit("a", max_tokens=50), gateway.submit("a", max_tokens=1)
    for _ in range(3):
        backend.until("decode")
        backend.go()
    backend.until("decode")
    row.cancel()
    backend.free()
    error = cancelled(row)
    assert error.result is not None
    assert error.result.generated_tokens == len(error.result.text) == 4
    assert next_row.result().finish_reason == "length"
    assert backend.dropped == [row.id, next_row.id]


def test_the_callback_says_false_and_the_row_is_a_normal_stop(gateway_of: Make) -> None:
    gateway = gateway_of()
    seen: list[str] = []

    def until_three(_token_id: int, text: str, _logprobs: object) -> bool:
        seen.append(text)
        return len(seen) < 3

    result = gateway.submit("a", on_token=until_three, max_tokens=50).result()
    assert (result.finish_reason, result.finish_detail) == ("stop", "callback")
    assert result.text == "".join(seen)
    assert result.generated_tokens == 3


@pytest.mark.parametrize("answer", [None, 0, "", True])
def test_anything_else_that_a_callback_returns_goes_on(gateway_of: Make, answer: object) -> None:
    result = gateway_of().submit("a", on_token=lambda *_: answer, max_tokens=4).result()
    assert result.finish_detail == "max_tokens"


@pytest.mark.parametrize("stage", ["queued", "lease", "prefill", "decode"])
def test_the_deadline_passes_at_any_stage(gateway_of: Make, stage: str) -> None:
    backend = Stepped()
    gateway = gateway_of(backend, prefill_chunk=2)
    if stage == "lease":
        with gateway.lease():
            row = gateway.submit("abcdef", max_tokens=50, deadline=0.01)
            wait_for(row.done)  # by itself: nothing else happens in this gateway
    elif stage == "queued":
        first = gateway.submit("a", max_tokens=50)
        row = gateway.submit("abcdef", max_tokens=50, deadline=0.01)
        backend.next()
        wait_for(lambda: row.progress().elapsed_ms > 10)
        backend.go()
        wait_for(row.done)
        first.cancel()
        backend.free()
    else:
        row = gateway.submit("abcdef", max_tokens=10_000, deadline=0.01)
        point = backend.next()
        while point.what != stage:
            # A slow machine may pass the deadline on the way: then the row ends earlier, which is right too.
            backend.go()
            if row.done():
                break
            point = backend.next()
        wait_for(lambda: row.progress().elapsed_ms > 10)
        backend.free()
    error = cancelled(row)
    assert "deadline" in str(error)
    assert error.result is not None
    assert error.result.finish_detail == FinishDetail.DEADLINE
    assert backend.opened == backend.dropped or stage == "queued"


def test_close_settles_every_handle_at_once_though_a_native_call_goes_on(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    rows = [gateway.submit("a", max_tokens=50) for _ in range(3)]
    backend.next()
    closing = in_thread(gateway.close)
    for row in rows:  # the engine stands in the middle of a chunk all the while
        error = cancelled(row)
        assert error.result is not None
        assert error.result.finish_detail == "closed"
    assert not gateway._engine._ended.is_set()
    backend.free()
    closing.result()
    assert backend.dropped == [rows[0].id]
    assert gateway.stats().cancelled == 3


def test_a_row_that_is_submitted_in_the_moment_of_closing_is_refused_or_settled(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    gateway.submit("a")
    backend.next()
    intake = gateway._engine.intake
    take, reached, proceed = intake.submit, threading.Event(), threading.Event()

    def slowly(*args: Any) -> bool:
        reached.set()  # past every check of the gateway's, not in the intake yet
        proceed.wait()
        return take(*args)

    intake.submit = slowly  # type: ignore[assignment]
    submitting = in_thread(lambda: gateway.submit("b"))
    reached.wait()
    closing = in_thread(gateway.close)
    wait_for(lambda: intake.closed)
    proceed.set()
    with pytest.raises(GatewayClosed):
        submitting.result()
    backend.free()
    closing.result()


def test_a_dying_engine_settles_every_handle_at_once(gateway_of: Make) -> None:
    backend = Defective()
    gateway = gateway_of(backend)
    rows = [gateway.submit("a", max_tokens=50) for _ in range(3)]
    backend.until("decode")
    backend.broken = True
    backend.go()
    for row in rows:
        error = row.exception()
        assert isinstance(error, GatewayDead)
        assert "restart()" in str(error)
        assert "the device is on fire" in error.traceback_text
    with pytest.raises(GatewayDead, match="the device is on fire"):
        gateway.submit("a")
    assert gateway.closed
    assert gateway.stats().failed == 3
    assert gateway.wait_idle()


def test_close_and_cancel_again_do_nothing(gateway_of: Make) -> None:
    gateway = gateway_of()
    row = gateway.submit("a", max_tokens=1)
    row.result()
    assert not row.cancel()
    for _ in range(3):
        gateway.close()
    assert not row.cancel()
    assert row.result().finish_reason == "length"
    with pytest.raises(GatewayClosed, match="restart"):
        gateway.submit("a")


def test_what_a_closed_row_says_does_not_change_afterwards(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=50)
    backend.until("decode")
    closing = in_thread(gateway.close)
    first = cancelled(row).result
    backend.free()  # one more step is committed by the backend
    closing.result()
    assert cancelled(row).result == first

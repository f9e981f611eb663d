"""The device lease: one line for everybody, first in, first out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.gateway.lease import DeviceLease, Ticket, device_lease
from tests.gateway.fakes import Stepped, in_thread, interrupt_when, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


class Heard:
    """A ticket's news, in order."""

    def __init__(self, line: DeviceLease, owner: str, **how: Any) -> None:
        self.news: list[str] = []
        self.ticket = line.ask(
            owner,
            "test",
            on_grant=lambda _ticket: self.news.append("granted"),
            on_waiters=lambda _ticket, some: self.news.append("wanted" if some else "unwanted"),
            on_break=lambda: self.news.append("broken"),
            **how,
        )

    def holds(self) -> bool:
        return self.ticket.held


# ---------------------------------------------------------------- the line itself


def test_first_in_first_out() -> None:
    line = DeviceLease()
    first, second, third = (Heard(line, name) for name in "abc")
    assert [t.holds() for t in (first, second, third)] == [True, False, False]
    line.release(first.ticket)
    assert second.holds()
    assert not third.holds()
    line.release(second.ticket)
    assert third.holds()
    assert third.news == ["granted"]


def test_everybody_ahead_of_a_waiter_is_told_once() -> None:
    line = DeviceLease()
    first, second = Heard(line, "a"), Heard(line, "b")
    third = Heard(line, "c")
    assert first.news == ["granted", "wanted"]
    assert second.news == ["wanted"]
    line.release(third.ticket)
    assert second.news == ["wanted", "unwanted"]
    assert first.news == ["granted", "wanted"]
    line.release(second.ticket)
    assert first.news == ["granted", "wanted", "unwanted"]


def test_a_waiter_that_leaves_takes_nothing_from_the_others() -> None:
    line = DeviceLease()
    first, second, third = (Heard(line, name) for name in "abc")
    assert line.release(second.ticket)
    assert first.holds()
    assert not third.holds()
    line.release(first.ticket)
    assert third.holds()
    assert "granted" not in second.news


def test_releases_are_idempotent() -> None:
    line = DeviceLease()
    first, second, third = (Heard(line, name) for name in "abc")
    assert line.release(first.ticket)
    assert not line.release(first.ticket)
    assert second.holds()
    assert line.waiting == 1
    assert third.news == []


def test_holder_and_age_for_people() -> None:
    line = DeviceLease()
    nobody = line.holder
    assert nobody is None
    held = Heard(line, "mine")
    holder = line.holder
    assert holder is not None
    assert (holder.owner, holder.kind) == ("mine", "test")
    assert holder.age_s >= 0
    assert line.waiting == 0
    line.release(held.ticket)


def test_only_a_breakable_holder_can_be_broken() -> None:
    line = DeviceLease()
    nobody = line.break_holder()
    assert nobody is None
    firm, soft = Heard(line, "rows", breakable=False), Heard(line, "user")
    assert not line.break_holder()
    line.release(firm.ticket)
    broken = line.break_holder()
    assert broken is not None
    assert broken.owner == "user"
    assert soft.news == ["granted", "broken"]
    assert line.holder is None
    assert not line.release(soft.ticket)


def test_a_grant_may_release_at_once() -> None:
    line = DeviceLease()
    granted: list[str] = []

    def pass_on(ticket: Ticket) -> None:
        granted.append(ticket.owner)
        line.release(ticket)

    holder = Heard(line, "a")
    for name in "bcd":
        line.ask(name, "test", on_grant=pass_on)
    line.release(holder.ticket)
    assert granted == ["b", "c", "d"]
    assert line.holder is None


def test_news_keep_their_order_whatever_the_threads() -> None:
    line = DeviceLease()
    holder = Heard(line, "holder")

    def come_and_go() -> None:
        for _ in range(200):
            line.release(Heard(line, "waiter").ticket)

    for worker in [in_thread(come_and_go) for _ in range(4)]:
        worker.result()
    told = holder.news[1:]
    assert told == ["wanted", "unwanted"] * (len(told) // 2)
    assert told
    line.release(holder.ticket)


def test_a_callback_that_raises_leaves_no_place_behind() -> None:
    line = DeviceLease()
    calls: list[str] = []

    def fails_once(_ticket: Ticket) -> None:
        calls.append("called")
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        line.ask("a", "test", on_grant=fails_once)
    assert line.holder is None
    first = Heard(line, "first")
    waiter = line.ask("b", "test", on_grant=fails_once)
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        line.release(first.ticket)
    assert calls == ["called", "called"]  # it was interrupted, so it was told again
    assert waiter.held
    line.release(waiter)


# ---------------------------------------------------------------- gateways in it


def test_two_gateways_and_a_user_in_the_order_of_asking(gateway_of: Make) -> None:
    backend = Stepped()
    one, two = gateway_of(backend), gateway_of()
    order: list[str] = []
    a = one.submit("a", max_tokens=1)
    a.add_done_callback(lambda _: order.append("a"))
    backend.next()  # `one` holds the device
    b = two.submit("b", max_tokens=1)
    b.add_done_callback(lambda _: order.append("b"))

    def user() -> None:
        with one.lease():
            order.append("user")

    asked = device_lease().waiting
    using = in_thread(user)
    wait_for(lambda: device_lease().waiting > asked)
    c = one.submit("c", max_tokens=1)
    c.add_done_callback(lambda _: order.append("c"))
    backend.free()
    c.result()
    using.result()
    assert order == ["a", "b", "user", "c"]


def test_rows_asked_for_before_a_lease_are_finished_first_whoever_waits_in_between(gateway_of: Make) -> None:
    backend = Stepped()
    one, two = gateway_of(backend), gateway_of()
    first = one.submit("a", max_tokens=1)
    backend.next()
    between = two.submit("b", max_tokens=1)
    second = one.submit("c", max_tokens=1)  # behind `two`, and before the lease
    done: list[bool] = []

    def user() -> None:
        with one.lease():
            done.append(first.done() and between.done() and second.done())

    waiting = device_lease().waiting
    using = in_thread(user)
    wait_for(lambda: device_lease().waiting > waiting)
    backend.free()
    using.result()
    assert done == [True]


def test_a_waiter_holds_back_later_rows_only(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    before = [gateway.submit("a", max_tokens=2) for _ in range(2)]
    backend.next()
    states: list[list[bool]] = []

    def user() -> None:
        with gateway.lease():
            after.append(gateway.submit("a", max_tokens=1))
            states.append([row.done() for row in [*before, *after]])

    after: list[Any] = []
    using = in_thread(user)
    wait_for(lambda: device_lease().waiting == 1)
    after.append(gateway.submit("a", max_tokens=1))
    backend.free()
    using.result()
    assert states == [[True, True, False, False]]
    assert all(row.result().finish_reason == "length" for row in after)


def test_while_held_rows_wait_and_say_for_whom(gateway_of: Make) -> None:
    gateway = gateway_of(name="mine")
    with gateway.lease():
        row = gateway.submit("a", max_tokens=1)
        wait_for(lambda: row.progress().waiting.startswith("waiting for the device"))
        assert row.progress().waiting == "waiting for the device: mine holds it (lease)"
        stats = gateway.stats()
        assert (stats.queued_rows, stats.lease_waiting) == (1, 1)
        assert str(stats.lease_holder).startswith("mine (lease) for ")
    result = row.result()
    assert result.finish_reason == "length"
    assert "lease_wait" in {span.name for span in row.trace}


def test_a_timeout_gives_up_its_own_place_only(gateway_of: Make) -> None:
    gateway = gateway_of(name="mine")
    with gateway.lease():
        row = gateway.submit("a", max_tokens=1)
        impatient = in_thread(lambda: gateway.lease(timeout=0.0).__enter__())
        with pytest.raises(TimeoutError, match="held by mine"):
            impatient.result()
        assert device_lease().waiting == 1
        assert not row.done()
    assert row.result().finish_reason == "length"


def test_an_interrupted_waiter_gives_up_its_place(gateway_of: Make) -> None:
    gateway = gateway_of()
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with gateway.lease():
            held.set()
            release.wait()

    holding = in_thread(hold)
    held.wait()
    interrupting = interrupt_when(lambda: any(t.granted._bell._waiters for t in device_lease()._line))
    with pytest.raises(KeyboardInterrupt), gateway.lease():
        pytest.fail("the device was not free")
    interrupting.result()
    assert device_lease().waiting == 0
    release.set()
    holding.result()


def test_an_exception_inside_gives_it_back(gateway_of: Make) -> None:
    gateway = gateway_of()
    with pytest.raises(ZeroDivisionError), gateway.lease():
        raise ZeroDivisionError
    assert device_lease().holder is None


def test_break_lease_takes_it_from_the_user(gateway_of: Make) -> None:
    gateway = gateway_of()
    with gateway.lease():
        row = gateway.submit("a", max_tokens=1)
        assert in_thread(gateway.break_lease).result()
        assert row.result().finish_reason == "length"  # this thread holds nothing any more
        with pytest.raises(MlxNotebookError, match="lease"):
            _ = gateway.model
        assert not gateway.break_lease()


def test_running_rows_cannot_be_broken(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=1)
    backend.next()
    assert not gateway.break_lease()
    backend.free()
    row.result()


def test_the_model_is_the_holders_only(gateway_of: Make) -> None:
    gateway = gateway_of()
    with pytest.raises(MlxNotebookError, match="run_exclusive"):
        _ = gateway.model
    with gateway.lease() as held:
        assert held is gateway
        assert gateway.model is None  # a scripted backend has none
        with pytest.raises(MlxNotebookError, match="lease"):
            in_thread(lambda: gateway.model).result()
    assert gateway.run_exclusive(lambda: gateway.model) is None


def test_a_lease_of_a_closed_gateway_is_refused(gateway_of: Make) -> None:
    gateway = gateway_of()
    gateway.close()
    with pytest.raises(MlxNotebookError, match="closed"), gateway.lease():
        pytest.fail("it is closed")
    assert device_lease().holder is None


def test_the_device_is_handed_on_when_there_is_nothing_to_run(gateway_of: Make) -> None:
    gateway = gateway_of()
    gateway.generate("a", max_tokens=1)
    wait_for(lambda: device_lease().holder is None)

"""run_exclusive: a function of the user's on the engine thread, with the device to itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import GatewayClosed, GatewayDead
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import Defective, Stepped, in_thread, interrupt_when, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


def test_it_runs_on_the_engine_thread_and_its_value_comes_back(gateway_of: Make) -> None:
    gateway = gateway_of(name="mine")
    seen: list[Any] = []

    def look() -> int:
        seen.extend([threading.current_thread().name, device_lease().holder])
        return 42

    assert gateway.run_exclusive(look) == 42
    assert seen[0] == "mlx-notebook engine mine"
    assert (seen[1].owner, seen[1].kind) == ("mine", "exclusive")
    wait_for(lambda: device_lease().holder is None)


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), KeyboardInterrupt()])
def test_its_exception_is_raised_here_and_harms_nobody(gateway_of: Make, error: BaseException) -> None:
    gateway = gateway_of()

    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        gateway.run_exclusive(fails)
    assert caught.value is error
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"


def test_it_takes_a_function(gateway_of: Make) -> None:
    with pytest.raises(TypeError, match="function without arguments, not int"):
        gateway_of().run_exclusive(5)  # type: ignore[arg-type]


def test_rows_before_it_are_finished_and_rows_after_it_wait(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    before = gateway.submit("a", max_tokens=2)
    backend.next()
    job = in_thread(lambda: gateway.run_exclusive(lambda: (before.done(), after[0].done())))
    wait_for(lambda: device_lease().waiting == 1)
    after = [gateway.submit("a", max_tokens=1)]
    backend.free()
    assert job.result() == (True, False)
    after[0].result()


def test_it_waits_for_a_lease_of_another_gateway(gateway_of: Make) -> None:
    gateway, other = gateway_of(), gateway_of()
    ran = threading.Event()
    with other.lease():
        job = in_thread(lambda: gateway.run_exclusive(ran.set))
        wait_for(lambda: device_lease().waiting == 1)
        assert not ran.is_set()
    job.result()
    assert ran.is_set()


def test_interrupted_before_it_began_it_never_runs(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=1)
    backend.next()
    ran = threading.Event()
    interrupting = interrupt_when(lambda: any(job.done._bell._waiters for job in gateway._engine._exclusives))
    with pytest.raises(KeyboardInterrupt):
        gateway.run_exclusive(ran.set)
    interrupting.result()
    assert device_lease().waiting == 0
    backend.free()
    row.result()
    gateway.run_exclusive(lambda: None)
    assert not ran.is_set()


def test_interrupted_while_it_runs_the_device_stays_taken_till_it_is_done(gateway_of: Make) -> None:
    gateway = gateway_of()
    running, finish = threading.Event(), threading.Event()

    def long() -> None:
        running.set()
        finish.wait()

    interrupting = interrupt_when(
        lambda: running.is_set() and any(job.done._bell._waiters for job in gateway._engine._exclusives)
    )
    with pytest.raises(KeyboardInterrupt):
        gateway.run_exclusive(long)
    interrupting.result()
    holder = device_lease().holder
    assert holder is not None
    assert holder.kind == "exclusive"
    finish.set()
    wait_for(lambda: device_lease().holder is None)


def test_closing_the_gateway_fails_the_one_that_waits_at_once(gateway_of: Make) -> None:
    gateway, other = gateway_of(), gateway_of()
    with other.lease():
        job = in_thread(lambda: gateway.run_exclusive(lambda: 1))
        wait_for(lambda: device_lease().waiting == 1)
        gateway.close()
        with pytest.raises(GatewayClosed):
            job.result()
        assert device_lease().waiting == 0
    with pytest.raises(GatewayClosed):
        gateway.run_exclusive(lambda: 1)


def test_an_engine_that_closes_between_the_grant_and_the_run_leaves_the_device_free(gateway_of: Make) -> None:
    """The grant is news in the inbox; an engine that stops before it reads them must not keep the device."""
    backend = Stepped()
    gateway, other = gateway_of(backend), gateway_of()
    row = gateway.submit("a", max_tokens=1)
    backend.until("decode")
    job = in_thread(lambda: gateway.run_exclusive(lambda: 1))
    wait_for(lambda: device_lease().waiting == 1)
    gateway._engine._places.give_up()  # so that the job is granted while the engine stands in a step
    wait_for(lambda: gateway._engine.intake._work)  # type: ignore[arg-type,return-value]
    closing = in_thread(gateway.close)
    with pytest.raises(GatewayClosed):
        job.result()
    backend.free()
    closing.result()
    assert row.cancelled()
    assert other.generate("a", max_tokens=1).finish_reason == "length"


def test_an_engine_that_dies_meanwhile_fails_it(gateway_of: Make) -> None:
    backend = Defective()
    gateway = gateway_of(backend)
    gateway.submit("a", max_tokens=5)
    backend.until("decode")
    job = in_thread(lambda: gateway.run_exclusive(lambda: 1))
    wait_for(lambda: device_lease().waiting == 1)
    backend.broken = True
    backend.go()
    with pytest.raises(GatewayDead, match="on fire"):
        job.result()
    wait_for(lambda: device_lease().holder is None)


def test_many_from_many_threads_each_run_once(gateway_of: Make) -> None:
    gateway = gateway_of()
    counts: list[int] = []
    jobs = [in_thread(lambda n=n: gateway.run_exclusive(lambda: counts.append(n))) for n in range(20)]  # type: ignore[misc]
    for job in jobs:
        job.result()
    assert sorted(counts) == list(range(20))

"""What a request owns is released exactly once, whoever holds it when its row ends. Counted, not assumed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import GatewayClosed, GatewayDead, PlacementMismatch, QueueFull, RowFailed
from mlx_notebook.gateway import submission
from tests.gateway.fakes import Defective, FailingSteps, Resource, Stepped, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> list[Resource]:
    """Every request that is checked from now on owns one more resource, listed here."""
    made: list[Resource] = []
    check = submission.check_call

    def with_resources(*args: Any, **kwargs: Any) -> submission.Submission:
        call = check(*args, **kwargs)
        owning = []
        for request in call.requests:
            made.append(Resource())
            owning.append(replace(request, owned=(made[-1].release,)))
        return replace(call, requests=tuple(owning))

    monkeypatch.setattr(submission, "check_call", with_resources)
    return made


def released(resources: list[Resource]) -> list[int]:
    return [resource.released for resource in resources]


def test_a_finished_row(gateway_of: Make, resources: list[Resource]) -> None:
    gateway_of().generate("a", max_tokens=2)
    assert released(resources) == [1]


def test_it_passes_to_the_backend_when_the_row_opens_and_is_held_till_its_end(
    gateway_of: Make, resources: list[Resource]
) -> None:
    backend = Stepped()
    row = gateway_of(backend).submit("a", max_tokens=2)
    backend.until("decode")
    assert released(resources) == [0]
    backend.free()
    row.result()
    assert released(resources) == [1]


def test_cut_while_queued_and_while_running(gateway_of: Make, resources: list[Resource]) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    rows = [gateway.submit("a", max_tokens=50) for _ in range(3)]
    backend.next()
    rows[1].cancel()
    rows[0].cancel()
    backend.go()
    backend.next()
    rows[2].cancel()
    backend.free()
    assert all(row.exception() for row in rows)
    assert released(resources) == [1, 1, 1]


def test_cut_while_waiting_for_the_device(gateway_of: Make, resources: list[Resource]) -> None:
    gateway = gateway_of()
    with gateway.lease():
        row = gateway.submit("a")
        row.cancel()
        wait_for(row.done)
    assert released(resources) == [1]


def test_a_closed_gateway_disposes_of_the_running_the_waiting_and_the_refused(
    gateway_of: Make, resources: list[Resource]
) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    for _ in range(3):
        gateway.submit("a", max_tokens=50)
    backend.next()
    closing = in_thread(gateway.close)
    wait_for(lambda: gateway.closed)
    backend.free()
    closing.result()
    assert released(resources) == [1, 1, 1]
    with pytest.raises(GatewayClosed):
        gateway.submit("a")
    assert released(resources) == [1] * len(resources)


def test_refused_in_the_very_moment_of_closing(gateway_of: Make, resources: list[Resource]) -> None:
    gateway = gateway_of()
    gateway._engine.intake.submit = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(GatewayClosed):
        gateway.submit("a")
    assert released(resources) == [1]


def test_a_dead_engine(gateway_of: Make, resources: list[Resource]) -> None:
    backend = Defective()
    gateway = gateway_of(backend)
    rows = [gateway.submit("a", max_tokens=50) for _ in range(3)]
    backend.until("decode")
    backend.broken = True
    backend.go()
    assert all(isinstance(row.exception(), GatewayDead) for row in rows)
    gateway.close()
    assert released(resources) == [1, 1, 1]


def test_a_full_queue_rejects_the_whole_call(gateway_of: Make, resources: list[Resource]) -> None:
    backend = Stepped()
    gateway = gateway_of(backend, max_queued=2)
    running = gateway.submit("a", max_tokens=1)
    backend.next()
    with pytest.raises(QueueFull):
        gateway.submit(["b", "c", "d"])
    backend.free()
    running.result()
    assert gateway.wait_idle()
    assert released(resources) == [1, 1, 1, 1]
    assert backend.opened == [running.id]


def test_a_foreign_placement(gateway_of: Make, resources: list[Resource]) -> None:
    gateway = gateway_of()
    placement = gateway.place("a")
    before = len(resources)
    with pytest.raises(PlacementMismatch):
        gateway.submit("b", placement=placement)
    assert released(resources[before:]) == [1]


def test_a_row_that_fails_and_one_that_is_rewound(gateway_of: Make, resources: list[Resource]) -> None:
    gateway = gateway_of(FailingSteps(1, 5, 6))
    gateway.generate("a", max_tokens=3)
    with pytest.raises(RowFailed):
        gateway.generate("a", max_tokens=50)
    assert released(resources) == [1, 1]


class OpensNothing(Stepped):
    def open(self, request: Any) -> None:
        super().open(request)
        raise MemoryError("no room")


def test_a_row_that_cannot_be_opened(gateway_of: Make, resources: list[Resource]) -> None:
    row = gateway_of(OpensNothing()).submit("a")
    with pytest.raises(RowFailed, match="no room"):
        row.result()
    assert released(resources) == [1]


@pytest.mark.parametrize("opened", [True, False])
def test_a_release_that_fails_does_not_stop_the_others_nor_hide_the_outcome(
    gateway_of: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, opened: bool
) -> None:
    own = [Resource(), Resource(fails=True), Resource()]
    check = submission.check_call

    def with_all(*args: Any, **kwargs: Any) -> submission.Submission:
        call = check(*args, **kwargs)
        request = replace(call.requests[0], owned=tuple(resource.release for resource in own))
        return replace(call, requests=(request,))

    gateway = gateway_of()
    monkeypatch.setattr(submission, "check_call", with_all)
    if opened:
        assert gateway.generate("a", max_tokens=2).finish_reason == "length"
    else:
        with gateway.lease():
            row = gateway.submit("a")
            row.cancel()
            wait_for(row.done)
    assert released(own) == [1, 1, 1]
    assert "this release fails" in caplog.text
    monkeypatch.undo()
    assert gateway.generate("a", max_tokens=2).finish_reason == "length"

"""Ctrl-C: it cancels what the interrupted execution submitted and nothing else, and breaks nothing anywhere."""

from __future__ import annotations

import gc
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import Cancelled
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.handles import Handles, as_completed, wait
from mlx_notebook.gateway.hooks import Execution, hooks
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook import blocking
from mlx_notebook.notebook.blocking import follow, interruptible
from tests.gateway.fakes import Background, Stepped, in_thread, interrupt_when, wait_for
from tests.gateway.interrupting import at_every_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlx_notebook.gateway.handle import Handle

    Make = Callable[..., Gateway]

WAITS: dict[str, Callable[[Handle], object]] = {
    "result": lambda handle: handle.result(),
    "exception": lambda handle: handle.exception(),
    "text": lambda handle: handle.text,
    "iteration": list,
    "results": lambda handle: Handles([handle]).results(),
    "as_completed": lambda handle: list(as_completed([handle])),
    "wait": lambda handle: wait([handle]),
}


def main_waits() -> bool:
    """Whether the main thread is inside one of our waits."""
    ident = threading.main_thread().ident
    assert ident is not None
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code.co_name in {"sleep_until", "wait_until"}:
            return True
        frame = frame.f_back
    return False


def interrupted(call: Callable[[], object]) -> None:
    """Run `call` on this thread and interrupt it once it waits."""
    interrupting: Background = interrupt_when(main_waits)
    with pytest.raises(KeyboardInterrupt):
        call()
    interrupting.result()


class Host:
    """Stands for the notebook: says which cell runs, and hears of interrupts."""

    def __init__(self) -> None:
        self.execution: Execution | None = None
        self.heard: list[tuple[set[int], set[int]]] = []
        hooks.execution = lambda: self.execution
        hooks.interrupted = lambda cut, left: self.heard.append(({h.id for h in cut}, {h.id for h in left}))

    def cell(self, cell: str, run: str) -> None:
        self.execution = Execution(cell, run)


@pytest.mark.parametrize("how", WAITS)
def test_it_cancels_the_cells_own_rows_and_tells_what_still_runs(gateway_of: Make, how: str) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    host = Host()
    host.cell("one", "1")
    earlier = gateway.submit("a", max_tokens=2)
    host.cell("two", "2")
    mine = [gateway.submit("a", max_tokens=2) for _ in range(2)]
    backend.next()
    interrupted(lambda: WAITS[how](mine[0]))
    backend.free()
    assert all(isinstance(row.exception(), Cancelled) for row in mine)
    assert earlier.result().finish_reason == "length"
    assert host.heard == [({row.id for row in mine}, {earlier.id})]


@pytest.mark.parametrize("how", WAITS)
def test_waiting_for_another_cells_row_it_cancels_nothing(gateway_of: Make, how: str) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    host = Host()
    host.cell("one", "1")
    theirs = gateway.submit("a", max_tokens=2)
    host.cell("two", "2")
    backend.next()
    interrupted(lambda: WAITS[how](theirs))
    backend.free()
    assert theirs.result().finish_reason == "length"
    assert host.heard == [(set(), {theirs.id})]


def test_the_same_cell_run_again_is_another_execution(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    host = Host()
    host.cell("one", "1")
    before = gateway.submit("a", max_tokens=2)
    host.cell("one", "2")
    mine = gateway.submit("a", max_tokens=2)
    backend.next()
    interrupted(mine.result)
    backend.free()
    assert before.result().finish_reason == "length"
    assert mine.cancelled()


@pytest.mark.parametrize("how", WAITS)
def test_without_a_host_it_cancels_what_was_waited_for(gateway_of: Make, how: str) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    waited, other = gateway.submit("a", max_tokens=2), gateway.submit("a", max_tokens=2)
    backend.next()
    interrupted(lambda: WAITS[how](waited))
    backend.free()
    assert isinstance(waited.exception(), Cancelled)
    assert other.result().finish_reason == "length"


def test_without_a_host_all_of_several(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    several = gateway.submit(["a", "b"], max_tokens=2)
    backend.next()
    interrupted(several.results)
    backend.free()
    assert all(isinstance(row.exception(), Cancelled) for row in several)


# ---------------------------------------------------------------- wherever it lands


@pytest.fixture
def only_new_garbage() -> Iterator[None]:
    """Collecting looks at what the test made, not at all the libraries that are loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def submit_and_wait(gateway: Gateway) -> None:
    gateway.submit("a", max_tokens=2).result()


def submit_several(gateway: Gateway) -> None:
    list(as_completed(gateway.submit(["a", "b"], max_tokens=2)))


def read_deltas(gateway: Gateway) -> None:
    list(gateway.submit("a", max_tokens=2))


def lease(gateway: Gateway) -> None:
    with gateway.lease():
        gateway.submit("a", max_tokens=1)


def run_exclusive(gateway: Gateway) -> None:
    gateway.run_exclusive(lambda: None)


def cancel(gateway: Gateway) -> None:
    gateway.submit("a", max_tokens=50).cancel()


def follow_in_a_cell(gateway: Gateway) -> None:
    """The row is not over before the wait for it has begun: whoever ends it then has somebody to wake."""
    begun: list[bool] = []
    try:
        row = gateway.submit("a", max_tokens=2, on_token=lambda *_: wait_for(lambda: bool(begun)))
        with interruptible():
            follow(row, lambda: begun.append(True))
    finally:
        begun.append(True)


SCENARIOS = [
    submit_and_wait,
    submit_several,
    read_deltas,
    lease,
    run_exclusive,
    cancel,
    follow_in_a_cell,
]


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_wherever_an_interrupt_lands_everything_still_works(
    gateway_of: Make, scenario: Callable[[Gateway], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "TICK_S", 0.001)
    gateway, other = gateway_of(), gateway_of()
    points: list[str] = []
    for where in at_every_point(lambda: scenario(gateway)):
        points.append(where)
        # Nothing of what was interrupted keeps the device, a row, or a lock.
        assert gateway.wait_idle(), where
        for each in (gateway, other):
            assert in_thread(partial(each.generate, "b", max_tokens=2)).result().generated_tokens == 2, where
        assert gateway.wait_idle(), where
        wait_for(lambda: device_lease().holder is None)
    assert len(points) > 20


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_submitting_for_later_no_row_is_open_that_nobody_can_end(
    gateway_of: Make,
) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    first = gateway.submit("a", max_tokens=2)
    backend.next()
    open_rows = gateway._engine.intake.records
    points = 0
    for where in at_every_point(lambda: gateway.submit_after(first, lambda: "b", "b")):
        points += 1
        for handle in registry.live_handles():
            assert handle is first or handle.cancel(), where
        assert [record.id for record in in_thread(open_rows).result()] == [first.id], where
    assert points > 20
    backend.free()
    assert first.result().generated_tokens == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_loading_no_engine_is_left(only_new_garbage: None) -> None:  # noqa: ARG001
    def engines() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("mlx-notebook engine")]

    points: list[str] = []
    for where in at_every_point(lambda: Gateway.from_backend(ScriptedBackend()).close()):
        points.append(where)
        wait_for(lambda: (gc.collect(), not engines())[1])
        wait_for(lambda: device_lease().holder is None)
    assert len(points) > 20


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_close_closing_again_closes(gateway_of: Make) -> None:
    made: list[Any] = []

    def scenario() -> None:
        made[-1].close()

    def fresh() -> None:
        made.append(gateway_of())
        made[-1].submit("a", max_tokens=5)

    fresh()
    for _ in at_every_point(scenario):
        row = made[-1].submit("a") if not made[-1].closed else None
        made[-1].close()
        assert made[-1]._engine._ended.is_set()
        assert row is None or row.done()
        fresh()

"""Handles in coroutines: await, async for, closed loops, cancelled tasks."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import Cancelled, RowFailed
from tests.gateway.fakes import Stepped, in_thread, interrupt_main, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle

    Make = Callable[..., Gateway]


def test_await_gives_the_result(gateway_of: Make) -> None:
    gateway = gateway_of()

    async def cell() -> None:
        result = await gateway.submit("a", max_tokens=3)
        assert result.generated_tokens == 3
        with pytest.raises(RowFailed, match="ZeroDivisionError"):
            await gateway.submit("a", on_token=lambda *_: 1 / 0)
        results = await gateway.submit(["a", "b"], max_tokens=2)
        assert [r.generated_tokens for r in results] == [2, 2]

    asyncio.run(cell())


def test_async_for_gives_the_deltas(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(script=lambda _row, index: f"{index},"))

    async def cell() -> str:
        return "".join([delta async for delta in gateway.submit("a", max_tokens=5)])

    assert asyncio.run(cell()) == "0,1,2,3,4,"


def test_the_loop_lives_while_a_row_runs(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)

    async def cell() -> int:
        handle = gateway.submit("a", max_tokens=2)
        beats = 0
        task = asyncio.ensure_future(_result_of(handle))
        while not task.done():
            beats += 1
            if beats == 3:
                backend.free()
            await asyncio.sleep(0)
        assert (await task).finish_reason == "length"
        return beats

    assert asyncio.run(cell()) >= 3


async def _result_of(handle: Handle) -> Any:
    return await handle


@pytest.mark.parametrize("how", ["await", "async for"])
def test_a_cancelled_task_cancels_its_row_and_no_other(gateway_of: Make, how: str) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)

    async def reads(handle: Handle) -> None:
        if how == "await":
            await handle
        else:
            async for _ in handle:
                pass

    async def cell() -> tuple[Handle, Handle]:
        mine, other = gateway.submit("a", max_tokens=50), gateway.submit("a", max_tokens=2)
        task = asyncio.ensure_future(reads(mine))
        await asyncio.sleep(0)  # it is waiting now
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return mine, other

    mine, other = asyncio.run(cell())
    backend.free()
    assert isinstance(mine.exception(), Cancelled)
    assert other.result().finish_reason == "length"


def test_gathering_that_is_cut_cancels_the_rest(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)

    async def cell() -> Any:
        handles = gateway.submit(["a", "b"], max_tokens=50)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handles, timeout=0.01)
        return handles

    handles = asyncio.run(cell())
    backend.free()
    assert all(isinstance(handle.exception(), Cancelled) for handle in handles)


def test_a_loop_that_closed_meanwhile_harms_nobody(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    handle = gateway.submit("a", max_tokens=3)
    loop = asyncio.new_event_loop()
    coroutine = handle._await()
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()  # the task waits now, and its loop goes away under it
    loop.close()
    backend.free()
    assert handle.result().finish_reason == "length"
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"
    # Nobody can run the task to its end any more: take its frame apart quietly.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError):
        coroutine.throw(RuntimeError("the loop is closed"))


def test_an_interrupt_of_a_coroutine_cancels_what_it_waits_for(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    handles: list[Handle] = []

    async def cell() -> None:
        handles.append(gateway.submit("a", max_tokens=50))
        asyncio.get_running_loop().call_soon(interrupt_main)
        await handles[0]

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    backend.free()
    assert isinstance(handles[0].exception(), Cancelled)


def test_many_tasks_in_several_loops(gateway_of: Make) -> None:
    gateway = gateway_of()
    ended = threading.Event()

    async def cell() -> list[int]:
        results = await asyncio.gather(*(gateway.submit("a", max_tokens=n) for n in range(1, 9)))
        return [result.generated_tokens for result in results]

    loops = [in_thread(lambda: asyncio.run(cell())) for _ in range(3)]
    assert all(loop.result() == list(range(1, 9)) for loop in loops)
    ended.set()
    wait_for(lambda: not gateway.busy)

"""A blocking call of ours that would wait for its own thread raises at once, and everything goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import RowFailed, WouldDeadlock
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.handles import as_completed, wait

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]


def enter(gateway: Gateway) -> None:
    with gateway.lease():
        pass


async def awaiting(waited_for: Any) -> None:
    await waited_for


async def iterating(handle: Any) -> None:
    async for _ in handle:
        pass


BLOCKING: dict[str, Callable[[Gateway, Any], object]] = {
    "result": lambda _gateway, handle: handle.result(),
    "result with a timeout": lambda _gateway, handle: handle.result(timeout=0),
    "exception": lambda _gateway, handle: handle.exception(),
    "text": lambda _gateway, handle: handle.text,
    "str": lambda _gateway, handle: str(handle),
    "token_ids": lambda _gateway, handle: handle.token_ids,
    "logprobs": lambda _gateway, handle: handle.logprobs,
    "stats": lambda _gateway, handle: handle.stats,
    "iteration": lambda _gateway, handle: list(handle),
    "await": lambda _gateway, handle: asyncio.run(awaiting(handle)),
    "async iteration": lambda _gateway, handle: asyncio.run(iterating(handle)),
    "results": lambda _gateway, handle: mn.Handles([handle]).results(),
    "to_frame": lambda _gateway, handle: mn.Handles([handle]).to_frame(),
    "as_completed": lambda _gateway, handle: list(as_completed([handle])),
    "wait": lambda _gateway, handle: wait([handle]),
    "generate": lambda gateway, _handle: gateway.generate("b"),
    "lease": lambda gateway, _handle: enter(gateway),
    "run_exclusive": lambda gateway, _handle: gateway.run_exclusive(lambda: None),
    "wait_idle": lambda gateway, _handle: gateway.wait_idle(),
    "restart": lambda gateway, _handle: gateway.restart(),
    "a new gateway": lambda _gateway, _handle: Gateway.from_backend(ScriptedBackend()),
    "a new gateway by name": lambda _gateway, _handle: Gateway("smollm2"),
    "a new gateway of a loaded model": lambda _gateway, _handle: Gateway.from_loaded(None, None),
}


@pytest.mark.parametrize("call", BLOCKING)
def test_from_a_callback_it_raises_in_that_row_and_the_next_row_works(gateway_of: Make, call: str) -> None:
    gateway = gateway_of()
    handles: list[Any] = []

    def on_token(*_: object) -> None:
        BLOCKING[call](gateway, handles[0])

    with gateway.lease():  # so that the handle is there before the first token
        handles.append(gateway.submit("a", on_token=on_token, max_tokens=5))
    with pytest.raises(RowFailed, match=r"WouldDeadlock: .* on the engine thread"):
        handles[0].result()
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"


@pytest.mark.parametrize("call", BLOCKING)
def test_by_the_holder_of_the_lease_it_raises_and_the_lease_stays(gateway_of: Make, call: str) -> None:
    gateway = gateway_of()
    with gateway.lease():
        handle = gateway.submit("a", max_tokens=2)
        with pytest.raises(WouldDeadlock, match="while this thread holds the device lease"):
            BLOCKING[call](gateway, handle)
        assert not handle.done()
    assert handle.result().finish_reason == "length"


@pytest.mark.parametrize("call", [name for name in BLOCKING if "gateway" not in name])
def test_in_run_exclusive_it_raises_to_the_caller(gateway_of: Make, call: str) -> None:
    gateway = gateway_of()

    def job() -> None:
        BLOCKING[call](gateway, gateway.submit("a", max_tokens=1))

    with pytest.raises(WouldDeadlock, match="on the engine thread"):
        gateway.run_exclusive(job)
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"


def test_another_gateways_lease_counts_too(gateway_of: Make) -> None:
    one, two = gateway_of(), gateway_of()
    with one.lease():
        handle = two.submit("a", max_tokens=1)
        with pytest.raises(WouldDeadlock):
            handle.result()
    handle.result()


def test_what_is_over_may_be_read_anywhere(gateway_of: Make) -> None:
    gateway = gateway_of()
    handle = gateway.submit("a", max_tokens=2)
    handle.result()
    with gateway.lease():
        assert handle.text == handle.result().text == "".join(handle)
        assert list(as_completed([handle])) == [handle]
        assert asyncio.run(_result_of(handle)) == handle.result()
    assert gateway.run_exclusive(lambda: handle.text) == handle.text


async def _result_of(handle: Any) -> Any:
    return await handle


def test_calls_that_do_not_block_work_in_a_callback(gateway_of: Make) -> None:
    gateway = gateway_of()
    seen: list[Any] = []

    def on_token(*_: object) -> bool:
        later = gateway.submit("b", max_tokens=2)
        seen.extend([later, later.progress(), repr(later), later.text_so_far, gateway.stats(), gateway.busy])
        return False

    gateway.submit("a", on_token=on_token).result()
    assert seen[0].result().finish_reason == "length"
    assert seen[-1] is True


def test_close_in_a_callback_asks_for_the_end_and_returns(gateway_of: Make) -> None:
    gateway = gateway_of()
    row = gateway.submit("a", on_token=lambda *_: gateway.close(), max_tokens=50)
    error = row.exception()
    assert error is not None
    assert error.result.finish_detail == "closed"
    assert gateway._engine.join(None)
    gateway.restart()
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"

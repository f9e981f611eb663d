"""Several threads do what they like to gateways that fail now and then: nothing lost, nothing twice, nobody left."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_notebook.core.events import Decode, Kept, Prefill, PrefillDone, StepDone, StepFailed
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import (
    Cancelled,
    GatewayClosed,
    GatewayDead,
    MlxNotebookError,
    QueueFull,
    RowFailed,
    WouldDeadlock,
)
from mlx_notebook.gateway import submission
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import Resource, in_thread, wait_for
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.core.request import Request


class Faulty(ScriptedBackend):
    """Fails by chance, and checks that it is used as a backend may be used."""

    def __init__(self, seed: int, *, defects: bool, **how: Any) -> None:
        super().__init__(**how)
        self._random = random.Random(seed)
        self._defects = defects
        self._thread: int | None = None
        self.opened: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()
        self.wrong: list[str] = []

    def _chance(self, one_in: int) -> bool:
        return self._random.randrange(one_in) == 0

    def _check(self, *row_ids: int) -> None:
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            self.wrong.append("used from two threads")
        if len(row_ids) > self.capabilities.max_rows:
            self.wrong.append(f"{len(row_ids)} rows at once")
        self.wrong += [f"row {n} is not open" for n in row_ids if n not in self._rows]

    def open(self, request: Request, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        self._check()
        self.opened[request.id] += 1
        super().open(request, entry_id, cached_tokens)
        if self._chance(20):
            raise MemoryError("by chance")

    def prefill(self, instruction: Prefill) -> PrefillDone:
        rows = [part.row_id for part in instruction.parts]
        self._check(*rows)
        done = super().prefill(instruction)
        return replace(done, errors={rows[-1]: ("by chance", "")}) if self._chance(30) else done

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        self._check(*instruction.row_ids)
        if self._defects and self._chance(60):
            raise RuntimeError("a defect, by chance")
        if self._chance(10):
            return StepFailed(0, instruction.row_ids, ("the step, by chance", ""))
        return super().decode(instruction)

    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Kept | None:
        if row_id in self._rows:
            self.dropped[row_id] += 1
        return super().drop(row_id, keep_as, keep_tokens)

    def close(self) -> None:
        super().close()
        self._thread = None  # a restarted engine has a thread of its own


@contextlib.contextmanager
def owning() -> Iterator[list[Resource]]:
    """Every request that is checked inside owns a resource, listed here."""
    made: list[Resource] = []
    check = submission.check_call

    def with_resources(*args: Any, **kwargs: Any) -> submission.Submission:
        call = check(*args, **kwargs)
        requests = []
        for request in call.requests:
            resource = Resource()
            made.append(resource)
            requests.append(replace(request, owned=(resource.release,)))
        return replace(call, requests=tuple(requests))

    submission.check_call = with_resources
    try:
        yield made
    finally:
        submission.check_call = check


ACTIONS = (
    ("submit",) * 8
    + ("several", "cancel", "cancel", "deadline", "callback", "failing_callback")
    + ("lease", "short_lease", "exclusive", "break", "read", "close", "restart")
)


class Caller:
    """One thread's doings, by its own random stream."""

    def __init__(self, seed: int, gateways: list[Gateway], *, closes: bool) -> None:
        self.random = random.Random(seed)
        self.gateways = gateways
        self.closes = closes
        self.handles: list[Any] = []
        self.ended: Counter[int] = Counter()

    def run(self, count: int) -> None:
        for _ in range(count):
            gateway = self.random.choice(self.gateways)
            with contextlib.suppress(GatewayClosed, GatewayDead, QueueFull, TimeoutError):
                self.act(gateway, self.random.choice(ACTIONS))

    def act(self, gateway: Gateway, action: str) -> None:
        getattr(self, f"do_{action}")(gateway)

    def do_submit(self, gateway: Gateway, **how: Any) -> None:
        prompt, max_tokens = "p" * self.random.randint(1, 9), self.random.randint(1, 6)
        self.keep(gateway.submit(prompt, max_tokens=max_tokens, priority=self.random.randint(0, 1), **how))

    def do_several(self, gateway: Gateway) -> None:
        for handle in gateway.submit(["x", "yz"], n=2, max_tokens=2):
            self.keep(handle)

    def do_cancel(self, _gateway: Gateway) -> None:
        for handle in self.random.sample(self.handles, min(1, len(self.handles))):
            handle.cancel()

    def do_deadline(self, gateway: Gateway) -> None:
        self.do_submit(gateway, deadline=self.random.choice([1e-9, 0.002, 10]))

    def do_callback(self, gateway: Gateway) -> None:
        self.do_submit(gateway, on_token=lambda *_: self.random.random() < 0.8)

    def do_failing_callback(self, gateway: Gateway) -> None:
        self.do_submit(gateway, on_token=lambda *_: 1 / self.random.randrange(3))

    def do_lease(self, gateway: Gateway) -> None:
        with gateway.lease():
            self.do_submit(gateway)
            with contextlib.suppress(WouldDeadlock):
                gateway.wait_idle()

    def do_short_lease(self, gateway: Gateway) -> None:
        with gateway.lease(timeout=0.001):
            pass

    def do_exclusive(self, gateway: Gateway) -> None:
        name = gateway.run_exclusive(lambda: threading.current_thread().name)
        assert name.startswith("mlx-notebook engine")

    def do_break(self, gateway: Gateway) -> None:
        gateway.break_lease()

    def do_read(self, _gateway: Gateway) -> None:
        for handle in self.random.sample(self.handles, min(1, len(self.handles))):
            with contextlib.suppress(MlxNotebookError):
                assert "".join(handle) == handle.text

    def do_close(self, gateway: Gateway) -> None:
        if self.closes:
            gateway.close()

    def do_restart(self, gateway: Gateway) -> None:
        if self.closes:
            gateway.restart()

    def keep(self, handle: Any) -> None:
        self.handles.append(handle)
        handle.add_done_callback(lambda h: self.ended.update([h.id]))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    rows=st.sampled_from([1, 3]),
    continuous=st.booleans(),
    closes=st.booleans(),
    defects=st.booleans(),
)
def test_nothing_is_lost_nothing_ends_twice_nobody_is_left(
    caplog: pytest.LogCaptureFixture, *, seed: int, rows: int, continuous: bool, closes: bool, defects: bool
) -> None:
    caplog.set_level("CRITICAL", "mlx_notebook")
    before = set(threading.enumerate())
    capabilities = Capabilities(vocab_size=0x110000, max_rows=rows, continuous=continuous)
    backends = [Faulty(seed + n, defects=defects, capabilities=capabilities) for n in range(2)]
    with owning() as resources:
        gateways = [Gateway.from_backend(backend, max_queued=30, prefill_chunk=3) for backend in backends]
        callers = [Caller(seed + n, gateways, closes=closes) for n in range(4)]
        for thread in [in_thread(lambda caller=caller: caller.run(40)) for caller in callers]:  # type: ignore[misc]
            thread.result()
        for gateway in gateways:
            gateway.wait_idle()
            gateway.close()
    handles = [handle for caller in callers for handle in caller.handles]
    wait_for(lambda: all(caller.ended == Counter(h.id for h in caller.handles) for caller in callers))
    for handle in handles:
        error = handle.exception()  # over, so this cannot wait
        assert error is None or isinstance(error, Cancelled | RowFailed | GatewayDead)
        assert error is not None or handle.result().generated_tokens > 0
    assert [resource.released for resource in resources] == [1] * len(resources)
    for backend in backends:
        assert backend.wrong == []
        assert backend.opened == backend.dropped
        assert set(backend.opened.values()) <= {1}
    assert device_lease().holder is None
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("kinds", [("llama", "lfm2"), ("gemma3_text", "llama")])
def test_the_same_over_real_engines(kinds: tuple[str, str], *, closes: bool) -> None:
    before = set(threading.enumerate())
    with owning() as resources:
        gateways = [Gateway.from_loaded(*small(kind), batch=4, max_queued=30, prefill_chunk=16) for kind in kinds]
        callers = [Caller(seed, gateways, closes=closes) for seed in range(4)]
        for thread in [in_thread(lambda caller=caller: caller.run(40)) for caller in callers]:  # type: ignore[misc]
            thread.result()
        for gateway in gateways:
            gateway.wait_idle()
        wait_for(lambda: device_lease().holder is None)
        for gateway in gateways:
            if not gateway.closed:
                backend: Any = gateway._loop._backend
                assert not backend._rows
                assert backend.held_bytes() == gateway.stats().prompt_cache.bytes
            gateway.close()
    handles = [handle for caller in callers for handle in caller.handles]
    wait_for(lambda: all(caller.ended == Counter(h.id for h in caller.handles) for caller in callers))
    for handle in handles:
        error = handle.exception()  # over, so this cannot wait
        assert error is None or isinstance(error, Cancelled | RowFailed)
        assert error is not None or handle.result().generated_tokens > 0
    assert [resource.released for resource in resources] == [1] * len(resources)
    assert set(threading.enumerate()) <= before

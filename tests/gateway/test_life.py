"""A gateway's life in one process: made, asked, forgotten, closed, restarted; and its figures."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import GatewayClosed, OverBudget, OverContext, QueueFull, UnsupportedRequest
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.registry import registry
from tests.gateway.fakes import Stepped, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]


def engine_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("mlx-notebook engine")]


# ---------------------------------------------------------------- forgotten


def test_a_forgotten_gateway_closes_itself() -> None:
    gateway = Gateway.from_backend(ScriptedBackend())
    handle = gateway.submit("a", max_tokens=2)
    handle.result()
    watched, engine = weakref.ref(gateway), gateway._engine
    del gateway
    wait_for(lambda: (gc.collect(), watched() is None)[1])
    assert engine.join(None)
    assert not engine_threads()
    assert handle.text
    assert not handle.cancel()


def test_one_with_rows_lives_till_they_are_over() -> None:
    backend = Stepped()
    gateway = Gateway.from_backend(backend)
    handle = gateway.submit("a", max_tokens=3)
    watched, engine = weakref.ref(gateway), gateway._engine
    del gateway
    backend.next()
    gc.collect()
    assert watched() is not None
    backend.free()
    assert handle.result().generated_tokens == 3
    wait_for(lambda: (gc.collect(), watched() is None)[1])
    assert engine.join(None)


def test_a_held_one_stays_till_it_is_closed() -> None:
    gateway = Gateway.from_backend(ScriptedBackend(), name="held")
    registry.hold(gateway)
    watched = weakref.ref(gateway)
    del gateway
    gc.collect()
    assert mn.gateways["held"] is watched()
    mn.gateways["held"].close()
    assert "held" not in mn.gateways
    wait_for(lambda: (gc.collect(), watched() is None)[1])


# ---------------------------------------------------------------- closed and restarted


def test_restart_after_close(gateway_of: Make) -> None:
    gateway = gateway_of(name="again")
    old = gateway.submit("a", max_tokens=1)
    old.result()
    gateway.close()
    assert "again" not in mn.gateways
    gateway.restart()
    assert mn.gateways["again"] is mn.current() is gateway
    assert gateway.submit("a", max_tokens=1).result().text
    assert old.text
    assert len(engine_threads()) == 1


def test_restart_of_a_living_one_cancels_what_runs(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=50)
    backend.next()
    restarting = in_thread(gateway.restart)
    error = row.exception()
    assert error is not None
    assert error.result.finish_detail == "closed"
    backend.free()
    restarting.result()
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"
    assert not gateway.handles


def test_as_a_context_manager(gateway_of: Make) -> None:
    with gateway_of() as gateway:
        row = gateway.submit("a", max_tokens=1)
        row.result()
    assert gateway.closed
    with pytest.raises(GatewayClosed):
        gateway.generate("a")


def test_closing_from_many_threads_at_once(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    rows = [gateway.submit("a", max_tokens=50) for _ in range(4)]
    backend.next()
    closers = [in_thread(gateway.close) for _ in range(4)]
    assert all(row.exception() is not None for row in rows)
    backend.free()
    for closer in closers:
        closer.result()
    assert not engine_threads()


# ---------------------------------------------------------------- by name


def test_names_and_the_current_one(gateway_of: Make) -> None:
    first, second = gateway_of(name="same"), gateway_of(name="same")
    assert (first.name, second.name) == ("same", "same-2")
    assert mn.current() is second
    registry.make_current(first)
    assert mn.current() is first
    first.close()
    assert mn.current() is second
    assert mn.submit("a", max_tokens=1).result().text == mn.last.text  # type: ignore[union-attr]
    assert mn.generate("a", max_tokens=1).finish_reason == "length"
    assert list(mn.gateways) == ["same-2"]
    assert "same-2" in repr(mn.gateways)
    with pytest.raises(KeyError, match="no gateway is called 'same'; there are: same-2"):
        mn.gateways["same"]
    second.close()
    with pytest.raises(GatewayClosed, match=r"%mlxload smollm2"):
        mn.current()


@pytest.mark.parametrize(
    ("setting", "value", "error", "says"),
    [
        ("batch", 0, ValueError, "batch"),
        ("batch", "many", TypeError, "batch"),
        ("kv", "turbo", ValueError, "kv="),
        ("deterministic", "yes", TypeError, "deterministic"),
        ("policy", "fair", ValueError, "policy"),
        ("kv_budget", "4XB", ValueError, "kv_budget"),
        ("prompt_cache", -1, ValueError, "prompt_cache"),
        ("prefill_chunk", 0, ValueError, "prefill_chunk"),
        ("max_queued", 0, ValueError, "max_queued"),
        ("dtype", "int8", ValueError, "float32"),
        ("name", "", TypeError, "name"),
        ("trust_remote_code", 1, TypeError, "trust_remote_code"),
        ("revision", 5, TypeError, "revision"),
        ("surprise", 5, TypeError, "unknown setting 'surprise'; known settings: batch, kv"),
        ("max_queue", 5, TypeError, "did you mean 'max_queued'"),
        ("dtype", "float16", ValueError, "dtype='float16' says how a model is loaded, .* is loaded already: "),
        ("revision", "main", ValueError, "revision='main' says how .* Hugging Face id"),
        ("trust_remote_code", True, ValueError, "trust_remote_code=True says how .* folder"),
        ("checkpoints", 5, UnsupportedRequest, "setting 'checkpoints' is not served by this version"),
        ("draft", "x", UnsupportedRequest, "setting 'draft' is not served by this version"),
        ("adapters", None, UnsupportedRequest, "setting 'adapters' is not served by this version"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_made(
    setting: str, value: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Gateway.from_backend(ScriptedBackend(), **{setting: value})
    assert not engine_threads()


def test_a_loaded_model_takes_no_settings_of_a_load_but_their_defaults() -> None:
    with pytest.raises(ValueError, match="dtype='float16' says how a model is loaded"):
        Gateway.from_loaded(None, None, dtype="float16")
    with Gateway.from_backend(ScriptedBackend(), dtype=None, revision=None, trust_remote_code=False) as gateway:
        assert not gateway.closed


@pytest.mark.parametrize("setting", ["checkpoints", "draft", "adapters"])
def test_a_setting_of_a_later_version_is_refused_by_name_before_a_model_is_looked_for(setting: str) -> None:
    given: dict[str, Any] = {setting: "x"}
    with pytest.raises(UnsupportedRequest, match=f"setting '{setting}'") as caught:
        Gateway("no such model", **given)
    assert [reason.code for reason in caught.value.reasons] == [f"{setting}-unsupported"]


@pytest.mark.parametrize(
    ("method", "given"),
    [("mount", ("a",)), ("unmount", ("a",)), ("score", (["a"], ["b"])), ("replay", ()), ("branch", (3,))],
)
def test_a_method_of_a_later_version_is_refused_by_name(gateway_of: Make, method: str, given: tuple[Any, ...]) -> None:
    gateway = gateway_of()
    handle = gateway.submit("a", max_tokens=1)
    owner: Any = handle if method == "branch" else gateway
    with pytest.raises(UnsupportedRequest, match=rf"{method}\(\) is not served by this version") as caught:
        getattr(owner, method)(*given, temperature=1.0)
    assert [reason.code for reason in caught.value.reasons] == [f"{method}-unsupported"]
    assert method not in dir(owner)
    assert {"submit", "result"} & set(dir(owner))
    handle.result()


# ---------------------------------------------------------------- limits and figures


def test_a_full_queue_names_the_numbers(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend, max_queued=2)
    running = gateway.submit("a", max_tokens=1)
    backend.next()  # it left the queue
    waiting = [gateway.submit("a", max_tokens=1) for _ in range(2)]
    with pytest.raises(QueueFull, match=r"2 rows wait and max_queued is 2: .* map\(\)") as caught:
        gateway.submit("a")
    assert (caught.value.queued, caught.value.limit) == (2, 2)
    waiting[0].cancel()
    backend.free()
    assert [row.exception() is None for row in (running, *waiting)] == [True, False, True]
    assert gateway.generate("a", max_tokens=1).finish_reason == "length"


def test_busy_from_the_moment_of_enqueue_till_the_last_row_is_over(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    busy = [gateway.busy]
    assert gateway.wait_idle(timeout=0)
    with gateway.lease():
        rows = [gateway.submit("a", max_tokens=1) for _ in range(2)]
        busy.append(gateway.busy)
    assert busy == [False, True]
    assert not gateway.wait_idle(timeout=0.01)
    assert repr(gateway) == "<Gateway 'scripted': scripted, busy>"
    assert [h.id for h in gateway.handles] == [row.id for row in rows]
    backend.free()
    assert gateway.wait_idle()
    assert not gateway.busy
    assert all(row.done() for row in rows)
    assert repr(gateway) == "<Gateway 'scripted': scripted, idle>"


# Columns come in blocks of 64: rows of up to 64 tokens take 650 bytes, longer ones 1290.
SMALL = Capabilities(vocab_size=128, context_length=100, kv_bytes_per_token=10, state_bytes=10)


def test_the_context_and_the_budget(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(capabilities=SMALL), kv_budget=900)
    assert gateway.context_length == 100
    with pytest.raises(OverContext, match="100 tokens and the model's context is 100") as caught:
        gateway.submit("a" * 100)
    assert (caught.value.needed, caught.value.limit) == (101, 100)
    with pytest.raises(OverBudget, match="budget is 900 B") as over:
        gateway.submit("a" * 6, max_tokens=1000)
    assert (over.value.needed, over.value.budget) == (1290, 900)  # never more than the context
    assert gateway.submit("a" * 6, max_tokens=2).result().generated_tokens == 2


def test_an_estimate_queues_nothing_and_says_what_would_not_fit(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(capabilities=SMALL), kv_budget=900)
    estimate = gateway.estimate(["ab", "a" * 66, "a" * 100, "a" * 99], max_tokens=4)
    assert estimate.prompt_tokens == (2, 66, 100, 99)
    assert estimate.total_tokens == 6 + 70 + 100 + 100
    assert (estimate.largest_bytes, estimate.budget_bytes) == (1290, 900)
    assert estimate.over_context == (2,)
    assert estimate.cut == (3,)
    assert estimate.over_budget == (1, 2, 3)
    assert not estimate.fits
    assert "no room for an answer: prompts 2" in str(estimate)
    assert gateway.estimate("ab", max_tokens=4).fits
    assert gateway.stats().submitted == 0
    with pytest.raises(ValueError, match="max_tokens"):
        gateway.estimate("a", max_tokens=0)
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        gateway.estimate("a", temp=1)


def test_counting_tokens(gateway_of: Make) -> None:
    gateway = gateway_of()
    assert gateway.count_tokens("héllo") == 5
    assert gateway.count_tokens([1, 2, 3]) == 3
    assert gateway.count_tokens([{"role": "user", "content": "four"}]) == 4
    assert gateway.count_tokens("a", system="bc") == 4
    with pytest.raises(ValueError, match="empty"):
        gateway.count_tokens("")


def test_stats(gateway_of: Make) -> None:
    backend = Stepped(capabilities=Capabilities(vocab_size=300, kv_bytes_per_token=10, state_bytes=1))
    gateway = gateway_of(backend, name="mine", kv_budget="1MB", prefill_chunk=2)
    rows = [gateway.submit("abc", max_tokens=5) for _ in range(3)]
    backend.next()
    stats = gateway.stats()
    assert (stats.prefill_rows, stats.active_rows, stats.queued_rows, stats.submitted) == (1, 0, 2, 3)
    assert (stats.kv_projected_bytes, stats.kv_budget_bytes) == (641, 10**6)
    assert str(stats.lease_holder).startswith("mine (rows) for ")
    backend.go()
    backend.until("decode")
    assert (gateway.stats().prefill_rows, gateway.stats().active_rows) == (0, 1)
    rows[1].cancel()
    backend.free()
    gateway.wait_idle()
    wait_for(lambda: gateway.stats().lease_holder is None)
    stats = gateway.stats()
    assert (stats.finished, stats.cancelled, stats.failed, stats.steps) == (2, 1, 0, 10)
    assert (stats.queued_rows, stats.lease_waiting, stats.kv_projected_bytes) == (0, 0, 0)
    assert (stats.device, stats.store, stats.model, stats.mode) == ("none", "scripted", "scripted", "serial")
    assert stats.to_dict()["prompt_cache"]["entries"] == 0


def test_traces_of_live_and_finished_requests(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend, prefill_chunk=2)
    row = gateway.submit("abcd", max_tokens=2)
    backend.next()
    assert {span.name for span in row.trace} >= {"request", "queue", "prefill"}
    backend.free()
    result = row.result()
    spans = {span.name: span for span in row.trace}
    assert set(spans) >= {"request", "queue", "prefill", "prefill_chunk", "first_token", "decode", "delivery"}
    parts = sum(spans[name].ms for name in ("queue", "prefill", "decode", "delivery"))
    assert parts == pytest.approx(spans["request"].ms)
    assert result.prefill_ms == pytest.approx(spans["prefill"].ms)
    assert result.decode_ms == pytest.approx(spans["decode"].ms)
    assert [s.attributes for s in row.trace if s.name == "prefill_chunk"] == [
        {"start": 0, "stop": 2},
        {"start": 2, "stop": 4},
    ]


def test_what_a_request_says_of_itself_is_plain(gateway_of: Make) -> None:
    import json

    result = gateway_of().submit("a", max_tokens=2).result()
    plain = result.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["placement"]["mechanism"] == "serial"

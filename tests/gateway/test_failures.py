"""What fails, and who sees it: the row, the step, or the engine; everybody else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import GatewayClosed, GatewayDead, RowFailed
from mlx_notebook.gateway.gateway import Gateway
from tests.gateway.fakes import BOOM, Defective, FailingSteps, Stepped, in_thread, wait_for
from tests.gateway.test_everything_at_once import owning
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]


def works(gateway: Gateway) -> bool:
    return gateway.generate("a", max_tokens=2).finish_reason == "length"


@pytest.mark.parametrize("error", [ValueError("my bad"), SystemExit(1), KeyboardInterrupt("x"), GeneratorExit()])
def test_a_raising_callback_fails_its_row_alone(gateway_of: Make, error: BaseException) -> None:
    gateway = gateway_of()
    calls: list[int] = []

    def on_token(token_id: int, _text: str, _logprobs: object) -> None:
        calls.append(token_id)
        if len(calls) == 3:
            raise error

    with gateway.lease():
        failing = gateway.submit("a", on_token=on_token, max_tokens=50)
        healthy = gateway.submit("a", max_tokens=5)
    with pytest.raises(RowFailed, match=type(error).__name__) as caught:
        failing.result()
    assert healthy.result().generated_tokens == 5
    assert len(calls) == 3
    assert failing.status == "failed"
    result = caught.value.result
    assert result is not None
    assert (result.finish_reason, result.generated_tokens, len(result.text)) == ("error", 3, 3)
    assert "on_token" in caught.value.traceback_text
    assert works(gateway)


def test_each_raise_is_a_fresh_object(gateway_of: Make) -> None:
    row = gateway_of().submit("a", on_token=lambda *_: 1 / 0)
    errors = [row.exception() for _ in range(2)]
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])
    assert "ZeroDivisionError" in str(errors[0])
    assert errors[0].__traceback__ is None


def test_a_failed_step_is_tried_again_and_the_text_is_the_same(gateway_of: Make) -> None:
    backend = FailingSteps(3)
    gateway, sound = gateway_of(backend), gateway_of()
    with gateway.lease():
        row = gateway.submit("abc", max_tokens=6)
    seen = list(row)
    sound_row = sound.submit("abc", max_tokens=6)
    # The script names a token by its row and its place.
    assert row.text == "".join(seen) == "".join(backend.script(row.id, i) for i in range(6))
    assert row.result().generated_tokens == sound_row.result().generated_tokens == 6
    assert backend.rewound == [row.id]
    chunks = [span.attributes for span in row.trace if span.name == "prefill_chunk"]
    assert chunks == [{"start": 0, "stop": 3}, {"start": 0, "stop": 6}]


def test_failing_twice_it_is_the_rows_error_and_the_next_row_works(gateway_of: Make) -> None:
    backend = FailingSteps(2, 4)
    gateway = gateway_of(backend)
    row = gateway.submit("abc", max_tokens=50)
    with pytest.raises(RowFailed, match=BOOM) as caught:
        row.result()
    assert caught.value.result is not None
    assert caught.value.result.generated_tokens == 3
    assert works(gateway)
    stats = gateway.stats()
    assert (stats.failed, stats.finished) == (1, 1)


class Unopenable(Stepped):
    def open(self, request: Any, entry_id: int | None = None, cached_tokens: int = 0) -> None:
        super().open(request, entry_id, cached_tokens)
        if request.prompt_text == "bad":
            raise ValueError("cannot be opened")


def test_a_row_that_cannot_be_opened_is_that_rows_failure(gateway_of: Make) -> None:
    backend = Unopenable()
    backend.free()
    gateway = gateway_of(backend)
    with gateway.lease():
        bad, good = gateway.submit("bad"), gateway.submit("good", max_tokens=2)
    with pytest.raises(RowFailed, match="cannot be opened"):
        bad.result()
    assert good.result().finish_reason == "length"


class Undroppable(Stepped):
    def drop(self, row_id: int, keep_as: int | None = None, keep_tokens: int | None = None) -> Any:
        super().drop(row_id, keep_as, keep_tokens)
        raise RuntimeError("drop failed")


def test_a_row_that_cannot_be_freed_is_logged_and_nothing_more(
    gateway_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Undroppable()
    backend.free()
    gateway = gateway_of(backend)
    assert works(gateway)
    assert works(gateway)
    assert "drop failed" in caplog.text


@pytest.mark.parametrize("deterministic", [False, True])
def test_states_that_cannot_be_kept_cost_their_rows_nothing_and_nobody_a_place(
    caplog: pytest.LogCaptureFixture, *, deterministic: bool
) -> None:
    def no_room(*_: object) -> Any:
        raise MemoryError("no room for an entry")

    prompts = [random_prompt(30 + n, seed=n) for n in range(4)]
    how: dict[str, Any] = {"raw": True, "max_tokens": 3}
    with owning() as resources:
        model = small("llama")
        with Gateway.from_loaded(*model, batch=4, deterministic=deterministic, prefill_chunk=8) as gateway:
            said = [gateway.generate(prompt, cache_prompt=False, **how).token_ids for prompt in prompts]
            backend: Any = gateway._loop._backend
            backend._entries._put = no_room
            for _ in range(3):  # more rows than a batch has places
                assert [result.token_ids for result in gateway.generate(prompts, **how)] == said
            assert gateway.wait_idle()
            assert backend.held_bytes() == 0
            assert not backend._store._last
            assert not any(backend._store._slots)
            assert gateway._loop.scheduler.memory._pending == {}
            assert gateway.stats().prompt_cache.entries == 0
            assert [resource.released for resource in resources] == [1] * 16
            assert gateway.stats().failed == 0
    assert "no room for an entry" in caplog.text


def test_a_defect_of_the_backend_ends_the_engine_and_restart_revives_it(gateway_of: Make) -> None:
    backend = Defective()
    gateway = gateway_of(backend)
    waiting = [in_thread(gateway.submit("a", max_tokens=50).exception) for _ in range(3)]
    backend.until("decode")
    backend.broken = True
    backend.go()
    assert all(isinstance(one.result(), GatewayDead) for one in waiting)
    with pytest.raises(GatewayDead, match=f"died: RuntimeError: {BOOM}"):
        gateway.submit("a")
    assert repr(gateway).endswith("closed>")
    backend.broken = False
    backend.free()
    gateway.restart()
    assert not gateway.closed
    assert works(gateway)


class Unclosable(Stepped):
    def close(self) -> None:
        super().close()
        raise RuntimeError("close failed")


def test_a_backend_that_cannot_be_closed_does_not_keep_the_device(gateway_of: Make) -> None:
    backend = Unclosable()
    backend.free()
    gateway = gateway_of(backend)
    assert works(gateway)
    gateway.close()
    with pytest.raises(GatewayDead, match="close failed"):
        gateway.submit("a")
    assert works(gateway_of())


def test_a_load_that_fails_raises_its_own_error_and_leaves_nothing(gateway_of: Make) -> None:
    sound = gateway_of()

    class Unloadable(Stepped):
        @property
        def capabilities(self) -> Any:
            raise LookupError("no such layer")

        @capabilities.setter
        def capabilities(self, value: Any) -> None:
            pass

    with pytest.raises(LookupError, match="no such layer"):
        gateway_of(Unloadable())
    assert works(sound)


def test_a_done_callback_that_raises_is_logged_and_the_others_run(
    gateway_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = gateway_of()
    called: list[int] = []
    with gateway.lease():
        row = gateway.submit("a", max_tokens=1)
        row.add_done_callback(lambda _: called.append(1))
        row.add_done_callback(lambda _: 1 / 0)
        row.add_done_callback(lambda _: called.append(2))
    row.result()
    wait_for(lambda: len(called) == 2)
    assert called == [1, 2]
    row.add_done_callback(lambda handle: called.append(handle.id))
    assert called[-1] == row.id
    assert gateway.wait_idle()
    assert "ZeroDivisionError" in caplog.text


def test_nothing_that_failed_is_left_open(gateway_of: Make) -> None:
    gateway = gateway_of()
    with pytest.raises(RowFailed):
        gateway.generate("a", on_token=lambda *_: 1 / 0)
    assert gateway.wait_idle()
    assert not gateway.handles
    gateway.close()
    with pytest.raises(GatewayClosed):
        gateway.generate("a")

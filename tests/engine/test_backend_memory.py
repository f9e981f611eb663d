"""What ends gives its memory back, also when it ended badly; what is held is counted."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepFailed
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions, UserCode
from mlx_notebook.engine.mlx_backend import STEPS_BETWEEN_CLEANS
from tests.engine.driving import Told, prefill, request, run_row, step, with_backend
from tests.engine.tiers import QUICK_KINDS, tiered
from tests.small_models import KINDS, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend

PROMPT = random_prompt(40, seed=4)

pair = cache(small)


class Heavy:
    """Stands for whatever user code has in hand when it fails."""


kept: list[BaseException] = []


def failing(where: str, witness: list[weakref.ref[Heavy]]) -> UserCode:
    def fail() -> None:
        heavy = Heavy()
        witness.append(weakref.ref(heavy))
        try:
            raise KeyError("the cause")  # noqa: TRY301
        except KeyError as cause:
            error = ExceptionGroup("several", [ValueError("one")])
            kept.append(error)  # user code may keep its exception: that must not keep our arrays
            raise error from cause

    def on_token(*_: object) -> None:
        fail()

    def processor(_tokens: object, logits: object) -> object:
        fail()
        return logits

    return UserCode(on_token=on_token) if where == "callback" else UserCode(logits_processors=(processor,))


@pytest.mark.parametrize("where", ["callback", "processor"])
def test_a_failed_row_pins_nothing(where: str) -> None:
    witness: list[weakref.ref[Heavy]] = []

    def work(backend: MlxBackend) -> tuple[list[int], list[Told]]:
        active, failed = [], []
        for row_id in range(6):
            failed.append(run_row(backend, request(row_id, PROMPT, max_tokens=5, code=failing(where, witness))))
            backend.drop(row_id)
            backend.synchronize()
            mx.clear_cache()
            active.append(mx.get_active_memory())
        return active, failed

    gc.disable()  # nothing may wait for the cycle collector
    try:
        active, failed = with_backend(pair("llama"), work)
        assert all(reference() is None for reference in witness)
    finally:
        gc.enable()
        kept.clear()
    assert all(told.error is not None and "ValueError: one" in told.error[1] for told in failed)
    assert all("KeyError: 'the cause'" in told.error[1] for told in failed if told.error is not None)
    assert len(set(active[1:])) == 1


def test_a_failed_forward_pins_nothing() -> None:
    model, tokenizer = pair("llama")

    class Breaks:
        layers = model.layers
        broken = False

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            heavy = Heavy()
            if self.broken:
                witness.append(weakref.ref(heavy))
                raise RuntimeError("no room")
            return model(tokens, cache=cache)

        def modules(self) -> Any:
            return model.modules()

    witness: list[weakref.ref[Heavy]] = []
    breaks = Breaks()

    def work(backend: MlxBackend) -> None:
        prefill(backend, request(1, PROMPT, max_tokens=5))
        backend.open(request(2, PROMPT, max_tokens=5))
        breaks.broken = True
        assert isinstance(backend.decode(Decode((1,))), StepFailed)
        done = backend.prefill(Prefill((PrefillPart(2, 0, 8, last=False),)))
        assert done.errors[2][0] == "RuntimeError: no room"

    gc.disable()
    try:
        with_backend((breaks, tokenizer), work)
        assert len(witness) == 2
        assert all(reference() is None for reference in witness)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", tiered(KINDS, *QUICK_KINDS))
def test_held_bytes_are_the_caches_and_go_with_the_rows(kind: str) -> None:
    def work(backend: MlxBackend) -> list[int]:
        held = [backend.held_bytes()]
        first = prefill(backend, request(1, PROMPT, max_tokens=5))
        held.append(backend.held_bytes())
        prefill(backend, request(2, PROMPT, max_tokens=5))
        held.append(backend.held_bytes())
        step(backend, {1: first})
        backend.drop(1)
        backend.drop(2)
        backend.drop(2)
        held.append(backend.held_bytes())
        return held

    nothing, one, two, after = with_backend(pair(kind), work)
    assert nothing == after == 0
    assert one > 0
    assert two == 2 * one


def test_many_rows_one_after_another_hold_no_more_than_one() -> None:
    def work(backend: MlxBackend) -> list[int]:
        active = []
        for row_id in range(12):
            run_row(backend, request(row_id, PROMPT, max_tokens=4, logprobs=3, temperature=1.0, frequency_penalty=0.5))
            mx.clear_cache()
            active.append(mx.get_active_memory())
        return active

    active = with_backend(pair("qwen3_next"), work)
    assert max(active[2:]) == min(active[2:])


def test_freed_buffers_are_given_back_while_rows_are_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elsewhere: the allocator keeps freed buffers of growing sizes. On the CPU it keeps none, so calls are counted."""
    given_back: list[int] = []
    give_back = mx.clear_cache

    def clear() -> None:
        give_back()
        given_back.append(mx.get_cache_memory())

    monkeypatch.setattr(mx, "clear_cache", clear)

    def work(backend: MlxBackend) -> tuple[int, int]:
        told = prefill(backend, request(1, PROMPT, max_tokens=STEPS_BETWEEN_CLEANS + 1), chunk=8)
        after_prompt = len(given_back)
        while not told.over:
            step(backend, {1: told})
        return after_prompt, len(given_back)

    after_prompt, after_answer = with_backend(pair("llama"), work)
    assert after_prompt >= len(PROMPT) // 8
    assert after_answer == after_prompt + 1
    assert not any(given_back)


def owning(row_id: int, releases: list[Callable[[], None]]) -> Request:
    return Request(row_id, RequestShape((3, 4, 5), SamplingOptions(max_tokens=2)), owned=tuple(releases))


def test_what_a_row_owns_is_released_once_and_every_release_is_tried() -> None:
    released: list[str] = []

    def breaks() -> None:
        released.append("breaks")
        raise RuntimeError("cannot be released")

    def work(backend: MlxBackend) -> None:
        backend.open(owning(1, [lambda: released.append("a"), breaks, lambda: released.append("b")]))
        backend.drop(1)
        backend.drop(1)
        assert released == ["a", "breaks", "b"]
        backend.open(owning(2, [lambda: released.append("at close")]))

    with_backend(pair("llama"), work)
    assert released[3:] == ["at close"]

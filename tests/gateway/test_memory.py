"""What is over pins nothing: not the user's functions, not their frames, not the model."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import RowFailed
from mlx_notebook.gateway.gateway import Gateway
from tests.gateway.fakes import Stepped, wait_for
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]


class Big:
    """Stands for an array that somebody's code holds."""


def gone(reference: weakref.ref[Any]) -> bool:
    gc.collect()
    return reference() is None


def callback_holding(big: Big, outcome: str) -> Callable[..., object]:
    def on_token(*_: object) -> object:
        local = big  # the failing frame holds it too
        if outcome == "raises":
            raise ValueError(f"failed with {type(local).__name__}")
        return outcome != "stops"

    return on_token


@pytest.mark.parametrize("outcome", ["raises", "stops", "goes on", "cancelled"])
def test_a_kept_handle_pins_nothing_of_the_users(gateway_of: Make, outcome: str) -> None:
    gateway = gateway_of()
    big = Big()
    watched = weakref.ref(big)
    with gateway.lease():
        handle = gateway.submit("a", on_token=callback_holding(big, outcome), max_tokens=3)
        del big
        if outcome == "cancelled":
            handle.cancel()
            wait_for(handle.done)
    error = handle.exception()
    assert (error is not None) == (outcome in ("raises", "cancelled"))
    assert gateway.wait_idle()
    wait_for(lambda: gone(watched))


def test_the_idle_engine_does_not_hold_the_last_job_it_ran(gateway_of: Make) -> None:
    gateway = gateway_of()
    big = Big()
    watched = weakref.ref(big)
    assert gateway.run_exclusive(partial(id, big)) == id(big)
    del big
    wait_for(lambda: gone(watched))


def test_a_settled_row_lets_go_at_once_though_its_step_still_runs(gateway_of: Make) -> None:
    backend = Stepped()
    gateway = gateway_of(backend)
    big = Big()
    watched = weakref.ref(big)
    with gateway.lease():
        queued = [gateway.submit("a", on_token=callback_holding(big, "goes on")) for _ in range(2)]
        del big
        for row in queued:
            row.cancel()
            wait_for(row.done)
    wait_for(lambda: gone(watched))


def failing(handle: Any) -> str:
    try:
        handle.result()
    except RowFailed as error:
        return error.traceback_text
    raise AssertionError("it did not fail")


def test_the_error_of_a_failed_row_is_text(gateway_of: Make) -> None:
    big = Big()
    watched = weakref.ref(big)
    handle = gateway_of().submit("a", on_token=callback_holding(big, "raises"))
    del big
    assert "failed with Big" in failing(handle)
    wait_for(lambda: gone(watched))


def test_a_closed_gateways_model_goes_though_gateway_and_handles_are_kept() -> None:
    model, tokenizer = small("llama")
    gateway = Gateway.from_loaded(model, tokenizer)
    handle = gateway.submit("the fox", max_tokens=3)
    assert handle.result().generated_tokens
    gateway.close()
    gateway._loader = lambda _loading: pytest.fail("not called")  # what restart() would need: the caller's model
    watched = weakref.ref(model)
    del model
    wait_for(lambda: gone(watched))
    assert handle.text == handle.text_so_far
    assert gateway.stats().finished == 1


def test_a_failing_processor_is_its_rows_failure_and_pins_nothing() -> None:
    model, tokenizer = small("llama")
    big = Big()
    watched = weakref.ref(big)

    def processor(token_ids: Any, logits: Any, held: Big = big) -> Any:
        if len(token_ids) > 9:
            raise ValueError(f"processor failed with {type(held).__name__}")
        return logits

    with Gateway.from_loaded(model, tokenizer) as gateway:
        with gateway.lease():
            failing_row = gateway.submit([5, 6, 7, 8], raw=True, logits_processors=[processor], max_tokens=20)
            healthy = gateway.submit([5, 6, 7, 8], raw=True, max_tokens=8)
        del big, processor
        text = failing(failing_row)
        assert "processor failed with Big" in text
        error = failing_row.exception()
        assert error is not None
        assert error.result.token_ids == healthy.result().token_ids[: error.result.generated_tokens]
        assert error.result.generated_tokens == 6
        wait_for(lambda: gone(watched))

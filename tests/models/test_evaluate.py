"""Every array of a model is found and evaluated, also those that `parameters()` does not list."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models import llama

from mlx_notebook.models import evaluate
from mlx_notebook.models.evaluate import evaluate_everything, grouped, reachable_arrays
from tests.small_models import KINDS, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable


def run_elsewhere(work: Callable[[], Any]) -> Any:
    """The outcome of `work` on a thread of its own: its value or its exception."""
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - handed to the caller
            outcome.append(error)
        finally:
            mx.clear_streams()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return outcome[0]


def scaled_llama() -> Any:
    """A model whose rotary frequencies are lazy, private arrays."""
    scaling: dict[str, float | str] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=1,
            intermediate_size=32,
            num_attention_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=64,
            rope_scaling=scaling,
        )
    )


def test_a_model_with_private_lazy_arrays_crosses_threads() -> None:
    model = scaled_llama()
    evaluate_everything(model)
    logits = run_elsewhere(lambda: mx.max(model(mx.array([[1, 2, 3]]))).item())
    assert isinstance(logits, float)


def test_parameters_alone_are_not_enough() -> None:
    """The trap itself: without the private arrays the other thread fails."""
    model = scaled_llama()
    mx.eval(model.parameters())
    failure = run_elsewhere(lambda: mx.max(model(mx.array([[1, 2, 3]]))).item())
    assert isinstance(failure, RuntimeError)
    assert "Stream" in str(failure)


@pytest.mark.parametrize("kind", KINDS)
def test_every_small_model_crosses_threads(kind: str) -> None:
    model, _ = small(kind)
    evaluate_everything(model)
    found = run_elsewhere(lambda: mx.max(model(mx.array([random_prompt(5)]))).item())
    assert isinstance(found, float)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: mx.array) -> None:
        self.held = held


@dataclass
class Plain:
    held: mx.array


class Odd(Module):
    """Arrays in every place that a model's author may think of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listed = [mx.zeros(1), {"deep": (mx.zeros(2),)}]
        self._private = mx.zeros(3)
        object.__setattr__(self, "beside", Plain(mx.zeros(4)))
        object.__setattr__(self, "slotted", Slotted(mx.zeros(5)))
        inner = mx.zeros(6)
        object.__setattr__(self, "closure", lambda: inner)
        object.__setattr__(self, "partial", functools.partial(print, mx.zeros(7), end=mx.zeros(8)))
        object.__setattr__(self, "itself", self)
        object.__setattr__(self, "chosen", {mx.float32: {1, 2}, "set": frozenset({"a"})})


def test_arrays_are_found_wherever_they_hide() -> None:
    sizes = sorted(array.size for array in reachable_arrays(Odd()))
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 8]


def test_bytes_are_counted_once_for_shared_arrays() -> None:
    shared = mx.zeros(10)
    assert evaluate_everything([shared, {"again": shared}]) == 40


def test_groups_are_bounded_and_an_interrupt_comes_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "GROUP_BYTES", 100)
    assert [len(g) for g in grouped([40, 40, 40, 200, 10], lambda size: size)] == [3, 1, 1]
    calls: list[int] = []

    def cancel() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_everything([mx.zeros(30) for _ in range(10)], check_cancel=cancel)
    assert len(calls) == 3

"""The probe's measure of noise: what a model does to itself in another shape is no store's fault; a lost mask is."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.models.llama import Model

from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import NOISE_OF_HALVES, choose_store
from mlx_notebook.engine.stores import rows as rows_store
from tests.small_models import small


class Shaky(Model):  # type: ignore[misc]
    """Says something else in every shape, as deep models in half precision do, by `level` of the logits' spread."""

    level = 0.0

    def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        logits = super().__call__(inputs, *args, **kwargs)
        noise = mx.random.uniform(-1, 1, logits.shape[-1:], key=mx.random.key(inputs.shape[0]))
        return logits + (self.level * mx.std(logits) * noise).astype(logits.dtype)  # type: ignore[no-any-return]


def as_type(kind: type[Model], dtype: mx.Dtype) -> Any:
    plain = small("llama")[0]
    model = kind(plain.args)
    model.update(tree_map(lambda array: array.astype(dtype), plain.parameters()))
    mx.eval(model.parameters())
    return model


def shaky(level: float, dtype: mx.Dtype) -> Any:
    model = as_type(Shaky, dtype)
    model.level = level
    return model


def chosen(model: Any) -> Any:
    route = AttentionRoute(model)
    try:
        return choose_store(model)
    finally:
        route.close()


@pytest.mark.parametrize("level", [0.0, 0.05, 0.12])
def test_a_model_that_differs_from_itself_as_much_is_served_together(level: float) -> None:
    choice = chosen(shaky(level, mx.bfloat16))
    assert choice.store is not None, choice.findings
    assert NOISE_OF_HALVES < 0.12


def test_in_single_precision_there_is_no_such_noise() -> None:
    choice = chosen(shaky(0.05, mx.float32))
    assert choice.store is None
    assert all("is noise" in finding for finding in choice.findings)


def test_a_store_that_is_wrong_is_not_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rows_store.RowsStore.step

    def others_positions(self: Any, places: Any, tokens: mx.array) -> mx.array:
        for row in places:
            row.fed += 3
        try:
            return step(self, places, tokens)
        finally:
            for row in places:
                row.fed -= 3

    monkeypatch.setattr(rows_store.RowsStore, "step", others_positions)
    choice = chosen(shaky(0.12, mx.bfloat16))
    assert choice.store is None, "positions are wrong by three"


def test_what_is_no_number_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    step = rows_store.RowsStore.step
    monkeypatch.setattr(rows_store.RowsStore, "step", lambda *args: step(*args) * mx.nan)
    choice = chosen(shaky(0.0, mx.float32))
    assert choice.store is None


class OneByOne(Model):  # type: ignore[misc]
    """Takes no batch."""

    def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        if inputs.shape[0] > 1:
            raise ValueError("one row at a time")
        return super().__call__(inputs, *args, **kwargs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_model_that_takes_no_batch_is_served_row_by_row(dtype: mx.Dtype) -> None:
    choice = chosen(as_type(OneByOne, dtype))
    assert choice.store is None
    assert all("one row at a time" in finding for finding in choice.findings)

"""Attention of chunks by products: what the fused kernel says, for an engine's own chunks and nobody else's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_notebook.core.events import Prefill, PrefillPart
from mlx_notebook.engine.stores import chunk_attention
from tests.engine.driving import Told, request, step, with_backend
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend


@pytest.mark.parametrize("size", [(7, 7), (5, 40), (16, 16), (1, 1)])
@pytest.mark.parametrize("grouped", [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=["NumPy", "MLX"])
def test_it_is_the_fused_kernels_answer(
    size: tuple[int, int],
    grouped: tuple[int, int],
    dtype: mx.Dtype,
    device: mx.DeviceType,
) -> None:
    (length, columns), (heads, own) = size, grouped
    shapes = [(2, heads, length, 32), (2, own, columns, 32), (2, own, columns, 32)]
    queries, keys, values = (
        mx.random.normal(shape, key=mx.random.key(at)).astype(dtype) for at, shape in enumerate(shapes)
    )
    wanted = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.2, mask="causal")
    with chunk_attention.preferred():
        chunk_attention._thread.device = device
        found = chunk_attention.attend(queries, keys, values, 0.2)
    assert found.dtype == dtype
    noise = 1e-5 if dtype == mx.float32 else 2e-2
    assert mx.allclose(found.astype(mx.float32), wanted.astype(mx.float32), atol=noise)


def columns_of(count: int) -> mx.array:
    return mx.zeros((1, 2, count, 8))


@pytest.fixture(autouse=True)
def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chunk_attention.LEAST, mx.cpu, 1)


def test_it_serves_chunks_of_an_engines_thread_alone() -> None:
    queries, keys = columns_of(3), columns_of(9)
    assert not chunk_attention.serves(queries, keys, "causal", None), "mlx-lm's own call"
    elsewhere = []
    with chunk_attention.preferred():
        assert chunk_attention.serves(queries, keys, "causal", None)
        assert not chunk_attention.serves(columns_of(1), keys, "causal", None), "a step"
        assert not chunk_attention.serves(queries, keys, None, None)
        assert not chunk_attention.serves(queries, keys, mx.ones((3, 9)), None), "a window"
        assert not chunk_attention.serves(queries, (keys, keys, keys), "causal", None), "quantised"
        assert not chunk_attention.serves(queries, keys, "causal", mx.zeros(2)), "sinks"
        other = threading.Thread(target=lambda: elsewhere.append(chunk_attention.serves(queries, keys, "causal", None)))
        other.start()
        other.join()
    assert elsewhere == [False]
    assert not chunk_attention.serves(queries, keys, "causal", None)


def test_what_would_fill_memory_is_left_to_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys = columns_of(3), columns_of(9)
    with chunk_attention.preferred():
        monkeypatch.setattr(chunk_attention, "MOST", 2 * 3 * 9)
        assert chunk_attention.serves(queries, keys, "causal", None)
        monkeypatch.setitem(chunk_attention.LEAST, mx.cpu, 2 * 3 * 9 + 1)
        assert not chunk_attention.serves(queries, keys, "causal", None), "not worth it"
        monkeypatch.setattr(chunk_attention, "MOST", 2 * 3 * 9 - 1)
        assert not chunk_attention.serves(queries, keys, "causal", None)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text", "lfm2"])
def test_prompts_read_so_are_answered_as_ever(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    attend = chunk_attention.attend

    def counting(queries: mx.array, *args: Any) -> mx.array:
        calls.append(tuple(queries.shape))
        return attend(queries, *args)

    monkeypatch.setattr(chunk_attention, "attend", counting)
    lengths = (40, 9, 23)
    prompts = [random_prompt(length, seed=length) for length in lengths]

    def work(backend: MlxBackend, *, plans: bool) -> list[np.ndarray]:
        backend._by_products = plans
        rows = {at: Told() for at in range(len(prompts))}
        for at, prompt in enumerate(prompts):
            backend.open(request(at, prompt, max_tokens=6, logprobs=3))
        backend.prefill(Prefill((PrefillPart(0, 0, 16, last=False),)))  # a long one in chunks, the others together
        backend.prefill(Prefill((PrefillPart(0, 16, 40, last=True),)))
        backend.prefill(Prefill(tuple(PrefillPart(at, 0, lengths[at], last=True) for at in (1, 2))))
        while not all(told.over for told in rows.values()):
            step(backend, {at: told for at, told in rows.items() if not told.over})
        return [np.array([one.logprob for one in told.logprobs]) for told in rows.values()]

    plain = with_backend(small(kind), lambda backend: work(backend, plans=False))
    assert not calls
    ours = with_backend(small(kind), lambda backend: work(backend, plans=True))
    assert calls
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.shape == (6,)
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


@pytest.mark.parametrize(("rows", "deterministic", "served"), [(1, False, False), (2, False, True), (2, True, False)])
def test_a_row_alone_and_deterministic_rows_keep_mlx_lms_bits(
    rows: int, deterministic: bool, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mx.default_device() != mx.cpu:
        pytest.skip("on a GPU chunks always attend by products")
    calls: list[int] = []
    attend = chunk_attention.attend

    def counting(*args: Any) -> mx.array:
        calls.append(1)
        return attend(*args)

    monkeypatch.setattr(chunk_attention, "attend", counting)

    def work(backend: MlxBackend) -> None:
        for at in range(rows):
            backend.open(request(at, random_prompt(20, seed=at), max_tokens=2))
        backend.prefill(Prefill((PrefillPart(0, 0, 16, last=False),)))

    with_backend(small("llama"), work, deterministic=deterministic)
    assert bool(calls) is served

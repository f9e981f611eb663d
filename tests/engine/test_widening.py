"""Room that comes ahead of need: layers of a pack are widened in turn, a prompt gets its columns at once."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores import caches, pack, rows
from mlx_notebook.engine.stores.pack import Pack, PackLayer, needed
from tests.engine.driving import Told, prefill, request, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.traffic import pair
from tests.small_models import VOCAB, random_prompt

if TYPE_CHECKING:
    from mlx_notebook.engine.mlx_backend import MlxBackend

LONG = 150
LONGEST = 306


def answers(kind: str, packed: list[int], widened: list[int]) -> list[Told]:
    """What three long rows say; the steps at which rows are packed, and how many layers each step widens."""
    prompts = [random_prompt(LONGEST - 3 * at, seed=at) for at in range(3)]

    def work(backend: MlxBackend) -> list[Told]:
        packed.clear()  # the check at load packs rows too
        told = {
            at: prefill(backend, request(at, prompt, max_tokens=LONG, logprobs=VOCAB), 64)
            for at, prompt in enumerate(prompts)
        }
        while not all(one.over for one in told.values()):
            widened.append(0)
            step(backend, told)
        return list(told.values())

    return with_backend(pair(kind), work)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3_next"])
def test_no_step_of_a_long_pack_copies_more_than_its_share(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    widened: list[int] = [0]
    packed: list[int] = []
    widen, pack_rows = PackLayer.widen, pack.pack_rows

    def counted(layer: PackLayer) -> None:
        widened[-1] += 1
        widen(layer)

    def told_of(groups: Any, old: Any) -> list[Pack]:
        packed.append(len(widened))
        return pack_rows(groups, old)

    monkeypatch.setattr(PackLayer, "widen", counted)
    monkeypatch.setattr(rows, "pack_rows", told_of)
    ahead = answers(kind, packed, widened)
    layers = sum(not caches.is_state(leaf) for leaf in caches.leaves(caches.make_caches(pair(kind)[0])))
    assert packed == [2]
    assert max(widened) == ceil(layers / BLOCK)
    assert sum(widened) == layers * (needed(LONGEST + LONG - 1) - needed(LONGEST)) // BLOCK
    monkeypatch.setattr(Pack, "widen_ahead", lambda _pack: None)
    at_once = answers(kind, packed, widened := [0])
    assert len(packed) > 1
    assert not any(widened)
    for one, other in zip(ahead, at_once, strict=True):
        assert one.tokens == other.tokens
        for vector, expected in zip(vectors_of(one.logprobs, VOCAB), vectors_of(other.logprobs, VOCAB), strict=True):
            assert np.array_equal(vector, expected)


def filled(count: int, pads: list[int], capacity: int, window: int | None) -> PackLayer:
    array = mx.zeros((len(pads), 1, capacity, 2))
    array[..., :count, :] = mx.arange(count, dtype=mx.float32)[None, None, :, None]
    return PackLayer(array, array * 2, count, list(pads), window)


@given(
    start=st.integers(1, 40),
    window=st.none() | st.integers(1, 50),
    pads=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    widens=st.lists(st.booleans(), min_size=1, max_size=90),
)
def test_a_widened_layer_shows_what_one_that_was_never_full_shows(
    start: int, window: int | None, pads: list[int], widens: list[bool]
) -> None:
    pads = [min(pad, start - 1) for pad in pads]
    tight, ample = filled(start, pads, start + 1, window), filled(start, pads, start + 100, window)
    for at, wish in enumerate(widens):
        if wish or tight.full:
            tight.widen()
            assert tight.room > 0
        mask, full_mask = (layer.make_mask(1, window_size=window) for layer in (tight, ample))
        column = mx.full((len(pads), 1, 1, 2), float(start + at))
        (keys, values), (all_keys, all_values) = (layer.update_and_fetch(column, -column) for layer in (tight, ample))
        assert np.array_equal(keys, all_keys)
        assert np.array_equal(values, all_values)
        if mask is None or full_mask is None:
            assert mask is full_mask
        else:
            assert np.array_equal(mask, full_mask)
        for place in range(len(pads)):
            assert np.array_equal(tight.columns(place)[0], ample.columns(place)[0])


def test_a_prompt_that_comes_in_chunks_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    original = caches.widened

    def counted(array: mx.array, columns: int) -> mx.array:
        copies.append(columns)
        return original(array, columns)

    monkeypatch.setattr(caches, "widened", counted)
    prompt = random_prompt(5 * BLOCK + 10, seed=1)

    def work(backend: MlxBackend) -> int:
        prefill(backend, request(1, prompt, max_tokens=2), 16)
        return backend.held_bytes()

    held = with_backend(pair("llama"), work)
    layers = len(pair("llama")[0].layers)
    assert copies == [6 * BLOCK] * 2 * layers
    assert held % (6 * BLOCK) == 0

"""Quantised caches against their definition: attention over what dequantising gives back."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme, check_scheme
from mlx_notebook.engine.kv.affine import AffineCache
from mlx_notebook.engine.kv.convert import check_model, convert_due
from mlx_notebook.errors import ModelLoadError
from tests.small_models import small

HEADS, KV_HEADS, HEAD = 4, 2, 64


def columns(number: int, key: int) -> tuple[mx.array, mx.array]:
    k1, k2 = mx.random.split(mx.random.key(key))
    shape = (1, KV_HEADS, number, HEAD)
    return mx.random.normal(shape, key=k1), mx.random.normal(shape, key=k2)


def round_trip(array: mx.array, scheme: LayerScheme) -> mx.array:
    packed, scales, biases = mx.quantize(array, group_size=scheme.group_size, bits=scheme.bits)
    return mx.dequantize(packed, scales, biases, group_size=scheme.group_size, bits=scheme.bits)


def attend(cache: Any, keys: mx.array, values: mx.array, key: int, window: int | None) -> mx.array:
    queries = mx.random.normal((1, HEADS, keys.shape[2], HEAD), key=mx.random.key(key + 10_000))
    hidden = mx.zeros((1, keys.shape[2], 8))
    mask = create_attention_mask(hidden, cache, window_size=window)
    held = cache.update_and_fetch(keys, values)
    attended: mx.array = scaled_dot_product_attention(queries, *held, cache=cache, scale=HEAD**-0.5, mask=mask)
    return attended


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("chunks", [(5, 1, 1, 1), (20, 1, 7, 1, 1), (3, *[1] * 30), (40, 30, 1)])
def test_attention_is_that_over_the_dequantised_columns(bits: int, window: int | None, chunks: tuple[int, ...]) -> None:
    scheme = LayerScheme(bits, 32)

    def native() -> Any:
        return KVCache() if window is None else RotatingKVCache(max_size=window)

    ours = AffineCache((native(), native(), native()), scheme)
    reference = native()
    for key, number in enumerate(chunks):
        keys, values = columns(number, key)
        got = attend(ours, keys, values, key, window)
        expected = attend(reference, round_trip(keys, scheme), round_trip(values, scheme), key, window)
        assert mx.allclose(got, expected, atol=2e-5), float(mx.max(mx.abs(got - expected)))
    assert ours.offset == reference.offset == sum(chunks)
    assert ours.size() == reference.size()
    assert 0 < ours.nbytes < reference.nbytes


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("before", [4, 16, 40])
def test_a_native_cache_converts_column_for_column(window: int | None, before: int) -> None:
    scheme = LayerScheme(8, 32)
    native = KVCache() if window is None else RotatingKVCache(max_size=window)
    reference = KVCache() if window is None else RotatingKVCache(max_size=window)
    for step in range(before):
        keys, values = columns(1, step)
        native.update_and_fetch(keys, values)
        reference.update_and_fetch(round_trip(keys, scheme), round_trip(values, scheme))
    ours = AffineCache.of_native(native, scheme)
    for step in range(before, before + 20):
        keys, values = columns(1, step)
        got = attend(ours, keys, values, step, window)
        expected = attend(reference, round_trip(keys, scheme), round_trip(values, scheme), step, window)
        assert mx.allclose(got, expected, atol=2e-5)


def test_a_shared_cache_does_not_see_later_writes() -> None:
    scheme = LayerScheme(8, 32)
    ours = AffineCache((KVCache(), KVCache(), KVCache()), scheme)
    ours.update_and_fetch(*columns(10, 0))
    twin = ours.shared()
    before = [mx.array(array) for array in twin.arrays()]
    ours.update_and_fetch(*columns(3, 1))
    assert (twin.offset, ours.offset) == (10, 13)
    twin.update_and_fetch(*columns(3, 2))
    kept = [array[..., :10, :] for array in twin.arrays()]
    assert all(mx.array_equal(a, b[..., :10, :]) for a, b in zip(kept, before, strict=True))


def test_layers_convert_once_they_hold_start_tokens_and_only_those_that_keep_keys() -> None:
    model, _ = small("qwen3_next")
    caches = make_prompt_cache(model)
    keeping = [isinstance(cache, KVCache) for cache in caches]
    assert any(keeping)
    assert not all(keeping)
    scheme = KVScheme(LayerScheme(8, 32), start=8)
    model(mx.zeros((1, 5), dtype=mx.int32), cache=caches)
    assert not convert_due(caches, scheme)
    model(mx.zeros((1, 3), dtype=mx.int32), cache=caches)
    assert convert_due(caches, scheme)
    assert [isinstance(cache, AffineCache) for cache in caches] == keeping
    assert not convert_due(caches, scheme)


def test_a_scheme_by_layer_leaves_the_others_as_they_are() -> None:
    scheme = KVScheme(layers=((1, LayerScheme(8, 32)),))
    caches = [KVCache() for _ in range(3)]
    for cache in caches:
        cache.update_and_fetch(*columns(4, 0))
    mixed: list[Any] = list(caches)
    assert convert_due(mixed, scheme)
    assert [isinstance(cache, AffineCache) for cache in mixed] == [False, True, False]


def test_a_head_that_groups_do_not_divide_is_named_at_load() -> None:
    model, _ = small("llama")
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 2), dtype=mx.int32), cache=caches)
    head = caches[0].keys.shape[-1]
    group = next(size for size in (128, 64, 32) if head % size)
    with pytest.raises(ModelLoadError, match=rf"layer 0: keys have {head} values a head.*{group}"):
        check_model(model, KVScheme(LayerScheme(4, group)))


def test_a_layer_that_does_not_exist_is_named() -> None:
    model, _ = small("llama")
    with pytest.raises(ModelLoadError, match="layer 99 does not exist"):
        check_model(model, KVScheme(layers=((99, LayerScheme(4, 32)),)))


def test_recurrent_layers_have_nothing_to_quantise() -> None:
    model, _ = small("mamba2")
    with pytest.raises(ModelLoadError, match="no layer of this model"):
        check_model(model, KVScheme(LayerScheme(4, 32)))


@pytest.mark.parametrize(
    ("value", "scheme"),
    [
        ("native", KVScheme()),
        ("8bit", KVScheme(LayerScheme(8))),
        ({"bits": 4, "group_size": 32, "start": 100}, KVScheme(LayerScheme(4, 32), (), 100)),
        (
            [{"layer": 2, "bits": 4}, {"layer": 0, "bits": 8}],
            KVScheme(None, ((0, LayerScheme(8)), (2, LayerScheme(4)))),
        ),
    ],
)
def test_schemes_as_users_write_them(value: Any, scheme: KVScheme) -> None:
    assert check_scheme(value) == scheme


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("7bit", ValueError, "'native' or one of"),
        ({"bits": 7}, ValueError, "kv bits=7"),
        ({"bits": 4, "groups": 1}, ValueError, "unknown key 'groups'"),
        ([{"layer": 0, "bits": 4}, {"layer": 0, "bits": 8}], ValueError, "named twice"),
        ([{"bits": 4}], TypeError, "kv layer"),
        (4, TypeError, "kv=4"),
        ({"bits": 4, "start": -1}, ValueError, "kv start"),
    ],
)
def test_mistakes_in_a_scheme_are_named(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_scheme(value)

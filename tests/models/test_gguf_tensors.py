"""Blocks repacked for MLX hold exactly the values that the format gives them, for any bits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.gguf_families import unpermuted_rows
from mlx_notebook.models.gguf_tensors import KEPT_BITS, stored_arrays, stored_form

if TYPE_CHECKING:
    import numpy.typing as npt

NUMPY_OF = {"U32": np.uint32, "F16": np.float16, "F32": np.float32, "BF16": np.uint16}


def tensor_of(packed: npt.NDArray[Any], kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> Any:
    """As `gguf.GGUFReader` gives one: its shape counts the other way."""
    return SimpleNamespace(name="t", data=packed, tensor_type=kind, shape=np.array(shape[::-1]))


def mlx_values(arrays: list[npt.NDArray[Any]], bits: int) -> npt.NDArray[np.float32]:
    words, scales, biases = arrays
    wide = [mx.array(x.astype(np.float32)) for x in (scales, biases)]
    return np.array(mx.dequantize(mx.array(words), wide[0], wide[1], group_size=32, bits=bits))


@pytest.mark.parametrize("name", sorted(KEPT_BITS))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), groups=st.integers(1, 4))
def test_any_block_keeps_its_values(name: str, seed: int, rows: int, groups: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    drawn = np.random.default_rng(seed)
    packed = drawn.integers(0, 256, (rows, groups, size), dtype=np.uint8)
    # Every bit pattern of the values; scales as a file can hold them (finite).
    headers = 2 if name == "Q4_1" else 1
    packed[..., : 2 * headers] = (
        drawn.normal(0, 0.1, (rows, groups, headers)).astype("<f2").view(np.uint8).reshape(rows, groups, -1)
    )
    packed = packed.reshape(rows, groups * size)
    tensor = tensor_of(packed, kind, (rows, groups * 32))
    arrays = stored_arrays(tensor, None, 0.0)
    expected = gguf.quants.dequantize(packed, kind)
    np.testing.assert_allclose(mlx_values(arrays, KEPT_BITS[name]), expected, rtol=0, atol=2e-5)
    for array, stored in zip(arrays, stored_form(tensor), strict=True):
        assert array.shape == stored.shape
        assert array.dtype == NUMPY_OF[stored.dtype]


def test_rows_of_packed_matrices_can_be_put_in_order() -> None:
    values = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    packed = gguf.quants.quantize(values, kind)
    order = unpermuted_rows(16, heads=2)
    arrays = stored_arrays(tensor_of(packed, kind, values.shape), order, 0.0)
    np.testing.assert_allclose(mlx_values(arrays, 4), gguf.quants.dequantize(packed, kind)[order], atol=1e-6)


def test_the_permutation_is_undone() -> None:
    # Head of 6 rows: the file interleaves the halves 0 1 2 and 3 4 5.
    assert unpermuted_rows(6, heads=1).tolist() == [0, 2, 4, 1, 3, 5]
    assert unpermuted_rows(8, heads=2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_types_stay_what_they_are(name: str) -> None:
    values = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    packed = values if name == "F32" else gguf.quants.quantize(values, kind)
    (array,) = stored_arrays(tensor_of(packed, kind, values.shape), None, 0.0)
    assert array.dtype == NUMPY_OF[name]
    back = (array.astype(np.uint32) << 16).view(np.float32) if name == "BF16" else array.astype(np.float32)
    np.testing.assert_array_equal(back, gguf.quants.dequantize(packed, kind).reshape(values.shape))


def test_an_offset_is_added_to_a_vector() -> None:
    weights = np.array([1.5, -2.0, 0.25], dtype=np.float32)
    (array,) = stored_arrays(tensor_of(weights, gguf.GGMLQuantizationType.F32, (3,)), None, -1.0)
    assert array.tolist() == [0.5, -3.0, -0.75]


def test_values_beyond_float16_are_refused() -> None:
    kind = gguf.GGMLQuantizationType.Q5_0
    packed = gguf.quants.quantize(np.full((1, 32), 1.0, dtype=np.float32), kind)
    packed[0, :2] = np.array([65504.0], dtype="<f2").view(np.uint8)
    with pytest.raises(ModelLoadError, match="float16"):
        stored_arrays(tensor_of(packed, kind, (1, 32)), None, 0.0)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_scales_beyond_float16_are_refused(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    packed = gguf.quants.quantize(np.full((1, 32), 1.0, dtype=np.float32), kind)
    packed[0, :2] = np.array([np.inf], dtype="<f2").view(np.uint8)
    with pytest.raises(ModelLoadError, match="scales beyond float16"):
        stored_arrays(tensor_of(packed, kind, (1, 32)), None, 0.0)


def test_a_type_that_cannot_be_read_is_named() -> None:
    kind = gguf.GGMLQuantizationType.Q8_1
    packed = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    with pytest.raises(ModelLoadError, match="Q8_1"):
        stored_arrays(tensor_of(packed, kind, (1, 32)), None, 0.0)

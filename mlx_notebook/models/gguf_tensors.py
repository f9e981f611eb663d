"""GGUF tensor blocks as MLX stores them.

Q4_0, Q4_1 and Q8_0 keep their bits: a block of 32 values becomes one MLX group with a scale and
a bias (value = scale * stored + bias), which is exact. Float types stay what they are. Every other
type is dequantised by the `gguf` package and stored as float16, whose rounding (2**-11) is far
below the quantisation's own; vectors are stored as float32.

Block layouts (ggml): Q4_0 = float16 d, 16 bytes whose low nibbles are values 0-15 and high
nibbles 16-31, value = d * (q - 8). Q4_1 = float16 d, float16 m, the same nibbles, value =
d * q + m. Q8_0 = float16 d, 32 signed bytes, value = d * q. MLX keeps value i of a row in the
bits [i * width, (i + 1) * width) of little-endian 32-bit words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_notebook.errors import ModelLoadError

GROUP_SIZE = 32
KEPT_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """One array as it will lie in the safetensors file: its type by safetensors' name, its shape."""

    suffix: str
    dtype: str
    shape: tuple[int, ...]


def type_name(tensor: Any) -> str:
    """The GGUF type's name, such as `Q4_1`."""
    return str(tensor.tensor_type.name)


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Outermost dimension first, as MLX counts (GGUF counts the other way)."""
    return tuple(int(n) for n in reversed(tensor.shape))


def is_kept(tensor: Any) -> bool:
    """Whether the tensor stays quantised: a matrix of a type that MLX's layout holds exactly."""
    return type_name(tensor) in KEPT_BITS and len(tensor.shape) == 2


def stored_form(tensor: Any) -> list[Stored]:
    """What `stored_arrays` will give for this tensor, without computing it."""
    shape = shape_of(tensor)
    if is_kept(tensor):
        rows, columns = shape
        groups = columns // GROUP_SIZE
        return [
            Stored("weight", "U32", (rows, columns * KEPT_BITS[type_name(tensor)] // 32)),
            Stored("scales", "F16", (rows, groups)),
            Stored("biases", "F16", (rows, groups)),
        ]
    if len(shape) == 1:
        return [Stored("", "F32", shape)]
    return [Stored("", type_name(tensor) if type_name(tensor) in {"F32", "BF16"} else "F16", shape)]


def stored_arrays(tensor: Any, row_order: npt.NDArray[np.intp] | None, offset: float) -> list[Array]:
    """The arrays of `stored_form`, in its order.

    Args:
        tensor: a `gguf.ReaderTensor`.
        row_order: new row i is the file's row `row_order[i]`; None keeps the order.
        offset: added to every value; only for tensors that are not kept quantised.

    Raises:
        ModelLoadError: a type that the `gguf` package cannot dequantise, or values beyond float16.
    """
    if is_kept(tensor):
        rows = np.asarray(tensor.data)
        return list(_kept_groups(rows if row_order is None else rows[row_order], tensor))
    values = _dequantised(tensor)
    if row_order is not None:
        values = values[row_order]
    if offset:
        values = values + np.float32(offset)
    dtype = stored_form(tensor)[0].dtype
    if dtype == "F32":
        return [np.ascontiguousarray(values, dtype=np.float32)]
    if dtype == "BF16":
        return [np.ascontiguousarray(values.view(np.uint32) >> 16).astype(np.uint16)]
    return [_as_float16(values, tensor)]


def _dequantised(tensor: Any) -> npt.NDArray[np.float32]:
    import gguf

    try:
        values = gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise ModelLoadError(
            f"Tensor {tensor.name!r} has type {type_name(tensor)}, which cannot be read: {error}. "
            "Use a file with Q4_0, Q4_1, Q8_0, K-quant, F16, BF16 or F32 tensors."
        ) from error
    return np.ascontiguousarray(values, dtype=np.float32).reshape(shape_of(tensor))


def _as_float16(values: npt.NDArray[np.float32], tensor: Any) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ModelLoadError(
            f"Tensor {tensor.name!r} holds values that are not finite, or beyond float16; the file is damaged."
        )
    return halves


def _kept_groups(rows: Array, tensor: Any) -> tuple[Array, Array, Array]:
    """(words, scales, biases) of the raw block bytes `[rows, bytes]`."""
    name = type_name(tensor)
    columns = int(tensor.shape[0])
    groups = columns // GROUP_SIZE
    blocks = rows.reshape(rows.shape[0], groups, -1)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    if name == "Q8_0":
        # Signed bytes become unsigned ones: flipping the top bit adds 128.
        words = np.ascontiguousarray(blocks[..., 2:] ^ 0x80).reshape(rows.shape[0], columns).view("<u4")
        return words, scales, _exact_bias(scales, -128.0, tensor)
    header = 2 if name == "Q4_0" else 4
    words = _pack_nibbles(blocks[..., header:]).reshape(rows.shape[0], columns // 2).view("<u4")
    if name == "Q4_0":
        return words, scales, _exact_bias(scales, -8.0, tensor)
    return words, scales, np.ascontiguousarray(blocks[..., 2:4]).view("<f2")[..., 0]


def _pack_nibbles(nibbles: Array) -> Array:
    """From ggml's order (byte j: values j and j + 16) to MLX's (byte j: values 2j and 2j + 1)."""
    values = np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=-1)
    return np.ascontiguousarray(values[..., 0::2] | (values[..., 1::2] << 4))


def _exact_bias(scales: Array, factor: float, tensor: Any) -> Array:
    """Scale times a power of two: exact in float16 unless it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        biases = (scales.astype(np.float32) * factor).astype(np.float16)
    if not np.isfinite(biases).all():
        raise ModelLoadError(f"Tensor {tensor.name!r} has scales beyond float16; the file is damaged.")
    return biases

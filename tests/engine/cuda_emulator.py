"""CUDA kernels without an NVIDIA GPU: what MLX makes of a kernel's source, compiled for the CPU and run.

`cuda_kernel` stands for `mx.fast.cuda_kernel`. The function around a kernel's body is written as MLX 0.32 writes it:
shapes, strides and numbers of dimensions are handed over as values where the body names them, template arguments are
constants and types at its head. `cuda_emulator.h` has the names of CUDA that our kernels use, and what stands between
the lines `//PTX` and `//END PTX` of a header, which is left out here.

Inputs are written in place, where a kernel does so. Calls run at once: nothing can be traced (`mx.compile`) with them.
Up to eight blocks run at the same time, others when one of them has ended.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from tests.engine.emulator import as_array, given, launch, memory, nobodys, unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

AT_ONCE = 8
MOST_SHARED = 227 * 1024
"""Bytes of dynamic shared memory that a block can have (compute capability 9.0)."""
DIMENSIONS = 10
"""Of MLX's `Shape` and `Strides` on the device, whatever the array has."""

TYPES = {
    mx.float32: "float",
    mx.float16: "__half",
    mx.bfloat16: "__nv_bfloat16",
    mx.bool_: "bool",
    mx.int8: "int8_t",
    mx.uint8: "uint8_t",
    mx.int16: "int16_t",
    mx.uint16: "uint16_t",
    mx.int32: "int32_t",
    mx.uint32: "uint32_t",
    mx.int64: "int64_t",
    mx.uint64: "uint64_t",
}
_PTX = re.compile(r"^\s*//PTX\s*$.*?^\s*//END PTX\s*$", re.MULTILINE | re.DOTALL)
_VALUES = (
    f"struct Shape {{ int v[{DIMENSIONS}]; int operator[](int i) const {{ return v[i]; }} }};\n"
    f"struct Strides {{ int64_t v[{DIMENSIONS}]; int64_t operator[](int i) const {{ return v[i]; }} }};\n"
)


def cuda_kernel(  # noqa: PLR0917 - MLX's own
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
) -> Callable[..., list[mx.array]]:
    if shared_memory > MOST_SHARED:
        raise ValueError(f"{name}: {shared_memory} bytes of shared memory; a block can have {MOST_SHARED}")
    header = _PTX.sub("", header)

    def call(
        *,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Sequence[tuple[str, Any]] = (),
    ) -> list[mx.array]:
        arrays = given(inputs, ensure_row_contiguous)
        made = [nobodys(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        parameters: list[str] = []
        arguments: list[str] = []
        buffers: list[np.ndarray[Any, Any]] = []

        def hand_over(kind: str, one: str, buffer: np.ndarray[Any, Any], how: str = "({kind})at[{at}]") -> None:
            parameters.append(f"{kind} {one}")
            arguments.append(how.format(kind=kind, at=len(buffers)))
            buffers.append(buffer)

        for one, array, seen in zip(input_names, arrays, map(memory, arrays), strict=True):
            hand_over(f"const {TYPES[array.dtype]}*", one, seen)
            for what, kind, values in (
                ("shape", "Shape", _padded(seen.shape, np.int32)),
                ("strides", "Strides", _padded([step // seen.itemsize for step in seen.strides], np.int64)),
                ("ndim", "int", np.array([seen.ndim], np.int32)),
            ):
                if f"{one}_{what}" in source and seen.ndim:
                    hand_over(f"const {kind}", f"{one}_{what}", values, "*({kind}*)at[{at}]")
        for one, dtype, buffer in zip(output_names, output_dtypes, made, strict=True):
            hand_over(f"{TYPES[dtype]}*", one, buffer)
        constants = "\n".join(map(_constant, template))
        kernel = f"void {name}({', '.join(parameters)}) {{\n{constants}\n{source}\n}}"
        text = unit("cuda_emulator.h", f"{_VALUES}{header}\n{kernel}", f"{name}({', '.join(arguments)})")
        launch(text, buffers, grid, threadgroup, shared_memory, AT_ONCE)
        return [as_array(array, dtype) for array, dtype in zip(made, output_dtypes, strict=True)]

    return call


def _padded(numbers: Sequence[int], kind: type[np.generic]) -> np.ndarray[Any, Any]:
    return np.array([*numbers, *[0] * (DIMENSIONS - len(numbers))], kind)


def _constant(argument: tuple[str, Any]) -> str:
    key, value = argument
    if isinstance(value, mx.Dtype):
        return f"using {key} = {TYPES[value]};"
    if isinstance(value, bool):
        return f"constexpr bool {key} = {str(value).lower()};"
    return f"constexpr int {key} = {value};"

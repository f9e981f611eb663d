"""Metal kernels without an Apple GPU: what MLX makes of a kernel's source, compiled for the CPU and run.

`metal_kernel` stands for `mx.fast.metal_kernel`. The function around a kernel's body is written as MLX writes it (its
`write_signature`): which address space an input comes in, which shapes and strides are handed over. `metal_emulator.h`
has the names of Metal that our kernels use.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from tests.engine.emulator import as_array, given, launch, memory, nobodys, unit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONSTANT = 8
"""Arrays with fewer numbers come in the address space `constant`."""

TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t", mx.int32: "int32_t"}
ATTRIBUTES = {
    "simdgroup_index_in_threadgroup": ("uint", "emulator::block->now->index / 32"),
    "thread_index_in_simdgroup": ("uint", "emulator::block->now->index % 32"),
    "thread_position_in_grid": ("uint3", "emulator::in_grid()"),
    "thread_position_in_threadgroup": ("uint3", "emulator::block->now->in_group"),
    "threadgroup_position_in_grid": ("uint3", "emulator::block->index"),
    "threadgroups_per_grid": ("uint3", "emulator::launched.groups"),
}


def metal_kernel(
    *,
    name: str,
    input_names: list[str],
    output_names: list[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
) -> Callable[..., list[mx.array]]:
    def call(
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        arrays = given(inputs, ensure_row_contiguous)
        made = [nobodys(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        parameters: list[str] = []
        buffers: list[np.ndarray[Any, Any]] = []
        for one, array, seen in zip(input_names, arrays, map(memory, arrays), strict=True):
            parameters.append(f"const {'constant' if seen.size < CONSTANT else 'device'} {TYPES[array.dtype]}* {one}")
            buffers.append(seen)
            if f"{one}_shape" in source:
                parameters.append(f"const constant int* {one}_shape")
                buffers.append(np.array(seen.shape, np.int32))
            if f"{one}_strides" in source:
                parameters.append(f"const constant int64_t* {one}_strides")
                buffers.append(np.array([step // seen.itemsize for step in seen.strides], np.int64))
        parameters += [f"device {TYPES[t]}* {one}" for one, t in zip(output_names, output_dtypes, strict=True)]
        launch(_text(name, header, source, parameters, template), [*buffers, *made], grid, threadgroup)
        return [as_array(array, dtype) for array, dtype in zip(made, output_dtypes, strict=True)]

    return call


def _text(name: str, header: str, source: str, parameters: list[str], template: Sequence[tuple[str, Any]]) -> str:
    kinds = ", ".join(f"{'typename' if isinstance(value, mx.Dtype) else 'int'} {key}" for key, value in template)
    values = ", ".join(TYPES[value] if isinstance(value, mx.Dtype) else str(value) for _, value in template)
    asked = {key: attribute for key, attribute in ATTRIBUTES.items() if key in source}
    signature = [f"{one} [[buffer({at})]]" for at, one in enumerate(parameters)]
    signature += [f"{kind} {key} [[{key}]]" for key, (kind, _) in asked.items()]
    pointers = [f"({re.sub(r' [a-z_0-9]+$', '', one)})at[{number}]" for number, one in enumerate(parameters)]
    arguments = ", ".join([*pointers, *(how for _, how in asked.values())])
    kernel = f"template <{kinds}>\n[[kernel]] void {name}({', '.join(signature)}) {{\n{source}\n}}"
    return unit("metal_emulator.h", f"{header}\n{kernel}", f"{name}<{values}>({arguments})")

"""Metal kernels without an Apple GPU: what MLX makes of a kernel's source, compiled for the CPU and run.

`metal_kernel` stands for `mx.fast.metal_kernel`. The function around a kernel's body is written as MLX writes it (its
`write_signature`): which address space an input comes in, which shapes and strides are handed over. `metal_emulator.h`
has the names of Metal that our kernels use.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONSTANT = 8
"""Arrays with fewer numbers come in the address space `constant`."""

TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t", mx.int32: "int32_t"}
ATTRIBUTES = {
    "simdgroup_index_in_threadgroup": ("uint", "(now - lanes) / 32"),
    "thread_index_in_simdgroup": ("uint", "(now - lanes) % 32"),
    "thread_position_in_grid": ("uint3", "now->in_grid"),
    "thread_position_in_threadgroup": ("uint3", "now->in_group"),
    "threadgroup_position_in_grid": ("uint3", "group_in_grid"),
    "threadgroups_per_grid": ("uint3", "groups"),
}


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def has_half() -> bool:
    """Whether the compiler knows half-precision numbers: g++ 12 on x86-64 does."""
    command = [compiler() or "c++", "-x", "c++", "-std=c++14", "-fsyntax-only", "-"]
    return subprocess.run(command, input=b"_Float16 x;", capture_output=True, check=False).returncode == 0


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
        given = [mx.contiguous(array) if ensure_row_contiguous else array for array in inputs]
        mx.eval(given)
        types = [TYPES[array.dtype] for array in given]
        seen = [_numpy(array) for array in given]
        made = [np.empty(shape, _bits(dtype)) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        parameters: list[str] = []
        buffers: list[np.ndarray[Any, Any]] = []
        for one, kind, array in zip(input_names, types, seen, strict=True):
            parameters.append(f"const {'constant' if array.size < CONSTANT else 'device'} {kind}* {one}")
            buffers.append(array)
            if f"{one}_shape" in source:
                parameters.append(f"const constant int* {one}_shape")
                buffers.append(np.array(array.shape, np.int32))
            if f"{one}_strides" in source:
                parameters.append(f"const constant int64_t* {one}_strides")
                buffers.append(np.array([step // array.itemsize for step in array.strides], np.int64))
        parameters += [f"device {TYPES[t]}* {one}" for one, t in zip(output_names, output_dtypes, strict=True)]
        _run(_text(name, header, source, parameters, template), [*buffers, *made], grid, threadgroup)
        return [mx.array(array).view(dtype) for array, dtype in zip(made, output_dtypes, strict=True)]

    return call


def _numpy(array: mx.array) -> np.ndarray[Any, Any]:
    """The array's own memory, with its strides."""
    plain: np.ndarray[Any, Any] = np.asarray(memoryview(array.view(mx.uint16 if array.dtype.size == 2 else mx.uint32)))  # type: ignore[arg-type]
    return plain


def _bits(dtype: mx.Dtype) -> type[np.generic]:
    return np.uint16 if dtype.size == 2 else np.uint32


def _text(name: str, header: str, source: str, parameters: list[str], template: Sequence[tuple[str, Any]]) -> str:
    """A translation unit with the kernel and what calls it."""
    kinds = ", ".join(f"{'typename' if isinstance(value, mx.Dtype) else 'int'} {key}" for key, value in template)
    values = ", ".join(TYPES[value] if isinstance(value, mx.Dtype) else str(value) for _, value in template)
    asked = {key: attribute for key, attribute in ATTRIBUTES.items() if key in source}
    signature = [f"{one} [[buffer({at})]]" for at, one in enumerate(parameters)]
    signature += [f"{kind} {key} [[{key}]]" for key, (kind, _) in asked.items()]
    pointers = [f"({re.sub(r' [a-z_0-9]+$', '', one)})at[{number}]" for number, one in enumerate(parameters)]
    arguments = ", ".join([*pointers, *(how for _, how in asked.values())])
    kernel = f"template <{kinds}>\n[[kernel]] void {name}({', '.join(signature)}) {{\n{source}\n}}\n"
    return f"""#include "metal_emulator.h"
{header}
{kernel}
static void** at;
extern "C" const char* launch(void** buffers, const uint* grid, const uint* group) {{
  using namespace emulator;
  at = buffers;
  return launch(grid, group, [] {{ {name}<{values}>({arguments}); }});
}}
"""


def _run(text: str, buffers: Sequence[np.ndarray[Any, Any]], grid: Sequence[int], group: Sequence[int]) -> None:
    launch = _built(text).launch
    launch.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers))
    sizes = [(ctypes.c_uint * 3)(*size) for size in (grid, group)]
    failed = launch(pointers, *sizes)
    if failed:
        raise RuntimeError(failed.decode())


@cache
def _built(text: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="mlxnb-kernel-"))
    try:
        code, library = folder / "kernel.cpp", folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        code.write_text(text)
        command = [compiler() or "c++", "-std=c++14", "-O1", "-w", "-shared", "-fPIC", f"-I{Path(__file__).parent}"]
        done = subprocess.run([*command, "-o", library, code], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(folder)

"""A GPU's kernels, compiled for the CPU and run: what Metal and CUDA have in common. `emulator.h` runs the lanes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = np.ndarray[Any, Any]

_BITS = {1: (mx.uint8, np.uint8), 2: (mx.uint16, np.uint16), 4: (mx.uint32, np.uint32), 8: (mx.uint64, np.uint64)}
_ONE_LAUNCH = Lock()
"""A built kernel has one launch at a time, and the call releases Python's own lock."""


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def has_half() -> bool:
    """Whether the compiler knows half-precision numbers: g++ 12 on x86-64 does."""
    command = [compiler() or "c++", "-x", "c++", "-std=c++17", "-fsyntax-only", "-"]
    return subprocess.run(command, input=b"_Float16 x;", capture_output=True, check=False).returncode == 0


def given(inputs: Sequence[mx.array], contiguous: bool) -> list[mx.array]:
    """The inputs as MLX hands them over: copies only of what is not contiguous and has to be."""
    arrays = [mx.contiguous(array) if contiguous else array for array in inputs]
    mx.eval(arrays)
    return arrays


def memory(array: mx.array) -> Buffer:
    """The array's own memory, with its strides in bytes."""
    plain: Buffer = np.asarray(memoryview(array.view(_BITS[array.dtype.size][0])))  # type: ignore[arg-type]
    return plain


def nobodys(shape: Sequence[int], dtype: mx.Dtype) -> Buffer:
    """An output before the launch: every number in it is none (NaN, or -1)."""
    return np.full(shape, (1 << 8 * dtype.size) - 1, _BITS[dtype.size][1])


def as_array(buffer: Buffer, dtype: mx.Dtype) -> mx.array:
    return mx.array(buffer).view(dtype)


def launch(  # noqa: PLR0917
    text: str,
    buffers: Sequence[Buffer],
    grid: Sequence[int],
    group: Sequence[int],
    shared: int = 0,
    at_once: int = 1,
) -> None:
    """Run a unit (see `unit`) with `shared` bytes of dynamic shared memory a group and so many groups at a time."""
    entry = _built(text).launch
    entry.restype = ctypes.c_char_p
    pointers = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers))
    sizes = [(ctypes.c_uint * 3)(*size) for size in (grid, group)]
    with _ONE_LAUNCH:
        failed = entry(pointers, *sizes, ctypes.c_size_t(shared), ctypes.c_uint(at_once))
    if failed:
        raise RuntimeError(failed.decode())


def unit(include: str, code: str, call: str) -> str:
    """A translation unit with a kernel and what calls it; `call` finds its buffers in `at`."""
    return f"""#include "{include}"
{code}
static void** at;
extern "C" const char* launch(void** buffers, const uint* grid, const uint* group, size_t shared, uint at_once) {{
  at = buffers;
  return emulator::launch(grid, group, shared, at_once, [] {{ {call}; }});
}}
"""


@cache
def _built(text: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp(prefix="mlxnb-kernel-"))
    try:
        code, library = folder / "kernel.cpp", folder / "kernel.so"
        code.write_text(text)
        command = [compiler() or "c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
        command += ["-U_FORTIFY_SOURCE"]  # which takes jumps between stacks for damage
        command += ["-fno-strict-aliasing"]  # one type's memory is read as another's
        command += [f"-I{Path(__file__).parent}", "-o", str(library), str(code)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(folder)

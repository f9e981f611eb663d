"""Launches of the whole-layer kernel: how a layer's work is laid out over blocks and warps, and what it is handed."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores import cuda_source, layer_source
from mlx_notebook.engine.stores.layer_source import THREADS
from mlx_notebook.engine.stores.page_ops import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.stores.page_ops import LayerPool
    from mlx_notebook.engine.stores.whole_layer import LayerParts

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
PAD = 32  # numbers between staged rows: neighbours then lie in different banks of shared memory
WARPS = THREADS // 32

INPUTS = [
    *("x", "norm1", "wqkv", "kpool", "vpool", "table", "positions", "turn"),
    *("wo", "norm2", "wgu", "wd", "counter"),
]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one layer is laid out.

    Attributes:
        stage: whether each block keeps the normed rows in its shared memory.
        parts: tiles that a warp takes at once where there are enough of them, in the products that end in the stream.
        together: tiles that the warps of a block share a product of, for each of the four products.
        ahead: blocks of weights that a thread has under way, of one tile and of two.
    """

    stage: bool
    parts: int
    together: tuple[int, int, int, int]
    ahead: tuple[int, int]


def layout_for(rows: int, hidden: int, blocks: int, shared: int) -> Layout:
    """What was fastest on one H200 (docs/performance.md)."""
    room = rows * (hidden + PAD) * 2 + _sums(rows, 2)
    pairs = hidden // 32
    parts = 2 if rows > 16 and hidden % 32 == 0 and pairs >= blocks * 0.9 else 1
    return Layout(room <= shared, parts, (1, 1, 2, 1), (4, 2))


def _sums(rows: int, parts: int) -> int:
    """Bytes of what warps have to add."""
    return WARPS * parts * 16 * (-(-rows // 8) * 8 + 8) * 4


class CudaLayers:
    """One launch a layer. The launches of one object must follow each other on one stream."""

    def __init__(self, blocks: int, shared: int) -> None:
        self._blocks, self._shared = blocks, shared
        # Larger than what MLX keeps where the host can reach it: counting there took 200 microseconds.
        self._counter = mx.zeros(1024, dtype=mx.int32)
        mx.eval(self._counter)
        self._kernels: dict[int, Callable[..., Any]] = {}

    def __call__(
        self, parts: LayerParts, pool: LayerPool, x: mx.array, table: mx.array, positions: mx.array, turn: mx.array
    ) -> mx.array:
        """What the layer makes of x [R, 1, H], [R, 1, H]; its new columns are in the pool then.

        Args:
            parts: the layer.
            pool: its pages.
            x: the residual stream.
            table: pages of each row, [R, M].
            positions: of each row's new column, [R]; negative for idle places.
            turn: cosines and sines at these positions, [R, D].
        """
        rows, _, hidden = x.shape
        _, own, _, width = pool.keys.shape
        numbers, queries, inner = parts.heads.shape[0], parts.out.shape[1], parts.down.shape[1]
        layout = layout_for(rows, hidden, self._blocks, self._shared)
        splits = -(-table.shape[1] * BLOCK // cuda_source.SPAN)
        room = rows * (numbers + queries + hidden + inner + (0 if layout.stage else hidden))
        outputs: list[mx.array] = self._kernel(rows, hidden, queries // own, width, layout)(
            inputs=[
                *(x, parts.norms[0], parts.heads, pool.keys, pool.values, table, positions, turn),
                *(parts.out, parts.norms[1], parts.opened, parts.down, self._counter),
            ],
            template=[
                *(("T", x.dtype), ("ROWS", rows), ("HID", hidden), ("INNER", inner)),
                *(("H", own), ("G", queries // own // width), ("D", width)),
                *zip(("WT_QKV", "WT_OUT", "WT_UP", "WT_DOWN"), layout.together, strict=True),
                *zip(("AHEAD_ONE", "AHEAD_TWO"), layout.ahead, strict=True),
                *(("STAGE", int(layout.stage)), ("PARTS", layout.parts), ("EPS_BITS", bits_of(parts.eps))),
                ("AT_WARPS", WARPS if rows * own <= self._blocks else cuda_source.WARPS),
                ("SCALE_BITS", bits_of(parts.scale * math.log2(math.e))),
            ],
            grid=(self._blocks * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[x.shape, (room,), (rows * queries // width * splits * (width + 2) if splits > 1 else 1,)],
            output_dtypes=[x.dtype, x.dtype, mx.float32],
        )
        return outputs[0]

    def _kernel(self, rows: int, hidden: int, group: int, width: int, layout: Layout) -> Callable[..., Any]:
        """The kernel with as much shared memory as this layout takes; its size is part of a kernel's making."""
        attending = WARPS * (group // width) * (width + 2) * 4
        size = (rows * (hidden + PAD) * 2 if layout.stage else 0) + max(_sums(rows, 2), attending)
        made = self._kernels.get(size)
        if made is None:
            kernel: Any = mx.fast.cuda_kernel(
                name=f"mlxnb_layer_{size}",
                input_names=INPUTS,
                output_names=["out", "room", "parts"],
                source=layer_source.LAYER,
                header=cuda_source.HEADER + layer_source.HEADER,
                shared_memory=size,
            )
            made = self._kernels[size] = kernel
        return made


def device_limits() -> tuple[int, int] | None:
    """Multiprocessors of the GPU, and bytes of shared memory that a block may have; None where CUDA does not say."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found = []
    for attribute in (MULTIPROCESSORS, SHARED):
        value = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0):
            return None
        found.append(value.value)
    return found[0], found[1]

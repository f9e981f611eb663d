"""Launches of the whole-layer kernel: how a layer's work is laid out over blocks and warps, and what it is handed."""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores import cuda_source, layer_source
from mlx_notebook.engine.stores.layer_source import PAD, THREADS
from mlx_notebook.engine.stores.page_ops import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.stores.page_ops import LayerPool
    from mlx_notebook.engine.stores.whole_layer import LayerParts

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
WARPS = THREADS // 32
MOST_ROWS = 32  # with more, sums take more registers than a thread has

INPUTS = [
    *("x", "norm1", "wqkv", "kpool", "vpool", "table", "positions", "turn"),
    *("wo", "norm2", "wgu", "wd", "counter"),
]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one layer is laid out.

    Attributes:
        together: tiles that the warps of a block share a product of, for each of the four products.
        ahead: blocks of weights that a thread has under way, of one tile and of two, at most.
    """

    together: tuple[int, int, int, int] = (1, 1, 2, 1)
    ahead: tuple[int, int] = (4, 2)


LAYOUT = Layout()
"""The fastest on one H200, of those that were tried (docs/performance.md)."""


def shared_for(rows: int, hidden: int, group: int, width: int) -> int:
    """Bytes of shared memory that a block takes: normed rows, then what warps have to add, in products or attention."""
    sums = WARPS * 2 * 16 * (-(-rows // 8) * 8 + 8)
    attending = WARPS * group * (width + 2)
    return rows * (hidden + PAD) * 2 + max(sums, attending) * 4


class CudaLayers:
    """One launch a layer. The launches of one object must follow each other on one stream.

    There is one that was `taken` in a process at most, until it is closed or gone: the blocks of a launch wait for each
    other, and two launches at the same time, each with some of its blocks on the GPU, would wait for ever.
    """

    _taken = threading.Lock()

    def __init__(self, blocks: int, shared: int, release: Callable[[], None] = lambda: None) -> None:
        self._blocks, self._shared = blocks, shared
        self.close = weakref.finalize(self, release)
        # Larger than what MLX keeps where the host can reach it: counting there took 200 microseconds.
        self._counter = mx.zeros(1024, dtype=mx.int32)
        mx.eval(self._counter)
        self._kernels: dict[int, Callable[..., Any]] = {}

    @classmethod
    def taken(cls, blocks: int, shared: int) -> CudaLayers | None:
        """The one of this process, None while another one is open."""
        return cls(blocks, shared, cls._taken.release) if cls._taken.acquire(blocking=False) else None

    def serves(self, rows: int, parts: LayerParts) -> bool:
        """Whether a block can hold so many rows of this layer; with more, MLX's own products are faster."""
        width, own = parts.rope.width, parts.own
        return rows <= MOST_ROWS and shared_for(
            rows, parts.down.shape[0], parts.out.shape[1] // own // width, width
        ) <= (self._shared)

    def __call__(  # noqa: PLR0917
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
        group = queries // own // width
        splits = -(-table.shape[1] * BLOCK // cuda_source.SPAN)
        outputs: list[mx.array] = self._kernel(shared_for(rows, hidden, group, width))(
            inputs=[
                *(x, parts.norms[0], parts.heads, pool.keys, pool.values, table, positions, turn),
                *(parts.out, parts.norms[1], parts.opened, parts.down, self._counter),
            ],
            template=[
                *(("T", x.dtype), ("ROWS", rows), ("HID", hidden), ("INNER", inner)),
                *(("H", own), ("G", group), ("D", width)),
                *zip(("WT_QKV", "WT_OUT", "WT_UP", "WT_DOWN"), LAYOUT.together, strict=True),
                *zip(("AHEAD_ONE", "AHEAD_TWO"), LAYOUT.ahead, strict=True),
                ("AT_WARPS", WARPS if rows * own <= self._blocks else cuda_source.WARPS),
                ("EPS_BITS", bits_of(parts.eps)),
                ("SCALE_BITS", bits_of(parts.scale * math.log2(math.e))),
            ],
            grid=(self._blocks * THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[
                x.shape,
                (rows * (numbers + queries + hidden + inner),),
                (rows * queries // width * splits * (width + 2) if splits > 1 else 1,),
            ],
            output_dtypes=[x.dtype, x.dtype, mx.float32],
        )
        return outputs[0]

    def _kernel(self, shared: int) -> Callable[..., Any]:
        """The kernel with so much shared memory, which is part of a kernel's making."""
        made = self._kernels.get(shared)
        if made is None:
            kernel: Any = mx.fast.cuda_kernel(
                name=f"mlxnb_layer_{shared}",
                input_names=INPUTS,
                output_names=["out", "room", "parts"],
                source=layer_source.LAYER,
                header=cuda_source.HEADER + layer_source.HEADER,
                shared_memory=shared,
            )
            made = self._kernels[shared] = kernel
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

"""The pool's pages on an Apple GPU: attention by kernels that only read, columns written by MLX's own operations.

Why not in place, as on CUDA: MLX's Metal backend lets kernels of one encoder overlap and sets a barrier (a fence
between encoders) only where an array that one is known to write is an array that another is known to read or write. A
kernel cannot name an input as written: its outputs are always new arrays. So a write into an input would be ordered by
luck, and against the type under which Metal's compiler knows it (`const device`). An indexed assignment is a write
that MLX knows of. It takes over the array's memory where nobody else holds it, and copies the layer's pages
where a kernel still reads them: MLX holds what a kernel reads until its command buffer has ended. A layer's pages are
next written one step later, and MLX lets at most ten command buffers be under way, so that copies are for models whose
whole step fits into these. New columns therefore go into their pages first, and attention reads what came of it: were
both to read the older array, each write would be a copy.

None of this has run on an Apple GPU. It is off unless switched on (`choose`), and then used only if it agrees.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores import metal_source as source
from mlx_notebook.engine.stores.late import HEADS_FIRST, Seen
from mlx_notebook.engine.stores.page_ops import StockPages, bits_of, next_columns, write_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.stores.late import Heads
    from mlx_notebook.engine.stores.page_ops import LayerPool


class MetalPages(StockPages):
    """Pages that Metal kernels read. Head sizes 64 and 128."""

    def __init__(self) -> None:
        inputs = ["q", "kpool", "vpool", "table", "positions", "turn"]
        whole, part = (source.ATTEND.replace("STORE", way) for way in (source.WHOLE, source.PART))
        self._turn = _kernel("mlxnb_turn_heads", ["fresh", "turn"], ["out"], source.TURN, strided=True)
        self._attend_whole = _kernel("mlxnb_attend_pages", inputs, ["out"], whole, strided=True)
        self._attend_part = _kernel("mlxnb_attend_spans", inputs, ["spans", "stat"], part, strided=True)
        self._merge = _kernel("mlxnb_merge_spans", ["spans", "stat"], ["out"], source.MERGE)
        self._no_turn = mx.zeros(64)  # as large as a row's: MLX passes less than 8 numbers in another address space
        mx.eval(self._no_turn)
        self._last: tuple[mx.array, mx.array, mx.array, mx.array] | None = None

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, lengths: mx.array) -> mx.array:
        """All rows in one write. What lies behind a row's end goes along, into its own pages or those of nobody:
        no column is read before a token was written there."""
        del lengths
        rows, width = pages.shape
        for name, columns in (("keys", keys), ("values", values)):
            _, heads, held, size = columns.shape
            short = max(0, width * BLOCK - held)
            padded = mx.pad(columns[:, :, : width * BLOCK], [(0, 0), (0, 0), (0, short), (0, 0)])
            blocks = padded.reshape(rows, heads, width, BLOCK, size).transpose(0, 2, 1, 3, 4)
            target = getattr(pool, name)
            target[pages.reshape(-1)] = blocks.reshape(rows * width, heads, BLOCK, size)
            setattr(pool, name, target)
        return pool.keys

    def attend(  # noqa: PLR0917
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> mx.array:
        return self._attend(pool, queries, keys, values, table, positions, scale, None)

    def attend_heads(  # noqa: PLR0917
        self,
        pool: LayerPool,
        queries: Heads,
        keys: Heads,
        values: Heads,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> Seen:
        """Views of the product go into the kernels as they lie, and are turned there."""
        if queries.turn is not keys.turn or values.turn is not None:
            return super().attend_heads(pool, queries, keys, values, table, positions, scale)
        q, k, v = (replace(one, turn=None).array() for one in (queries, keys, values))
        seen = self._attend(pool, q, k, v, table, positions, scale, queries.turn)
        return Seen(seen.transpose(*HEADS_FIRST).flatten(-2))

    def _attend(  # noqa: PLR0917
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
        turn: mx.array | None,
    ) -> mx.array:
        new = keys if turn is None else self._turned(keys, turn)
        write_columns(pool, new, values, *self._next(table, positions))
        rows, heads, _, width = queries.shape
        own = keys.shape[1]
        group = heads // own
        parts = -(-group // source.TOGETHER)
        splits = -(-table.shape[1] * BLOCK // source.SPAN)
        whole = splits == 1
        dtype = queries.dtype
        outputs: list[mx.array] = (self._attend_whole if whole else self._attend_part)(
            inputs=[queries, pool.keys, pool.values, table, positions, self._no_turn if turn is None else turn],
            template=[
                *(("T", dtype), ("H", own), ("G", group), ("EACH", -(-group // parts)), ("D", width)),
                *(("TURN", int(turn is not None)), ("SCALE_BITS", bits_of(scale * math.log2(math.e)))),
            ],
            grid=(splits * source.WARPS * 32, own * parts, rows),
            threadgroup=(source.WARPS * 32, 1, 1),
            output_shapes=[(rows, heads, width)] if whole else [(rows, heads, splits, n) for n in (width, 2)],
            output_dtypes=[dtype] if whole else [mx.float32, mx.float32],
        )
        if whole:
            return outputs[0][:, :, None]
        merged: list[mx.array] = self._merge(
            inputs=outputs,
            template=[("T", dtype), ("D", width)],
            grid=(width, rows * heads, 1),
            threadgroup=(width, 1, 1),
            output_shapes=[(rows, heads, width)],
            output_dtypes=[dtype],
        )
        return merged[0][:, :, None]

    def _turned(self, keys: mx.array, turn: mx.array) -> mx.array:
        """Keys [R, H, 1, D] turned, in one launch; queries are turned by the attention."""
        rows, own, _, width = keys.shape
        made: list[mx.array] = self._turn(
            inputs=[keys, turn],
            template=[("T", keys.dtype), ("D", width)],
            grid=(width, own, rows),
            threadgroup=(width, 1, 1),
            output_shapes=[keys.shape],
            output_dtypes=[keys.dtype],
        )
        return made[0]

    def _next(self, table: mx.array, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Where new columns go: computed once a step, since its layers share table and positions."""
        last = self._last
        if last is None or last[0] is not table or last[1] is not positions:
            last = self._last = (table, positions, *next_columns(table, positions))
        return last[2], last[3]


def _kernel(
    name: str, inputs: list[str], outputs: list[str], code: str, *, strided: bool = False
) -> Callable[..., Any]:
    """`strided`: inputs come as they lie, and the code looks at their strides."""
    made: Any = mx.fast.metal_kernel(
        name=name,
        input_names=inputs,
        output_names=outputs,
        source=code,
        header=source.HEADER,
        ensure_row_contiguous=not strided,
    )
    kernel: Callable[..., Any] = made
    return kernel

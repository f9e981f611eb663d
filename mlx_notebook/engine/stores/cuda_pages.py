"""The pool's pages through CUDA kernels, updated in place, which MLX does not see: steps must follow on one stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores import cuda_source as source
from mlx_notebook.engine.stores.late import NotForLateError, Seen
from mlx_notebook.engine.stores.page_ops import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.stores.late import Heads
    from mlx_notebook.engine.stores.page_ops import LayerPool


class CudaPages:
    """Pages through CUDA kernels, updated in place. Head sizes 64 and 128."""

    in_place = True
    least_places = 16  # matrix products with 2 to 12 rows took 1.2 to 1.4 times as long as with 16 (H200, bfloat16)

    def __init__(self) -> None:
        inputs = ["q", "knew", "vnew", "kpool", "vpool", "table", "positions", "turn"]
        whole, part = (source.ATTEND.replace("STORE", way) for way in (source.WHOLE, source.PART))
        self._attend_whole = _kernel("mlxnb_attend_pages", inputs, ["out"], whole)
        self._attend_part = _kernel("mlxnb_attend_spans", inputs, ["part_out", "stat"], part)
        self._merge = _kernel("mlxnb_merge_spans", ["part", "stat"], ["out"], source.MERGE)
        filled = ["ksrc", "vsrc", "kpool", "vpool", "pages", "lengths"]
        self._fill = _kernel("mlxnb_fill_pages", filled, ["done"], source.FILL)
        self._split = _kernel("mlxnb_split_three", ["whole"], ["first", "second", "third"], source.SPLIT)
        self._no_turn = mx.zeros(1)
        mx.eval(self._no_turn)  # made once: steps are traced with it

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        """Three parts (queries, keys, values) in one launch, where stock operations copy each when it is used.

        Others are left to stock operations: gate and up go as they are into the one kernel that multiplies them.
        """
        *outer, width = product.shape
        each = 16 // product.dtype.size
        if len(cuts) != 2 or any(cut % each for cut in (*cuts, width)):
            return list(mx.split(product, cuts, axis=-1))
        sizes = [cuts[0], cuts[1] - cuts[0], width - cuts[1]]
        threads = -(-width // (each * 256)) * 256
        parts: list[mx.array] = self._split(
            inputs=[product],
            template=[("T", product.dtype), *zip("ABC", sizes, strict=True)],
            grid=(threads, math.prod(outer), 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(*outer, size) for size in sizes],
            output_dtypes=[product.dtype] * 3,
        )
        return parts

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, lengths: mx.array) -> mx.array:
        rows, heads, capacity, width = keys.shape
        threads = rows * heads * min(capacity, pages.shape[1] * BLOCK) * (width // 8)
        done: list[mx.array] = self._fill(
            inputs=[keys, values, pool.keys, pool.values, pages, lengths],
            template=[("T", keys.dtype), ("H", heads), ("D", width)],
            grid=(-(-threads // 256) * 256, 1, 1),
            threadgroup=(256, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
        )
        return done[0]

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
        rows, heads, _, width = queries.shape
        shape = (rows, heads, 1, width)
        lying = [("QROW", heads * width), ("KROW", keys.shape[1] * width), ("K0", 0), ("V0", 0)]
        return self._attend(pool, [queries, keys, values], lying, heads, table, positions, scale, None, shape)

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
        product = queries.product
        if queries.start or queries.turn is not keys.turn or values.turn is not None:
            raise NotForLateError("queries and keys turned alike, values not, are what the kernel takes")
        *outer, numbers = product.shape
        lying = [("QROW", numbers), ("KROW", numbers), ("K0", keys.start), ("V0", values.start)]
        shape = (*outer, queries.stop)
        heads, turn = queries.count, queries.turn
        return Seen(self._attend(pool, [product] * 3, lying, heads, table, positions, scale, turn, shape))

    def _attend(  # noqa: PLR0917
        self,
        pool: LayerPool,
        new: list[mx.array],
        lying: list[tuple[str, int]],
        heads: int,
        table: mx.array,
        positions: mx.array,
        scale: float,
        turn: mx.array | None,
        shape: tuple[int, ...],
    ) -> mx.array:
        """One launch, where all rows fit into one span, else two."""
        rows, pages = table.shape
        _, own, _, width = pool.keys.shape
        splits = -(-pages * BLOCK // source.SPAN)
        whole = splits == 1
        dtype = new[0].dtype
        outputs: list[mx.array] = (self._attend_whole if whole else self._attend_part)(
            inputs=[*new, pool.keys, pool.values, table, positions, self._no_turn if turn is None else turn],
            template=[
                *(("T", dtype), ("H", own), ("G", heads // own), ("D", width)),
                *lying,
                ("TURN", int(turn is not None)),
                ("TEAM", source.WARPS),
                ("SCALE_BITS", bits_of(scale * math.log2(math.e))),
            ],
            grid=(splits * source.WARPS * 32, own, rows),
            threadgroup=(source.WARPS * 32, 1, 1),
            output_shapes=[shape] if whole else [(rows, heads, splits, width), (rows, heads, splits, 2)],
            output_dtypes=[dtype] if whole else [mx.float32, mx.float32],
        )
        if whole:
            return outputs[0]
        merged: list[mx.array] = self._merge(
            inputs=outputs,
            template=[("T", dtype), ("D", width)],
            grid=(width, rows * heads, 1),
            threadgroup=(width, 1, 1),
            output_shapes=[shape],
            output_dtypes=[dtype],
        )
        return merged[0]


def _kernel(name: str, inputs: list[str], outputs: list[str], code: str) -> Callable[..., Any]:
    made: Any = mx.fast.cuda_kernel(
        name=name, input_names=inputs, output_names=outputs, source=code, header=source.HEADER
    )
    kernel: Callable[..., Any] = made
    return kernel

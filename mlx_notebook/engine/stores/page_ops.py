"""What the pool does with its pages, and the same with MLX's own operations.

`StockPages` is the oracle of the kernels (`cuda_pages`, `metal_pages`), and what runs where none can.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol, cast

import mlx.core as mx

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.late import HEADS_FIRST, Seen
from mlx_notebook.engine.stores.pages import pages_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.engine.stores.late import Heads


class LayerPool:
    """One layer's keys and values: [pages, H, BLOCK, D] each."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: mx.array, values: mx.array) -> None:
        self.keys = keys
        self.values = values

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.keys.nbytes + self.values.nbytes


class PageOps(Protocol):
    """What the pool store does with pages.

    Attributes:
        in_place: pages are written where they lie, unseen by MLX: steps must follow on one stream, and can be compiled.
        least_places: of a step of several rows; fewer would take longer.
    """

    in_place: bool
    least_places: int

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, lengths: mx.array) -> mx.array:
        """Write the first `lengths` [R] columns of rows [R, H, C, D] into their pages [R, M]; something to evaluate."""
        ...

    def attend(  # noqa: PLR0917 - one call, all of it needed
        self,
        pool: LayerPool,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        positions: mx.array,
        scale: float,
    ) -> mx.array:
        """Write each row's new column [R, H, 1, D] at its position and attend, [R, Hq, 1, D].

        `table` [R, M] names pages, `positions` [R] the columns held before; -1 is an idle place, which gets zeros
        (its table names pages that are nobody's: it may be written to).
        """
        ...

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
        """The same of heads that are columns of one product."""
        ...

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        """The parts of a product [..., n] cut at these columns."""
        ...


class StockPages:
    """The same with MLX's own operations: the oracle, and what runs where the kernel can't."""

    in_place = False
    least_places = 1

    def split(self, product: mx.array, cuts: list[int]) -> Sequence[mx.array]:
        return list(mx.split(product, cuts, axis=-1))

    def fill(self, pool: LayerPool, pages: mx.array, keys: mx.array, values: mx.array, lengths: mx.array) -> mx.array:
        for row, columns in enumerate(cast("list[int]", lengths.tolist())):
            count = pages_for(columns)
            for name, source in (("keys", keys), ("values", values)):
                _, heads, _, width = source.shape
                padded = mx.pad(source[row, :, :columns], [(0, 0), (0, count * BLOCK - columns), (0, 0)])
                target = getattr(pool, name)
                target[pages[row, :count]] = padded.reshape(heads, count, BLOCK, width).transpose(1, 0, 2, 3)
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
        rows, width = table.shape
        write_columns(pool, keys, values, *next_columns(table, positions))
        held = [
            array[table].transpose(0, 2, 1, 3, 4).reshape(rows, array.shape[1], width * BLOCK, array.shape[3])
            for array in (pool.keys, pool.values)
        ]
        mask = (mx.arange(width * BLOCK)[None] <= mx.maximum(positions, 0)[:, None])[:, None, None]
        seen = mx.fast.scaled_dot_product_attention(queries, *held, scale=scale, mask=mask)
        return mx.where((positions >= 0)[:, None, None, None], seen, 0)

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
        seen = self.attend(pool, queries.array(), keys.array(), values.array(), table, positions, scale)
        return Seen(seen.transpose(*HEADS_FIRST).flatten(-2))


def next_columns(table: mx.array, positions: mx.array) -> tuple[mx.array, mx.array]:
    """Page and column within it [R] that each row's next column takes; an idle place's table names nobody's page."""
    at = mx.maximum(positions, 0)
    return mx.take_along_axis(table, (at // BLOCK)[:, None], axis=1)[:, 0], at % BLOCK


def write_columns(pool: LayerPool, keys: mx.array, values: mx.array, page: mx.array, column: mx.array) -> None:
    """Write each row's new column [R, H, 1, D] by an assignment, which MLX orders before whatever reads it."""
    for name, new in (("keys", keys), ("values", values)):
        target = getattr(pool, name)
        target[page, :, column] = new[:, :, 0]
        setattr(pool, name, target)


def kernels_serve(head_width: int, dtype: mx.Dtype) -> bool:
    """Whether the kernels are written for such heads."""
    return head_width in (64, 128) and dtype in (mx.bfloat16, mx.float16, mx.float32)


def bits_of(number: float) -> int:
    """A float32's bits: kernels take whole numbers as constants, and an array a launch would be read from memory."""
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits

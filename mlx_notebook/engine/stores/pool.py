"""The store `pool`: all rows' columns in pages of one pool a layer, read by one ragged attention a layer.

For GPUs, where a launch costs more than the work of a short row: a decode step is one forward with one attention
launch a layer, whatever the rows' lengths, and it is compiled for each number of places (one, or a power of two; spare
places are idle). Prompts that are read together from their start go straight into pages; another row comes in when it
first decodes, its columns copied once. It goes back into caches of its own (`settle`) when it rests, is kept, or is
read on: prefill of one row, and of rows that hold something already, is the rows store's. The pool grows by a quarter,
and goes with its last row.

It serves models whose layers all keep plain full-attention caches; others keep the rows store.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.stores.caches import make_caches
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late import Heads
from mlx_notebook.engine.stores.page_ops import LayerPool
from mlx_notebook.engine.stores.pages import SCRATCH, Pages, pages_for
from mlx_notebook.engine.stores.rows import RowsStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlx_notebook.engine.stores.late import Late, Seen
    from mlx_notebook.engine.stores.page_ops import PageOps
    from mlx_notebook.engine.stores.store import F, Fed

    New = mx.array | Heads


class _Step:
    """What all layers of one forward share: one array of positions, so that angles are computed once."""

    __slots__ = ("offset", "ops", "positions", "table")

    def __init__(self, ops: PageOps, table: mx.array, positions: mx.array) -> None:
        self.ops, self.table, self.positions = ops, table, positions
        self.offset = mx.maximum(positions, 0)


class PagedCache:
    """What a model sees as one layer's cache in a pooled step."""

    def __init__(self, pool: LayerPool, step: _Step) -> None:
        self.offset = step.offset
        self.pool, self.step = pool, step

    def make_mask(self, *_args: Any, **_kwargs: Any) -> None:
        """None: every row sees its own columns and nothing else."""

    def update_and_fetch(self, keys: New, values: New) -> tuple[Paged, Paged]:
        """Nothing is written yet: attention does both."""
        return Paged(keys, self), Paged(values, self)

    def attend(self, queries: New, keys: Paged, values: Paged, scale: float) -> mx.array | Seen:
        """One new token a row over its own pages."""
        step, k, v = self.step, keys.new, values.new
        if isinstance(queries, Heads) and isinstance(k, Heads) and isinstance(v, Heads):
            return step.ops.attend_heads(self.pool, queries, k, v, step.table, step.positions, scale)
        arrays = _array(queries), _array(k), _array(v)
        return step.ops.attend(self.pool, *arrays, step.table, step.positions, scale)


def _array(new: New) -> mx.array:
    return new.array() if isinstance(new, Heads) else new


class Paged:
    """One layer's new keys (or values) [R, H, 1, D]; the others are in the pool."""

    __slots__ = ("cache", "new")

    def __init__(self, new: New, cache: PagedCache) -> None:
        self.new = new
        self.cache = cache


class _Held:
    """A row in the pool, its pages, and how many columns fit into them."""

    __slots__ = ("pages", "room", "row")

    def __init__(self, row: Fed, pages: list[int]) -> None:
        self.row = row
        self.pages = pages
        self.room = len(pages) * BLOCK


class PoolStore:
    """Rows of one model whose layers all keep KVCache.

    Args:
        model: an mlx-lm model whose attention is routed to us.
        ops: how pages are written and read.
        compiled: whether steps are compiled; only where pages are updated in place.
        twin: the model as `joined` made it, where several stores are made of one model.
        late: what the twin leaves to attention.
        closing: called when the store is closed.
    """

    name = "pool"

    def __init__(
        self,
        model: Any,
        ops: PageOps,
        *,
        compiled: bool = True,
        twin: Any = None,
        late: Late | None = None,
        closing: Callable[[], None] | None = None,
    ) -> None:
        caches = make_caches(model)
        if not all(type(cache) is KVCache for cache in caches):
            raise ValueError("the pool serves models whose layers all keep plain full-attention caches")
        self._model = model
        self._joined = joined(model, ops.split) if twin is None else twin
        self._ops = ops
        self._late = late
        self._closing = closing
        self._rows = RowsStore(model)
        self._layers: list[LayerPool] = []
        self._pages = Pages()
        self._held: dict[int, _Held] = {}
        self._asked: list[Fed] = []
        self._places: list[Any] = []
        self._live: list[_Held] | None = None
        self._table: mx.array | None = None
        self._positions: mx.array | None = None
        self._fed: list[int] = []
        self._forward: Callable[..., tuple[mx.array, mx.array]] = self._plain_forward
        if compiled and ops.in_place:
            self._forward = mx.compile(self._plain_forward)

    def order(self, rows: Sequence[F]) -> list[F | None]:
        """Rows of the last step first; then as many idle places as fill a power of two.

        While the same rows go on it is the same list: what was found out about it holds.
        """
        if len(rows) != len(self._asked) or not all(map(is_, rows, self._asked)):
            self._asked, self._live = list(rows), None
            place = {id(row): at for at, row in enumerate(self._places)}
            ordered = sorted(rows, key=lambda row: place.get(id(row), len(place)))
            self._places = [*ordered, *([None] * (self._places_for(len(ordered)) - len(ordered)))]
        return self._places

    def _places_for(self, rows: int) -> int:
        return 1 if rows == 1 else max(self._ops.least_places, 1 << (rows - 1).bit_length())

    def step(self, places: Sequence[Fed | None], tokens: mx.array) -> mx.array:
        if self._live is None or places is not self._places:
            live = [row for row in places if row is not None]
            self._take_in([row for row in live if id(row) not in self._held])
            self._live = [self._held[id(row)] for row in live]
            self._table = None
        for held in self._live:
            if held.row.fed >= held.room:
                self._make_room(held)
        fed = [-1 if row is None else row.fed for row in places]
        positions = self._positions
        if positions is None or fed != self._fed:
            positions = mx.array(fed, dtype=mx.int32)
        logits, self._positions = self._forward(tokens, positions, self._table_of(places), self._arrays())
        self._fed = [count + 1 if count >= 0 else -1 for count in fed]
        return logits

    def _plain_forward(
        self, tokens: mx.array, positions: mx.array, table: mx.array, pools: list[mx.array]
    ) -> tuple[mx.array, mx.array]:
        """Logits [R, V], and the positions of the next step: they stay on the device while the same rows go on."""
        layers = self._layers
        if self._ops.in_place:  # compiled: the arrays are inputs, whatever object holds them
            layers = [LayerPool(k, v) for k, v in zip(pools[::2], pools[1::2], strict=True)]
        step = _Step(self._ops, table, positions)
        try:
            logits: mx.array = self._joined(tokens, cache=[PagedCache(layer, step) for layer in layers])
        finally:
            if self._late is not None:
                self._late.clear()
        return logits[:, -1, :], mx.where(positions >= 0, positions + 1, positions)

    def prefill(self, rows: Sequence[Fed], tokens: mx.array, lengths: Sequence[int]) -> None:
        for row in rows:
            self.settle(row)
        if len(rows) == 1 or any(row.fed for row in rows):
            self._rows.prefill(rows, tokens, lengths)
        else:
            self._prefill_from_the_start(rows, tokens, lengths)

    def _prefill_from_the_start(self, rows: Sequence[Fed], tokens: mx.array, lengths: Sequence[int]) -> None:
        """As one rectangle, and from there into pages: row by row would be many launches a row.

        A row's padding comes after all that the row may see, and is not taken over.
        """
        whole = make_caches(self._model)
        self._model(tokens, cache=whole)
        self._reserve(sum(pages_for(length + 1) for length in lengths), like=whole)
        held = [_Held(row, self._pages.take(pages_for(n + 1))) for row, n in zip(rows, lengths, strict=True)]
        self._held |= {id(one.row): one for one in held}
        self._live = None
        pages = _table([one.pages[: pages_for(n)] for one, n in zip(held, lengths, strict=True)])
        columns = mx.array(list(lengths), dtype=mx.int32)
        # Evaluated now: what is updated in place must be ordered before the step that reads it.
        mx.eval(
            [
                self._ops.fill(layer, pages, cache.keys, cache.values, columns)
                for layer, cache in zip(self._layers, whole, strict=True)
            ]
        )

    def warm(self, rows: int) -> int:
        """As `Store.warm`: idle places only, which write where nobody reads."""
        places = self._places_for(rows)
        if not self._layers:
            self._reserve(1, like=_one_token(self._model))
        positions = mx.full((places,), -1, dtype=mx.int32)
        table = mx.full((places, 1), SCRATCH, dtype=mx.int32)
        mx.eval(self._forward(mx.zeros((places, 1), dtype=mx.int32), positions, table, self._arrays())[0])
        self._release_if_empty()
        return places

    def _arrays(self) -> list[mx.array]:
        return [array for layer in self._layers for array in (layer.keys, layer.values)]

    # ------------------------------------------------------------ in and out

    def _take_in(self, rows: Sequence[Fed]) -> None:
        """Copy the columns of rows that join into pages; their own caches let go of them."""
        if not rows:
            return
        self._reserve(sum(pages_for(row.fed + 1) for row in rows), like=rows[0].cache)
        written: list[mx.array] = []
        for row in rows:
            self._rows.settle(row)
            held = self._held[id(row)] = _Held(row, self._pages.take(pages_for(row.fed + 1)))
            pages, columns = mx.array([held.pages], dtype=mx.int32), mx.array([row.fed], dtype=mx.int32)
            for layer, cache in zip(self._layers, row.cache, strict=True):
                written.append(self._ops.fill(layer, pages, cache.keys, cache.values, columns))
                cache.keys = cache.values = None
        # Evaluated now: what is updated in place must be ordered before the step that reads it.
        mx.async_eval(written)  # type: ignore[no-untyped-call]

    def settle(self, row: Fed) -> None:
        held = self._held.pop(id(row), None)
        if held is None:
            self._rows.settle(row)
            return
        count = pages_for(row.fed)
        pages = mx.array(held.pages[:count], dtype=mx.int32)
        out: list[mx.array] = []
        for layer, cache in zip(self._layers, row.cache, strict=True):
            for name, array in (("keys", layer.keys), ("values", layer.values)):
                taken = array[pages]
                _, heads, block, width = taken.shape
                setattr(cache, name, taken.transpose(1, 0, 2, 3).reshape(1, heads, count * block, width))
                out.append(getattr(cache, name))
            cache.offset = row.fed
        mx.eval(out)  # before anybody else writes into these pages
        self._let_go(held)

    def forget(self, row: Fed) -> None:
        held = self._held.pop(id(row), None)
        if held is not None:
            self._let_go(held)
        self._release_if_empty()  # also after a step that failed before its rows were in
        self._asked, self._places = [], [None if other is row else other for other in self._places]
        self._rows.forget(row)

    def _let_go(self, held: _Held) -> None:
        self._pages.give_back(held.pages)
        self._live = None
        self._release_if_empty()

    def _release_if_empty(self) -> None:
        """Give the memory back when no row is in; what is still being computed keeps what it needs."""
        if not self._held:
            self._layers, self._pages = [], Pages()
            self._live = self._table = None

    # ------------------------------------------------------------ pages

    def _make_room(self, held: _Held) -> None:
        """A page for the column that the next token takes."""
        self._reserve(1, like=held.row.cache)
        held.pages += self._pages.take(1)
        held.room += BLOCK
        self._table = None

    def _reserve(self, count: int, like: Sequence[Any]) -> None:
        """Let so many pages be free, making the pool larger if need be; its layers are made like these caches."""
        size = self._pages.size_for(count)
        if size == self._pages.total:
            return
        shapes = [(cache.keys, cache.values) for cache in like] if not self._layers else []
        for keys, values in shapes:
            _, heads, _, width = keys.shape
            self._layers.append(
                LayerPool(
                    mx.zeros((0, heads, BLOCK, width), keys.dtype),
                    mx.zeros((0, values.shape[1], BLOCK, values.shape[3]), values.dtype),
                )
            )
        for layer in self._layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                more = mx.zeros((max(0, size - old.shape[0]), *old.shape[1:]), old.dtype)
                setattr(layer, name, mx.concatenate([old, more]))
            mx.eval(layer.keys, layer.values)  # one layer at a time: not all the old ones beside all the new
        self._pages.grow_to(size)  # last: where there was no memory, nobody gets a page that is not there

    def _table_of(self, places: Sequence[Fed | None]) -> mx.array:
        """Pages of each place, [R, M] with M a power of two; made anew only when a row or a page changed."""
        if self._table is None:
            held = [[] if row is None else self._held[id(row)].pages for row in places]
            self._table = _table(held)
        return self._table

    def close(self) -> None:
        if self._closing is not None:
            self._closing()

    def held_bytes(self) -> int:
        """Bytes of all pages, free ones too, and what rows in prefill hold side by side."""
        return sum(layer.nbytes for layer in list(self._layers)) + self._rows.held_bytes()


def _table(held: Sequence[Sequence[int]]) -> mx.array:
    """Pages of each place, [R, M] with M a power of two."""
    width = 1 << (max(len(pages) for pages in held) - 1).bit_length()
    return mx.array([[*pages, *([SCRATCH] * (width - len(pages)))] for pages in held], dtype=mx.int32)


def _one_token(model: Any) -> list[Any]:
    """Caches that show their shapes; nothing of them is ever evaluated."""
    caches = make_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    return caches


def attend_pages(  # noqa: PLR0917 - as mlx-lm declares it
    queries: New,
    keys: Paged,
    values: Paged,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array | Seen:
    """mlx-lm's attention call for a pooled step. The parity probe at load keeps models away that need more of it."""
    del cache
    if mask is not None or sinks is not None:
        raise ValueError("the pool's attention takes neither masks nor sinks")
    return keys.cache.attend(queries, keys, values, scale)

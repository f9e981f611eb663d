"""Whether a pool could serve a model here; the parity probe has the last word."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from mlx_notebook.engine.stores.caches import make_caches
from mlx_notebook.engine.stores.cuda_pages import CudaPages, kernel_serves
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late import Late
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from mlx_notebook.engine.stores.pool import PoolStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.stores.store import Store


def pools(model: Any) -> list[Callable[[], Store]]:
    """Makers of pool stores that could serve this model here, the fastest first; none where no kernel agrees."""
    found = _kernel_for(model)
    if found is None:
        return []
    ops, width = found
    late = Late(width, ops.split)
    twin = joined(model, late.split, late)  # once: the probe makes stores of its own, and weights are large

    def make(on: bool) -> Store:
        late.on = on
        return PoolStore(model, ops, twin=twin, late=late)

    return [partial(make, on) for on in ((True, False) if late.found else (False,))]


def _kernel_for(model: Any) -> tuple[CudaPages, int] | None:
    """What runs here and agrees, and the heads' width."""
    if mx.default_device() != mx.gpu or not mx.cuda.is_available():
        return None
    caches = make_caches(model)
    if not all(type(cache) is KVCache for cache in caches):
        return None
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)  # shapes only: nothing is evaluated
    heads, width, dtype = caches[0].keys.shape[1], caches[0].keys.shape[3], caches[0].keys.dtype
    if not kernel_serves(width, dtype) or caches[0].values.shape[3] != width:
        return None
    ops = CudaPages()
    # Four query heads a key head: the model's own number is tried by the probe.
    return (ops, width) if agrees_with_stock(ops, 4 * heads, heads, width, dtype) else None

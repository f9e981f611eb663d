"""Whether a pool could serve a model here; the parity probe has the last word."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from mlx_notebook.engine.stores.caches import make_caches
from mlx_notebook.engine.stores.cuda_layers import CudaLayers, device_limits
from mlx_notebook.engine.stores.cuda_pages import CudaPages
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late import Late
from mlx_notebook.engine.stores.metal_pages import MetalPages
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from mlx_notebook.engine.stores.page_ops import kernels_serve
from mlx_notebook.engine.stores.pool import PoolStore
from mlx_notebook.engine.stores.whole_layer import WholeLayers
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.stores.page_ops import PageOps
    from mlx_notebook.engine.stores.store import Store

METAL_SWITCH = "MLX_NOTEBOOK_METAL_POOL"
"""Set to 1 before a model is loaded, an Apple GPU may use the pool: its kernels have never run on one."""


def pools(model: Any) -> list[Callable[[], Store]]:
    """Makers of pool stores that could serve this model here, the fastest first; none where no kernel agrees.

    Where one was asked for that does not, a maker that raises what was found, for the probe to tell.
    """
    kind = device_kind()
    if not kind or (kind == "metal" and os.environ.get(METAL_SWITCH) != "1"):
        return []
    shape = _heads_of(model)
    if shape is None:
        return []
    own, width, dtype = shape
    if kind == "metal":
        ops = _metal_or_why(own, width, dtype)
        return [partial(_tell, ops)] if isinstance(ops, str) else _makers(model, ops, width)
    cuda = CudaPages()
    return _makers(model, cuda, width, device_limits()) if _agrees(cuda, own, width, dtype) else []


def device_kind() -> str:
    """Whose kernels could run here: "cuda", "metal", or "" for nobody's."""
    if mx.default_device() != mx.gpu:
        return ""
    if mx.cuda.is_available():
        return "cuda"
    return "metal" if mx.metal.is_available() else ""


def _makers(model: Any, ops: PageOps, width: int, limits: tuple[int, int] | None = None) -> list[Callable[[], Store]]:
    """Stores of one twin, made once (the probe makes stores of its own, and weights are large): from whole layers in
    one launch, where the GPU's limits are known, to heads as the model has them."""
    late = Late(width, ops.split)
    twin = joined(model, late.split, late)
    launch = CudaLayers.taken(*limits) if limits is not None and late.found else None
    whole = WholeLayers(model, twin, late, launch) if launch is not None else None

    def make(late_on: bool, whole_on: bool) -> Store:
        late.on = late_on
        if whole is not None:
            whole.on = whole_on
        return PoolStore(model, ops, twin=twin, late=late, closing=None if launch is None else launch.close)

    ways = [(True, True)] if whole is not None and whole.found else []
    ways += [(True, False), (False, False)] if late.found else [(False, False)]
    makers: list[Callable[[], Store]] = [partial(make, *way) for way in ways]
    if limits is not None and late.found and launch is None:
        return [partial(_tell, "layers in one launch serve another gateway of this process"), *makers]
    return makers


def _heads_of(model: Any) -> tuple[int, int, mx.Dtype] | None:
    """How many key heads a layer has, their width and type; None where the pool or its kernels do not serve them."""
    caches = make_caches(model)
    if not all(type(cache) is KVCache for cache in caches):
        return None
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)  # shapes only: nothing is evaluated
    _, own, _, width = caches[0].keys.shape
    if not kernels_serve(width, caches[0].keys.dtype) or caches[0].values.shape[3] != width:
        return None
    return own, width, caches[0].keys.dtype


def _agrees(ops: PageOps, own: int, width: int, dtype: mx.Dtype) -> bool:
    # Four query heads a key head: the model's own number is tried by the probe.
    return agrees_with_stock(ops, 4 * own, own, width, dtype)


def _metal_or_why(own: int, width: int, dtype: mx.Dtype) -> MetalPages | str:
    """What reads pages on this Apple GPU, or why it may not."""
    try:
        ops = MetalPages()
        agrees = _agrees(ops, own, width, dtype)
    except Exception as error:  # noqa: BLE001 - nobody has seen what it does on such a GPU; the model is to load anyway
        return f"the Metal kernels failed when they were tried: {as_text(error)[0]}"
    return ops if agrees else "the Metal kernels do not agree with MLX's own operations here"


def _tell(found: str) -> NoReturn:
    raise RuntimeError(found)

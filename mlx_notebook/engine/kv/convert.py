"""When a row's layers convert to their scheme, and which schemes a model can serve.

A layer converts between two forwards, once it holds at least `start` tokens (and something at all:
an empty cache is never quantised, so that the first chunk of a prompt attends to itself as it
is). Layer after layer is evaluated, so that not all sources and results are held at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlx_notebook.engine.kv.affine import AffineCache
from mlx_notebook.errors import ModelLoadError

if TYPE_CHECKING:
    from mlx_notebook.core.kv_scheme import KVScheme

CONVERTIBLE = (KVCache, RotatingKVCache)


def convert_due(caches: list[Any], scheme: KVScheme) -> bool:
    """Convert the layers of one row that are due, in place; whether any was."""
    converted = False
    for layer, cache in enumerate(caches):
        if isinstance(cache, CONVERTIBLE) and not cache.empty() and cache.offset >= scheme.start:
            caches[layer] = as_stored(layer, cache, scheme)
            if caches[layer] is not cache:
                mx.eval(caches[layer].arrays())
                converted = True
    return converted


def as_stored(layer: int, cache: Any, scheme: KVScheme) -> Any:
    """A layer's cache (not empty) as the scheme stores it, not evaluated; the same object where it stays as it is."""
    own = scheme.of(layer)
    if own is None or not isinstance(cache, CONVERTIBLE):
        return cache
    return AffineCache.of_native(cache, own)


def check_model(model: Any, scheme: KVScheme) -> None:
    """Raise unless this model's layers can be stored by this scheme. Runs a forward of two tokens.

    Raises:
        ModelLoadError: naming each layer that cannot, and why.
    """
    if scheme.native:
        return
    caches = make_prompt_cache(model)
    model(mx.zeros((1, 2), dtype=mx.int32), cache=caches)
    problems = [text for layer in range(len(caches)) if (text := _problem(layer, caches[layer], scheme))]
    problems += [
        f"layer {layer} does not exist (there are {len(caches)})" for layer, _ in scheme.layers if layer >= len(caches)
    ]
    if not any(scheme.of(layer) and isinstance(cache, CONVERTIBLE) for layer, cache in enumerate(caches)):
        problems.append("no layer of this model keeps keys and values of a kind that can be quantised")
    if problems:
        raise ModelLoadError(f"this kv scheme does not fit the model: {'; '.join(problems)}.")


def _problem(layer: int, cache: Any, scheme: KVScheme) -> str | None:
    own = scheme.of(layer)
    if own is None:
        return None
    named = layer in dict(scheme.layers)
    if not isinstance(cache, CONVERTIBLE):
        return f"layer {layer} keeps a {type(cache).__name__}, which cannot be quantised" if named else None
    for what, array in (("keys", cache.keys), ("values", cache.values)):
        if array.shape[-1] % own.group_size:
            return (
                f"layer {layer}: {what} have {array.shape[-1]} values a head,"
                f" which groups of {own.group_size} do not divide"
            )
    return None

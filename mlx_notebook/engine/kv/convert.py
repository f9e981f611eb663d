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
from mlx_notebook.failure import as_text

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
    """Raise unless this model's layers can be stored by this scheme, and read when they are.

    Shapes of a forward tell: nothing is evaluated, so that the model's weights need not be there yet.

    Raises:
        ModelLoadError: naming each layer that cannot, and why; or what the model said to quantised keys and values.
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
    _feed_converted(model, caches, scheme)


def _feed_converted(model: Any, caches: list[Any], scheme: KVScheme) -> None:
    """A chunk and a token over converted caches. A model whose attention is its own may know no triples."""
    try:
        stored = [
            as_stored(layer, cache, scheme) if isinstance(cache, CONVERTIBLE) and not cache.empty() else cache
            for layer, cache in enumerate(caches)
        ]
        for width in (2, 1):
            model(mx.zeros((1, width), dtype=mx.int32), cache=stored)
    except Exception as error:
        raise refusal(model, scheme, error) from error


def refusal(model: Any, scheme: KVScheme, error: Exception) -> ModelLoadError:
    """What a user is told of a model that raised this when it read quantised keys and values."""
    kind = type(model).__module__.rpartition(".")[2]
    said = as_text(error)[0].partition("\n")[0]
    return ModelLoadError(
        f"{kind} can't be served with quantised keys and values ({in_words(scheme)}): {said}. Load it with kv='native'."
    )


def in_words(scheme: KVScheme) -> str:
    """A scheme for people."""
    named = [(f"layer {layer}", own) for layer, own in scheme.layers]
    if scheme.everywhere is not None:
        named.append(("other layers" if named else "all layers", scheme.everywhere))
    told = [f"{which} in {own.bits} bits, groups of {own.group_size}" for which, own in named]
    return "; ".join(told) if told else "native"


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

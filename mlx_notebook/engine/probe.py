"""What a model is, in numbers, found from the shapes of a forward that is never evaluated.

MLX builds a graph before it computes: shapes and types are known at once, and the graph is thrown away. So a probe
costs milliseconds whatever the model's size, and nothing of the model's internals is assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from mlx_lm.models.cache import RotatingKVCache

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.projection import BLOCK, CacheCost
from mlx_notebook.engine.kv.convert import as_stored
from mlx_notebook.engine.stores.caches import keeps_past, leaves, make_caches, natives, nbytes_of

if TYPE_CHECKING:
    from mlx_notebook.core.kv_scheme import KVScheme

# Caches grow in blocks of columns, so that two whole blocks show what one token costs.
ONE_BLOCK, TWO_BLOCKS = BLOCK, 2 * BLOCK


def capabilities_of(
    model: Any,
    *,
    context_length: int | None = None,
    vocab_size: int | None = None,
    scheme: KVScheme | None = None,
) -> Capabilities:
    """Facts for the core. Ids from 0 to `vocab_size` - 1 may be fed and biased: both the
    embedding and the head have them, and `vocab_size`, if given, allows them.

    What a row takes, under the scheme and before it: bytes a token of layers that keep all tokens, (window, bytes a
    token) of those that keep the last ones, and constant state. A kept state can be cut back if every layer is
    known to keep all tokens.
    """
    one, logits = _traced(model, ONE_BLOCK)
    two, _ = _traced(model, TWO_BLOCKS)
    sizes = [logits.shape[-1], *_token_tables(model, logits.shape[-1])]
    native = _cost(one, two)
    cost = native if scheme is None or scheme.native else _cost(_stored(one, scheme), _stored(two, scheme))
    return Capabilities(
        vocab_size=min(sizes if vocab_size is None else [*sizes, vocab_size]),
        context_length=context_length,
        kv_bytes_per_token=cost.bytes_per_token,
        state_bytes=cost.state_bytes,
        windows=cost.windows,
        kv_start=0 if scheme is None else scheme.start,
        unconverted=None if cost is native else native,
        trimmable=all(keeps_past(leaf) for leaf in leaves(one)),
    )


def _stored(caches: list[Any], scheme: KVScheme) -> list[Any]:
    return [as_stored(layer, cache, scheme) for layer, cache in enumerate(caches)]


def _cost(one: list[Any], two: list[Any]) -> CacheCost:
    """What caches of one and of two blocks of tokens show."""
    per_token = state = 0
    windows: dict[int, int] = {}
    for short, long in zip(leaves(one), leaves(two), strict=True):
        native = next(natives([long]), None)
        if isinstance(native, RotatingKVCache):
            columns = native.keys.shape[2]
            windows[native.max_size] = windows.get(native.max_size, 0) + nbytes_of([long]) // columns
        else:
            grown = max(0, nbytes_of([long]) - nbytes_of([short])) // (TWO_BLOCKS - ONE_BLOCK)
            per_token += grown
            state += max(0, nbytes_of([short]) - grown * ONE_BLOCK)
    return CacheCost(per_token, tuple(sorted(windows.items())), state)


def _traced(model: Any, length: int) -> tuple[list[Any], mx.array]:
    """Caches after `length` tokens, and the logits: shapes only.

    The last token goes in alone, as in decoding: only then do sliding windows let go of what left them.
    """
    caches = make_caches(model)
    model(mx.zeros((1, length - 1), dtype=mx.int32), cache=caches)
    logits = model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    return caches, logits


def _token_tables(model: Any, width: int) -> list[int]:
    """Rows of the embedding tables that tokens index (a position table is far shorter than a vocabulary)."""
    tables = [
        module.weight.shape[0] for module in model.modules() if isinstance(module, Embedding | QuantizedEmbedding)
    ]
    return [rows for rows in tables if 2 * rows >= width]

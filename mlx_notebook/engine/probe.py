"""What a model is, in numbers, found from the shapes of a forward that is never evaluated.

MLX builds a graph before it computes: shapes and types are known at once, and the graph is thrown away. So a probe
costs milliseconds whatever the model's size, and nothing of the model's internals is assumed.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import QuantizedEmbedding
from mlx_lm.models.cache import make_prompt_cache

from mlx_notebook.core.placement import Capabilities

# Caches grow in blocks of 256 columns, so that two whole blocks show what one token costs.
ONE_BLOCK, TWO_BLOCKS = 256, 512


def capabilities_of(model: Any, *, context_length: int | None = None, vocab_size: int | None = None) -> Capabilities:
    """Facts for the core. Ids from 0 to `vocab_size` - 1 may be fed and biased: both the
    embedding and the head have them, and `vocab_size`, if given, allows them.

    `kv_bytes_per_token` and `state_bytes` describe a row's caches: state is what does not grow between 256 and 512
    tokens (recurrent and convolution state, sliding windows up to that size). A longer window counts as growing,
    which overstates rows longer than it.
    """
    one, logits = _traced(model, ONE_BLOCK)
    two, _ = _traced(model, TWO_BLOCKS)
    sizes = [logits.shape[-1], *_token_tables(model, logits.shape[-1])]
    per_token = max(0, two - one) // (TWO_BLOCKS - ONE_BLOCK)
    return Capabilities(
        vocab_size=min(sizes if vocab_size is None else [*sizes, vocab_size]),
        context_length=context_length,
        kv_bytes_per_token=per_token,
        state_bytes=max(0, one - per_token * ONE_BLOCK),
    )


def _traced(model: Any, length: int) -> tuple[int, mx.array]:
    """Bytes that caches take after `length` tokens, and the logits: shapes only.

    The last token goes in alone, as in decoding: only then do sliding windows let go of what left them.
    """
    cache = make_prompt_cache(model)
    model(mx.zeros((1, length - 1), dtype=mx.int32), cache=cache)
    logits = model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    return sum(int(layer.nbytes) for layer in cache if not layer.empty()), logits


def _token_tables(model: Any, width: int) -> list[int]:
    """Rows of the embedding tables that tokens index (a position table is far shorter than a vocabulary)."""
    tables = [
        module.weight.shape[0] for module in model.modules() if isinstance(module, Embedding | QuantizedEmbedding)
    ]
    return [rows for rows in tables if 2 * rows >= width]

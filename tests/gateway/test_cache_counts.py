"""What the prompt cache's figures count, and what is said of a request that found nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

SHARED = list(range(5, 65))
FIRST, SECOND = [*SHARED, *range(100, 400)], [*SHARED, *range(400, 700)]


@pytest.mark.parametrize(
    ("settings", "hits", "reused", "said"),
    [
        ({}, 1, 60, "cache-hit"),
        ({"deterministic": True, "prefill_chunk": 128}, 0, 0, "cache-miss"),
        ({"deterministic": True, "prefill_chunk": 32}, 1, 32, "cache-hit"),
    ],
    ids=["any beginning", "no whole chunk", "one whole chunk"],
)
def test_a_hit_is_what_spared_a_row_something(
    gateway_of: Callable[..., Gateway], settings: dict[str, Any], hits: int, reused: int, said: str
) -> None:
    can = Capabilities(vocab_size=0x110000, context_length=4096, continuous=True, prompt_cache=True)
    gateway = gateway_of(ScriptedBackend(capabilities=can), **settings)
    gateway.submit(FIRST, max_tokens=2).result()
    handle = gateway.submit(SECOND, max_tokens=2)
    assert handle.result().cached_tokens == reused
    cache = gateway.stats().prompt_cache
    assert (cache.hits, cache.misses, cache.tokens_reused) == (hits, 2 - hits, reused)
    reasons = {reason.code: reason.text for reason in handle.explain()}
    assert said in reasons
    if said == "cache-miss":
        assert "128" in reasons[said]


def test_of_a_prompt_too_short_for_it_the_cache_is_not_mentioned(gateway_of: Callable[..., Gateway]) -> None:
    can = Capabilities(vocab_size=0x110000, context_length=4096, continuous=True, prompt_cache=True)
    gateway = gateway_of(ScriptedBackend(capabilities=can), deterministic=True, prefill_chunk=128)
    handle = gateway.submit(FIRST[:128], max_tokens=2)
    handle.result()
    assert not [reason for reason in handle.explain() if reason.code.startswith("cache")]

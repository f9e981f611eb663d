"""A row never takes more than its projection, which is little more than it needs: every layer kind and scheme."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import RotatingKVCache

from mlx_notebook.core.events import Prefill, PrefillPart
from mlx_notebook.core.kv_scheme import KVScheme, LayerScheme
from mlx_notebook.engine.kv.convert import CONVERTIBLE
from mlx_notebook.engine.stores.caches import is_state, leaves, make_caches, nbytes_of
from tests.engine.driving import Told, request, step, with_backend
from tests.engine.test_batch_quantised import wide
from tests.engine.tiers import tiered
from tests.small_models import KINDS, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend

SCHEMES = {
    "native": KVScheme(),
    "8 bits": KVScheme(LayerScheme(8, 32)),
    "4 bits": KVScheme(LayerScheme(4, 32)),
    "4 bits later": KVScheme(LayerScheme(4, 32), (), 150),
    "by layer, later": KVScheme(None, ((3, LayerScheme(4, 32)),), 40),
}
ALL = [
    *((kind, "native") for kind in KINDS),
    *((kind, scheme) for kind in ("llama", "gemma3_text", "qwen3_next") for scheme in SCHEMES if scheme != "native"),
]
QUICK = ("gemma3_text", "4 bits later")
CASES = [pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow) for case in ALL]
SHARE = 1.3
CHUNKS = {
    "one by one": [1] * 3,
    "odd": [10, 65, 7],
    "long": [200],
    "over a start": [100, 100, 3],
}


@cache
def model_of(kind: str, scheme: str) -> tuple[Any, Any]:
    return small(kind) if scheme == "native" else wide(kind)


def needs(model: Any, scheme: KVScheme) -> Callable[[int], int]:
    """Bytes that a row of so many tokens needs: tokens or window in blocks of 64, by the scheme's own arithmetic."""
    caches = make_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)  # shapes only

    def column(layer: int, leaf: Any, *, converted: bool) -> float:
        own = scheme.of(layer) if converted and isinstance(leaf, CONVERTIBLE) else None
        values = int(sum(array.shape[1] * array.shape[3] for array in (leaf.keys, leaf.values)))
        return values * (4 if own is None else own.bits / 8 + 2 * 4 / own.group_size)

    def need(tokens: int) -> int:
        converted = not scheme.native and tokens >= max(scheme.start, 1)
        total = 0.0
        for layer, top in enumerate(caches):
            for leaf in leaves([top]):
                if is_state(leaf):
                    total += nbytes_of([leaf])
                    continue
                columns = -(-tokens // 64) * 64
                if isinstance(leaf, RotatingKVCache):
                    columns = min(columns, leaf.max_size)
                total += columns * column(layer, leaf, converted=converted)
        return int(total)

    return need


def run_and_watch(backend: MlxBackend, chunks: list[int], answer: int) -> list[tuple[int, int]]:
    """(tokens fed, bytes held) after every instruction of one row's life."""
    prompt = random_prompt(sum(chunks) + 1, seed=3)
    backend.open(request(1, prompt, max_tokens=answer))
    seen, start = [], 0
    for chunk in chunks:
        stop = start + chunk
        last = stop == len(prompt) - 1
        part = PrefillPart(1, start, len(prompt) if last else stop, last=last)
        assert not backend.prefill(Prefill((part,))).errors
        seen.append((stop, backend.held_bytes()))
        start = stop
    told = Told()
    while not told.over:
        step(backend, {1: told})
        seen.append((backend._rows[1].fed, backend.held_bytes()))
    backend.drop(1)
    return seen


@pytest.mark.parametrize("chunks", tiered(CHUNKS, "over a start"))
@pytest.mark.parametrize(("kind", "scheme"), CASES)
def test_a_row_holds_no_more_than_its_projection_which_is_little_more_than_its_need(
    kind: str, scheme: str, chunks: list[int]
) -> None:
    pair, kv = model_of(kind, scheme), SCHEMES[scheme]
    need = needs(pair[0], kv)

    def work(backend: MlxBackend) -> None:
        cost = backend.capabilities.cost
        for answer in (1, 60):
            total = sum(chunks) + 1 + answer
            projected = cost.of(total)
            for tokens, held in run_and_watch(backend, chunks, answer):
                assert held <= projected, f"{held} bytes at {tokens} of {total} tokens"
                assert held <= SHARE * need(tokens), f"{held} bytes at {tokens} tokens"
            assert projected <= SHARE * max(map(need, range(1, total + 1)))

    with_backend(pair, work, kv_scheme=kv)


def test_a_late_start_counts_what_is_held_before() -> None:
    def costs(scheme: KVScheme) -> list[int]:
        return with_backend(
            wide("llama"),
            lambda backend: [backend.capabilities.cost.of(n) for n in (64, 512, 5_000)],
            kv_scheme=scheme,
        )

    native, at_once, later = (costs(KVScheme(*args)) for args in ((), (FOUR,), (FOUR, (), 513)))
    assert all(few < many for few, many in zip(at_once, native, strict=True))
    assert later == [native[0], native[1], max(native[1], at_once[2])]
    assert at_once[2] > native[1] > at_once[1]


FOUR = LayerScheme(4, 32)

"""Packs: rows side by side in small rectangles say what they say alone, through growth, windows, and leaving."""

from __future__ import annotations

from math import inf
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.events import Keep
from mlx_notebook.core.placement import Mechanism, resolve
from mlx_notebook.core.projection import BLOCK
from mlx_notebook.core.request import RequestShape, SamplingOptions
from mlx_notebook.engine.mlx_backend import MlxBackend
from mlx_notebook.engine.parity import ProbeRow
from mlx_notebook.engine.stores import pack as packs
from mlx_notebook.engine.stores.rows import RowsStore
from tests.engine.driving import Told, on_thread, prefill, request, run_row, step, with_backend
from tests.engine.parity import vectors_of
from tests.engine.tiers import tiered
from tests.engine.traffic import Coming, check_alone, check_same, in_traffic, noise, pair, run_script
from tests.small_models import KINDS, VOCAB, random_prompt, small

LONG = 90
PACKED = [kind for kind in KINDS if kind != "mamba2"]  # it has no columns


@pytest.fixture(autouse=True)
def windows_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small models' windows are narrower than those that are worth packing."""
    monkeypatch.setattr(packs, "MIN_WINDOW", 1)


def rows_of(lengths: tuple[int, ...], **more: Any) -> list[Coming]:
    return [Coming(random_prompt(length, seed=at), **more) for at, length in enumerate(lengths)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_a_pack_through_growth_and_windows(kind: str) -> None:
    rows = rows_of((60, 50, 61, 30))
    for row, told in zip(rows, in_traffic(kind, rows, LONG), strict=True):
        check_alone(kind, row, told, LONG)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
def test_rows_join_and_leave_a_pack(kind: str) -> None:
    rows = rows_of((40, 33, 50, 20, 45, 60))
    for at, row in enumerate(rows):
        row.at = 9 * (at // 2)
        row.leaves = 25 if at == 1 else None
        row.options = {"max_tokens": 12 if at == 2 else 50}
    for row, told in zip(rows, in_traffic(kind, rows, 50), strict=True):
        check_alone(kind, row, told, 50)


@pytest.mark.parametrize("kind", tiered(PACKED, "llama"))
def test_a_long_row_stands_beside_a_pack(kind: str) -> None:
    rows = rows_of((300, 20, 25, 30))

    def work(backend: MlxBackend) -> list[Told]:
        told = {
            at: prefill(backend, request(at, row.prompt, max_tokens=30, logprobs=VOCAB), 64)
            for at, row in enumerate(rows)
        }
        step(backend, told)
        step(backend, told)
        assert [len(pack.rows) for pack in backend._store._packs] == [3]  # type: ignore[attr-defined]
        while not all(one.over for one in told.values()):
            step(backend, told)
        return list(told.values())

    for row, told in zip(rows, with_backend(pair(kind), work), strict=True):
        row.chunk = 64
        check_alone(kind, row, told, 30)


@pytest.mark.parametrize("kind", tiered(PACKED, "llama"))
def test_rows_are_kept_and_rested_out_of_a_pack(kind: str) -> None:
    def work(backend: MlxBackend) -> None:
        prompts = [random_prompt(20 + at, seed=at) for at in range(4)]
        told = {
            at: prefill(backend, request(at, prompt, max_tokens=40, logprobs=VOCAB))
            for at, prompt in enumerate(prompts)
        }
        for _ in range(5):
            step(backend, told)
        for _ in range(3):
            step(backend, {at: told[at] for at in (0, 2)})  # the others rest
        backend.keep(Keep(0, 1, len(prompts[0]) + len(told[0].tokens)))
        for _ in range(20):
            step(backend, told)
        kept = backend.drop(1, keep_as=2)
        assert kept is not None
        assert kept.tokens == len(prompts[1]) + len(told[1].tokens)
        del told[1]
        while not all(one.over for one in told.values()):
            step(backend, {at: one for at, one in told.items() if not one.over})
        for at, one in told.items():
            alone = run_row(backend, request(10 + at, prompts[at], max_tokens=40, logprobs=VOCAB))
            check_same(one, alone.tokens, vectors_of(alone.logprobs, VOCAB), noise(kind))

    with_backend(pair(kind), work)


@pytest.mark.parametrize("lengths", [(130, 140, 150, 155, 170, 20, 300, 64), (150, 150, 150, 150)], ids=len)
@pytest.mark.parametrize("kind", tiered(PACKED, "llama"))
def test_a_pack_holds_little_more_than_its_rows_need(kind: str, lengths: tuple[int, ...]) -> None:
    def work(backend: MlxBackend) -> None:
        told = {
            at: prefill(backend, request(at, random_prompt(n, seed=at), max_tokens=40), 64)
            for at, n in enumerate(lengths)
        }
        for at in range(30):
            if at in (9, 17):  # rows leave, and with them their places
                backend.drop(at // 8)
                del told[at // 8]
            step(backend, told)
            cost = backend.capabilities.cost
            wide = (16, sum(per for _, per in cost.windows))
            need = sum(cost.of(lengths[row] + len(one.tokens) + 1) for row, one in told.items())
            slack = len(told) * (BLOCK + 64 - wide[0]) * wide[1]  # narrow windows are not packed but here
            assert backend.held_bytes() <= 1.3 * need + slack

    with_backend(pair(kind), work)


class Unrouted:
    """A model whose attention is not the shared function: it takes arrays and knows no other."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.layers
        if hasattr(model, "make_cache"):
            self.make_cache = model.make_cache

    def modules(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
        return self.model(tokens, cache=cache)


@pytest.mark.parametrize("kind", tiered(PACKED, "llama"))
def test_a_model_that_cannot_be_routed_gets_the_rectangle(kind: str) -> None:
    model, tokenizer = small(kind)

    def work(backend: MlxBackend) -> list[Told]:
        assert backend.store == "rectangle"
        return run_script(backend, rows, 20)

    rows = rows_of((5, 30, 64, 12))
    for at, row in enumerate(rows):
        row.at, row.leaves = 2 * at, 9 if at == 1 else None
    for row, told in zip(rows, with_backend((Unrouted(model), tokenizer), work), strict=True):
        check_alone(kind, row, told, 20)


def test_a_model_that_no_store_serves_runs_its_rows_alone() -> None:
    model, tokenizer = small("llama")

    class OneRow(Unrouted):
        """Mixes rows up where there are several."""

        def __call__(self, tokens: mx.array, cache: Any = None) -> Any:
            logits = self.model(tokens, cache=cache)
            return logits[::-1] if tokens.shape[0] > 1 else logits

    def work(backend: MlxBackend) -> Told:
        assert not backend.capabilities.continuous
        assert "differ" in backend.capabilities.continuous_why_not
        assert backend.capabilities.max_rows == 1
        placement = resolve(RequestShape((1, 2), SamplingOptions()), backend.capabilities, 0)
        assert placement.mechanism is Mechanism.SERIAL
        assert [reason.code for reason in placement.reasons] == ["cache-not-batchable"]
        assert backend.capabilities.continuous_why_not in placement.reasons[0].text
        return run_row(backend, request(1, random_prompt(9), max_tokens=10, logprobs=VOCAB))

    told = with_backend((OneRow(model), tokenizer), work)
    check_alone("llama", Coming(random_prompt(9)), told, 10)


def test_which_store_serves_which_kind() -> None:
    assert {kind: with_backend(pair(kind), lambda backend: backend.store) for kind in KINDS} == dict.fromkeys(
        KINDS, "rows"
    )


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.sampled_from([1.0, 1.25, inf]))
def test_groups_hold_every_row_once_and_keep_to_their_waste(lengths: list[int], waste: float) -> None:
    rows = [ProbeRow([], length) for length in lengths]
    groups = packs.alike(rows, waste)
    assert sorted(id(row) for group in groups for row in group) == sorted(map(id, rows))
    for group in groups:
        assert len(group) * packs.needed(group[0].fed) <= max(waste, 1.0) * sum(packs.needed(row.fed) for row in group)
    assert waste != inf or len(groups) == 1


def test_the_adapter_puts_back_what_was_there() -> None:
    from mlx_lm.models import base, llama, qwen2

    first, second = small("llama"), small("llama", seed=1)
    other = small("qwen2")

    def work() -> None:
        backends = [MlxBackend(*one) for one in (first, second, other)]
        assert llama.scaled_dot_product_attention is not base.scaled_dot_product_attention
        backends[0].close()
        assert llama.scaled_dot_product_attention is not base.scaled_dot_product_attention
        backends[1].close()
        assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention
        assert qwen2.scaled_dot_product_attention is not base.scaled_dot_product_attention
        backends[2].close()
        backends[2].close()
        assert qwen2.scaled_dot_product_attention is base.scaled_dot_product_attention

    on_thread(work)


def test_a_store_packs_only_where_it_may() -> None:
    model, _ = small("llama")
    rows = [ProbeRow(small_caches(model, 10 + at), 10 + at) for at in range(3)]
    for waste, count in ((None, 0), (1.25, 1), (inf, 1)):
        store = RowsStore(model, None, waste)
        store.order(rows)
        assert len(store._packs) == count
        for row in rows:
            store.settle(row)


def small_caches(model: Any, length: int) -> list[Any]:
    from mlx_notebook.engine.stores.caches import arrays_of, make_caches

    caches = make_caches(model)
    model(mx.array([random_prompt(length)]), cache=caches)
    mx.eval(arrays_of(caches))
    return caches

"""The pool store with stock operations: rows that join, grow over pages, rest and leave say what they say alone."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.projection import BLOCK
from mlx_notebook.engine.attention import AttentionRoute
from mlx_notebook.engine.parity import choose_store
from mlx_notebook.engine.stores.caches import arrays_of, detach, make_caches, twin
from mlx_notebook.engine.stores.joined import joined
from mlx_notebook.engine.stores.late_rope import Turns
from mlx_notebook.engine.stores.late_sum import Sums
from mlx_notebook.engine.stores.page_check import agrees_with_stock
from mlx_notebook.engine.stores.page_ops import StockPages
from mlx_notebook.engine.stores.pages import SCRATCH, STEP, Pages, pages_for
from mlx_notebook.engine.stores.pool import PoolStore
from tests.small_models import random_prompt, small


@dataclass(eq=False)
class TestRow:
    """A row without a request."""

    __test__ = False
    cache: list[Any]
    tokens: list[int]
    fed: int = 0


def alone(model: Any, tokens: list[int]) -> mx.array:
    """Logits after each token, [n, V], from one pass."""
    return model(mx.array([tokens]), cache=make_caches(model))[0]  # type: ignore[no-any-return]


def started(store: PoolStore, model: Any, tokens: list[int], body: int) -> TestRow:
    row = TestRow(make_caches(model), tokens)
    store.prefill([row], mx.array([tokens[:body]]), [body])
    mx.eval(arrays_of(row.cache))
    row.fed = body
    return row


def pool_of(model: Any, late: bool) -> PoolStore:
    """A pool over stock operations; `late`: ropes and sums are left to them, as to a kernel."""
    if not late:
        return PoolStore(model, StockPages())
    ops = StockPages()
    turns, sums = Turns(model.layers[0].self_attn.rope.dims), Sums(ops)
    store = PoolStore(model, ops, twin=joined(model, ops.split, turns, sums), turns=turns)
    assert turns.found == sums.found == len(model.layers)
    return store


@pytest.fixture(params=[False, True], ids=["as the model has it", "late"])
def late(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["llama", "qwen2"])
def served(request: pytest.FixtureRequest) -> Any:
    model, _ = small(request.param)
    route = AttentionRoute(model)
    yield model
    route.close()


def test_the_probe_accepts_it(served: Any, late: bool) -> None:
    choice = choose_store(served, first=[lambda: pool_of(served, late)])
    assert choice.store is not None
    assert choice.store.name == "pool", choice.findings


@pytest.mark.parametrize("kind", ["gemma3_text", "mamba2", "lfm2"])
def test_other_layers_are_not_for_it(kind: str) -> None:
    model, _ = small(kind)
    with pytest.raises(ValueError, match="plain full-attention"):
        PoolStore(model, StockPages())


@pytest.mark.parametrize("seed", range(4))
def test_traffic_changes_no_row(served: Any, late: bool, seed: int) -> None:
    chance = random.Random(seed)
    store = pool_of(served, late)
    lengths = [chance.randrange(3, 2 * BLOCK + 20) for _ in range(6)]
    prompts = [random_prompt(length + 30, seed=seed * 10 + i) for i, length in enumerate(lengths)]
    expected = [alone(served, prompt) for prompt in prompts]
    waiting = list(zip(prompts, lengths, range(len(prompts)), strict=True))
    running: list[tuple[TestRow, int]] = []
    compared = 0
    for _ in range(120):
        if waiting and chance.random() < 0.3:
            prompt, body, number = waiting.pop()
            running.append((started(store, served, prompt, body), number))
        if running and chance.random() < 0.1:
            store.settle(running[0][0])  # as when it is kept, or rests
        if not running:
            continue
        rows = [row for row, _ in running]
        places = store.order(rows)
        tokens = mx.array([[0 if row is None else row.tokens[row.fed]] for row in places])
        logits = store.step(places, tokens)
        for row, number in list(running):
            got = logits[places.index(row)]
            row.fed += 1
            apart = float(mx.max(mx.abs(got - expected[number][row.fed - 1])))
            assert apart < 1e-3, (number, row.fed)
            compared += 1
            if row.fed == len(row.tokens) - 1 or chance.random() < 0.02:
                store.forget(row)
                running.remove((row, number))
    assert compared > 50
    for row, _ in running:
        store.forget(row)
    assert store.held_bytes() == 0


def test_a_settled_row_goes_on_alone(served: Any, late: bool) -> None:
    store = pool_of(served, late)
    prompts = [random_prompt(90, seed=1), random_prompt(40, seed=2)]
    rows = [started(store, served, prompt, 20) for prompt in prompts]
    for _ in range(10):
        places = store.order(rows)
        mx.eval(store.step(places, mx.array([[0 if row is None else row.tokens[row.fed]] for row in places])))
        for row in rows:
            row.fed += 1
    store.settle(rows[0])
    got = served(mx.array([rows[0].tokens[30:]]), cache=rows[0].cache)[0]
    assert mx.allclose(got, alone(served, prompts[0])[30:], atol=1e-3)


def test_idle_places_write_where_nobody_reads() -> None:
    pages = Pages()
    pages.grow_to(8)
    assert SCRATCH not in pages.free
    taken = pages.take(3)
    assert pages.used == 3
    pages.give_back(taken)
    assert pages.used == 0
    assert [pages_for(n) for n in (1, BLOCK, BLOCK + 1)] == [1, 1, 2]


def test_the_self_check_finds_a_wrong_kernel() -> None:
    class Wrong(StockPages):
        def attend(self, *args: Any) -> mx.array:
            return super().attend(*args) * 1.05

    assert agrees_with_stock(StockPages(), 8, 2, 64, mx.float32)
    assert not agrees_with_stock(Wrong(), 8, 2, 64, mx.float32)


def test_warming_up_touches_no_row(served: Any, late: bool) -> None:
    store = pool_of(served, late)
    assert [store.warm(rows) for rows in (2, 3, 5)] == [2, 4, 8]
    assert store.held_bytes() == 0
    prompts = [random_prompt(60, seed=seed) for seed in (1, 2)]
    rows = [started(store, served, prompt, 20) for prompt in prompts]
    expected = [alone(served, prompt) for prompt in prompts]
    for at in range(20, 30):
        places = store.order(rows)
        logits = store.step(places, mx.array([[0 if row is None else row.tokens[row.fed]] for row in places]))
        store.warm(2 + at % 3)
        for row, whole in zip(rows, expected, strict=True):
            assert mx.allclose(logits[places.index(row)], whole[at], atol=1e-3)
            row.fed += 1


def test_rows_read_together_say_what_they_say_alone(served: Any, late: bool) -> None:
    store = pool_of(served, late)
    prompts = [random_prompt(length + 6, seed=length) for length in (BLOCK + 9, 5, BLOCK)]
    lengths = [len(prompt) - 6 for prompt in prompts]
    rows = [TestRow(make_caches(served), prompt) for prompt in prompts]
    padded = [prompt[:length] + [0] * (max(lengths) - length) for prompt, length in zip(prompts, lengths, strict=True)]
    store.prefill(rows, mx.array(padded), lengths)
    detach([cache for row in rows for cache in row.cache])  # as `feed` does
    assert all(cache.empty() for row in rows for cache in row.cache), "their columns are in pages, nothing twice"
    for row, length in zip(rows, lengths, strict=True):
        row.fed = length
    expected = [alone(served, prompt) for prompt in prompts]
    store.settle(rows[1])  # as when it is kept for other prompts
    again = twin(rows[1].cache)
    assert mx.allclose(served(mx.array([prompts[1][5:]]), cache=again)[0], expected[1][5:], atol=1e-3)
    for _ in range(5):
        places = store.order(rows)
        logits = store.step(places, mx.array([[0 if row is None else row.tokens[row.fed]] for row in places]))
        for row, whole in zip(rows, expected, strict=True):
            assert mx.allclose(logits[places.index(row)], whole[row.fed], atol=1e-3)
            row.fed += 1


def test_stores_of_one_twin_do_not_disturb_each_other(served: Any) -> None:
    joint = joined(served, StockPages().split)
    prompts = [random_prompt(40, seed=seed) for seed in (1, 2, 3, 4)]
    stores = [PoolStore(served, StockPages(), twin=joint) for _ in range(2)]
    halves = zip(stores, (prompts[:2], prompts[2:]), strict=True)
    pairs = [[started(store, served, prompt, 20) for prompt in half] for store, half in halves]
    for at in range(20, 25):
        for store, rows in zip(stores, pairs, strict=True):
            places = store.order(rows)
            logits = store.step(places, mx.array([[0 if row is None else row.tokens[at]] for row in places]))
            for row in rows:
                assert mx.allclose(logits[places.index(row)], alone(served, row.tokens)[at], atol=1e-3)
                row.fed += 1


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
def test_little_more_exists_than_was_needed_at_once(wishes: list[tuple[int, bool]]) -> None:
    pages, held, most = Pages(), list[list[int]](), 0
    for count, gives_back in wishes:
        size = pages.size_for(count)
        assert size >= pages.total
        if size > pages.total:
            pages.grow_to(size)
        held.append(pages.take(count))
        every = [page for one in held for page in one]
        assert len(set(every)) == len(every) == pages.used
        assert SCRATCH not in every
        assert max(every) < pages.total
        most = max(most, pages.used)
        assert pages.total <= 1 + most + max(STEP, most // 4)
        if gives_back:
            pages.give_back(held.pop(0))


def column_bytes(model: Any) -> int:
    """Bytes of one column in all layers."""
    caches = make_caches(model)
    model(mx.array([[1]]), cache=caches)
    return sum((cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2] for cache in caches)


def one_step(store: PoolStore, rows: list[TestRow]) -> None:
    places = store.order(rows)
    mx.eval(store.step(places, mx.array([[0 if row is None else row.tokens[row.fed]] for row in places])))
    for row in rows:
        row.fed += 1


def test_what_is_allocated_is_what_is_reported_and_goes_with_the_last_row(served: Any, late: bool) -> None:
    gc.collect()  # twins of tests before
    store = pool_of(served, late)
    lengths = (11 * BLOCK, 9 * BLOCK)
    per_page = BLOCK * column_bytes(served)
    rows = [started(store, served, random_prompt(n + 80, seed=n), n) for n in lengths]
    before = mx.get_active_memory()
    own = sum(array.nbytes for row in rows for array in arrays_of(row.cache))
    for _ in range(BLOCK + 2):  # over the edge of a page, and of what was there at first
        one_step(store, rows)
        need = sum(pages_for(row.fed) for row in rows)
        assert per_page * need <= store.held_bytes() <= per_page * (1 + need + max(STEP, need // 4))
        mx.clear_cache()
        # The rows' own columns are in the pool now; some small arrays come and go.
        assert abs(mx.get_active_memory() - (before - own + store.held_bytes())) < per_page
    full = store.held_bytes()
    store.forget(rows[0])
    assert store.held_bytes() == full  # a page is of use to whoever comes next
    store.settle(rows[1])
    assert store.held_bytes() == 0
    got = served(mx.array([rows[1].tokens[rows[1].fed :]]), cache=rows[1].cache)[0]
    assert mx.allclose(got, alone(served, rows[1].tokens)[rows[1].fed :], atol=1e-3)


def test_a_pool_that_found_no_room_to_grow_serves_those_who_come_again(
    served: Any, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pool_of(served, late)
    prompts = [random_prompt(BLOCK + 20, seed=seed) for seed in (1, 2)]
    rows = [started(store, served, prompt, BLOCK) for prompt in prompts]
    original, calls = mx.concatenate, list[int]()

    def no_room(*args: Any, **kwargs: Any) -> mx.array:
        calls.append(1)
        if len(calls) == 3:  # the first layer has grown, the second has not
            raise MemoryError("no room")
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(mx, "concatenate", no_room)
        with pytest.raises(MemoryError):
            one_step(store, rows)
    for row in rows:
        store.forget(row)
    assert store.held_bytes() == 0
    again = [started(store, served, prompt, BLOCK) for prompt in prompts]
    for _ in range(3):
        places = store.order(again)
        logits = store.step(places, mx.array([[0 if row is None else row.tokens[row.fed]] for row in places]))
        for row in again:
            assert mx.allclose(logits[places.index(row)], alone(served, row.tokens)[row.fed], atol=1e-3)
            row.fed += 1

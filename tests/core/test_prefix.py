"""The prefix index against a plain search over all entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.prefix import MIN_REUSE, Entry, PrefixIndex

tokens = st.lists(st.integers(0, 2), min_size=MIN_REUSE, max_size=MIN_REUSE + 12).map(tuple)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def spared(entry: Entry, prompt: tuple[int, ...]) -> int:
    """By definition: the common beginning, one token left; an untrimmable entry serves whole or not at all."""
    shared = min(common(entry.tokens, prompt), len(prompt) - 1)
    if not entry.trimmable and shared < len(entry.tokens):
        return 0
    return shared if shared >= MIN_REUSE else 0


@given(st.lists(st.tuples(tokens, st.booleans()), max_size=8), tokens)
def test_take_finds_the_longest_usable_prefix(
    kept: list[tuple[tuple[int, ...], bool]], prompt: tuple[int, ...]
) -> None:
    index = PrefixIndex(ceiling=1 << 40)
    entries: dict[int, Entry] = {}
    for key, trimmable in kept:
        entry = Entry(index.new_id(), key, 10, trimmable)
        gone = index.put(entry, 1 << 40)
        entries = {i: e for i, e in {**entries, entry.id: entry}.items() if i not in gone}
    best = max((spared(entry, prompt) for entry in entries.values()), default=0)
    found = index.take(prompt)
    assert (found[1] if found else 0) == best
    if found:
        assert spared(found[0], prompt) == best


@given(st.lists(st.tuples(tokens, st.integers(1, 50)), max_size=20), st.integers(0, 200), st.integers(0, 200))
def test_bytes_are_those_of_the_entries_and_stay_under_the_ceiling(
    kept: list[tuple[tuple[int, ...], int]], ceiling: int, room: int
) -> None:
    index = PrefixIndex(ceiling)
    live: dict[int, int] = {}
    for key, nbytes in kept:
        entry_id = index.new_id()
        live[entry_id] = nbytes
        for gone in index.put(Entry(entry_id, key, nbytes, trimmable=True), room):
            del live[gone]
        assert index.nbytes == sum(live.values()) <= min(ceiling, room)
        assert len(index) == len(live)


def entry(index: PrefixIndex, *key: int, trimmable: bool = True, nbytes: int = 10) -> Entry:
    return Entry(index.new_id(), tuple(key), nbytes, trimmable)


LONG = tuple(range(40))


def test_an_exact_hit_leaves_one_token_to_compute() -> None:
    index = PrefixIndex(1000)
    index.put(entry(index, *LONG), 1000)
    found = index.take(LONG)
    assert found is not None
    assert found[1] == len(LONG) - 1


def test_entries_are_not_consumed_and_the_least_recently_used_goes_first() -> None:
    index = PrefixIndex(20)
    first, second = entry(index, *LONG), entry(index, *(x + 100 for x in LONG))
    assert index.put(first, 1000) == []
    assert index.put(second, 1000) == []
    assert index.take((*LONG, 7)) is not None
    assert index.take((*LONG, 7)) is not None
    third = entry(index, *(x + 200 for x in LONG))
    assert index.put(third, 1000) == [second.id]
    assert index.counters.hits == 2
    assert index.counters.tokens_reused == 2 * len(LONG)


def test_a_trimmable_continuation_replaces_its_ancestor_and_an_untrimmable_one_leaves_it() -> None:
    index = PrefixIndex(1000)
    ancestor = entry(index, *LONG)
    index.put(ancestor, 1000)
    assert index.put(entry(index, *LONG, 1, 2, 3), 1000) == [ancestor.id]
    index = PrefixIndex(1000)
    index.put(entry(index, *LONG, trimmable=False), 1000)
    assert index.put(entry(index, *LONG, 1, 2, 3, trimmable=False), 1000) == []
    found = index.take((*LONG, 9, 9))
    assert found is not None
    assert found[1] == len(LONG)


@pytest.mark.parametrize(("nbytes", "room"), [(500, 100), (1200, 1 << 40)], ids=["room", "ceiling"])
def test_an_entry_larger_than_the_room_is_its_own_and_only_victim(nbytes: int, room: int) -> None:
    index = PrefixIndex(1000)
    small, ancestor = entry(index, *(x + 100 for x in LONG)), entry(index, *LONG[:20])
    assert index.put(small, room) == index.put(ancestor, room) == []
    big = entry(index, *LONG, nbytes=nbytes)
    assert index.put(big, room) == [big.id]
    assert (len(index), index.nbytes) == (2, 20)
    assert index.take(LONG) == (ancestor, 20)


def test_what_may_not_be_taken_is_no_hit_and_hides_no_entry_that_may() -> None:
    index = PrefixIndex(1000)
    short, long = entry(index, *LONG[:20], 900), entry(index, *LONG)
    for one in (short, long):
        index.put(one, 1000)
    assert index.take(LONG, lambda _entry, _tokens: 0) is None
    assert index.take(LONG, lambda _entry, tokens: min(tokens, MIN_REUSE - 1)) is None
    assert (index.counters.hits, index.counters.misses, index.counters.tokens_reused) == (0, 2, 0)
    assert index.take(LONG, lambda one, tokens: 0 if one is long else tokens) == (short, 20)
    assert (index.counters.hits, index.counters.misses, index.counters.tokens_reused) == (1, 2, 20)

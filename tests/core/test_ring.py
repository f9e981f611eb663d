"""The ring: everything since an index, in order, and an honest count of what was missed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core.ring import Kind, Ring


@given(st.integers(16, 64), st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=200))
def test_readers_get_consecutive_records_or_learn_what_they_missed(capacity: int, actions: list[int | None]) -> None:
    ring = Ring(capacity)
    written = 0
    for action in actions:
        if action is None:
            ring.record(written, Kind.TOKEN, row=written, a=written * 2)
            written += 1
            continue
        taken = ring.since(action)
        rows = list(taken.columns["row"])
        assert rows == list(range(taken.first, written))
        assert list(taken.columns["a"]) == [2 * row for row in rows]
        if action <= written:
            assert taken.missed == taken.first - action
            assert len(rows) >= min(written - action, capacity - capacity // 16)


def test_polling_with_the_returned_index_sees_every_record_once() -> None:
    ring = Ring(64)
    seen: list[int] = []
    index = 0
    for start in range(0, 500, 7):
        for i in range(start, start + 7):
            ring.record(i, Kind.STEP, a=i)
        taken = ring.since(index)
        assert taken.missed == 0
        seen += taken.columns["a"]
        index = taken.first + len(taken)
    assert seen == list(range(len(seen)))

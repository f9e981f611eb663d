"""Spans: they nest, follow each other without a gap, and together are the request."""

from __future__ import annotations

import pytest

from mlx_notebook.core.rows import Chunk, Row, RowStatus
from mlx_notebook.trace.spans import Span, spans_of
from tests.core.driving import MS, request


def row(**times_ms: int) -> Row:
    made = Row(request(1, prompt=10), seq=0)
    for name, value in times_ms.items():
        setattr(made, f"{name}_ns", value * MS)
    return made


def finished() -> Row:
    made = row(queued=100, lease_wanted=101, admitted=130, first_token=180, ended=380)
    made.chunks = [Chunk(0, 4, 131 * MS, 150 * MS), Chunk(4, 10, 151 * MS, 175 * MS)]
    made.status = RowStatus.FINISHED
    return made


def by_name(spans: tuple[Span, ...]) -> dict[str, list[Span]]:
    names: dict[str, list[Span]] = {}
    for span in spans:
        names.setdefault(span.name, []).append(span)
    return names


def test_a_finished_request() -> None:
    spans = by_name(spans_of(finished(), lease_granted_ns=120 * MS, settled_ns=381 * MS, now_ns=999 * MS))
    assert {name: [(s.start_ns // MS, s.end_ns // MS) for s in found] for name, found in spans.items()} == {
        "request": [(100, 381)],
        "queue": [(100, 130)],
        "lease_wait": [(101, 120)],
        "prefill": [(130, 180)],
        "prefill_chunk": [(131, 150), (151, 175)],
        "first_token": [(180, 180)],
        "decode": [(180, 380)],
        "delivery": [(380, 381)],
    }
    assert spans["decode"][0].ms == 200


@pytest.mark.parametrize(
    "ended",
    [
        row(queued=100, ended=150),
        row(queued=100, lease_wanted=100, admitted=130, ended=150),
        finished(),
    ],
    ids=["in the queue", "while its prompt was read", "finished"],
)
def test_the_parts_sum_to_the_request(ended: Row) -> None:
    spans = by_name(spans_of(ended, lease_granted_ns=0, settled_ns=400 * MS, now_ns=999 * MS))
    parts = [span for name in ("queue", "prefill", "decode", "delivery") for span in spans.get(name, [])]
    assert sum(span.ms for span in parts) == spans["request"][0].ms
    ends = [span.end_ns for span in parts]
    assert [span.start_ns for span in parts] == [spans["request"][0].start_ns, *ends[:-1]]


def test_children_lie_within_their_parents() -> None:
    spans = by_name(spans_of(finished(), lease_granted_ns=120 * MS, settled_ns=381 * MS, now_ns=999 * MS))
    for parent, child in (("queue", "lease_wait"), ("prefill", "prefill_chunk"), ("decode", "first_token")):
        outer = spans[parent][0]
        assert all(outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns for span in spans[child])
    whole = spans["request"][0]
    assert all(whole.start_ns <= s.start_ns and s.end_ns <= whole.end_ns for found in spans.values() for s in found)


def test_what_goes_on_ends_now() -> None:
    spans = by_name(spans_of(row(queued=100, admitted=130), now_ns=200 * MS))
    assert set(spans) == {"request", "queue", "prefill"}
    assert all(spans[name][0].end_ns == 200 * MS for name in ("request", "prefill"))


def test_a_row_that_waited_for_no_device_has_no_such_span() -> None:
    waited = row(queued=100, lease_wanted=110, admitted=130)
    assert "lease_wait" not in by_name(spans_of(waited, lease_granted_ns=90 * MS, now_ns=200 * MS))
    assert "lease_wait" not in by_name(
        spans_of(row(queued=100, admitted=130), lease_granted_ns=120 * MS, now_ns=200 * MS)
    )


def test_in_the_order_of_their_start_and_without_text() -> None:
    spans = spans_of(finished(), lease_granted_ns=120 * MS, settled_ns=381 * MS, now_ns=999 * MS)
    assert [span.start_ns for span in spans] == sorted(span.start_ns for span in spans)
    assert spans[0].name == "request"
    assert all(isinstance(value, int | str) for span in spans for value in span.attributes.values())

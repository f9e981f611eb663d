"""The benchmark of forced tokens: what it counts, that what it feeds is taken back, and its lines."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import forced_tokens as forced
from tests.engine.shaping import compiled, vocabulary
from tests.small_models import small

SCHEMA = {"type": "object", "properties": {"long_name": {"type": "boolean"}}, "required": ["long_name"]}


class Told:
    """A matcher that forces what it is told to, by place."""

    def __init__(self, forces: dict[int, list[int]]) -> None:
        self._forces, self._at = forces, 0

    def compute_ff_tokens(self) -> list[int]:
        return self._forces.get(self._at, [])

    def consume_tokens(self, tokens: list[int]) -> bool:
        self._at += len(tokens)
        return 99 not in tokens


def test_runs_are_counted_and_go_along_with_the_token_before() -> None:
    found = forced.forced_in(Told({0: [1, 2], 3: [4], 6: [7, 8, 9]}), [1, 2, 3, 4, 5, 6, 7, 8])
    assert found == forced.Forced(8, (2, 1, 2))
    assert found.forwards == 3


def test_an_answer_that_goes_another_way_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match=r"at token 1 the grammar forces \[5\]"):
        forced.forced_in(Told({1: [5]}), [1, 2])
    with pytest.raises(RuntimeError, match="does not take"):
        forced.forced_in(Told({}), [99])


def test_a_real_matcher_is_walked_to_the_end() -> None:
    matcher = compiled(json_schema=SCHEMA).start()
    token_ids = vocabulary().made().tokenize_str('{"long_name": true}')
    found = forced.forced_in(matcher.native, token_ids)
    assert matcher.satisfied
    matcher.close()
    assert found.tokens == len(token_ids)
    assert 0 <= sum(found.runs) <= found.tokens


def test_what_was_fed_is_taken_back() -> None:
    model: Any = small("llama")[0]
    fed = forced.Fed(model, 2, context=5)
    for sizes in ([3], [1, 1, 1]):
        assert forced.timed([(fed, sizes)])["ms"] > 0
        assert {cache.offset for cache in fed._caches} == {5}


def test_every_case_has_its_line() -> None:
    model: Any = small("llama")[0]
    samples = {name: [{"ms": 2.0}] for name in forced.cases(model)}
    lines = forced.lines(samples)
    assert len(lines) == 3 * len(forced.SPANS)
    assert {line.ratio.median for line in lines} == {1.0}
    assert not any(line.more_is_better for line in lines)


def test_the_table_says_what_was_counted() -> None:
    assert "| two    | 9      | 5      | 2 3  | 4        |" in forced.table({"two": forced.Forced(9, (2, 3))})

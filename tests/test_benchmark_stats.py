"""The arithmetic behind every figure that we publish."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.stats import paired_ratio, quantile, spread

positive = st.floats(min_value=1e-3, max_value=1e6)
samples = st.lists(positive, min_size=1, max_size=40)


@given(samples)
def test_the_half_quantile_is_the_median(values: list[float]) -> None:
    assert quantile(values, 0.5) == pytest.approx(statistics.median(values))


@given(st.lists(positive, min_size=2, max_size=40))
def test_quartiles_agree_with_the_standard_library(values: list[float]) -> None:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    found = spread(values)
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)
    assert found.count == len(values)


def test_the_ends_are_the_smallest_and_the_largest() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.0) == 1.0
    assert quantile([3.0, 1.0, 2.0], 1.0) == 3.0
    assert quantile(list(range(101)), 0.99) == 99.0


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1), ([1.0, math.nan], 0.5)])
def test_what_has_no_quantile_is_refused(values: list[float], fraction: float) -> None:
    with pytest.raises(ValueError, match=r"sample|fraction"):
        quantile(values, fraction)


@given(samples, st.floats(min_value=0.1, max_value=10))
def test_a_constant_factor_is_found_whatever_the_drift(theirs: list[float], factor: float) -> None:
    """The machine may slow down by a thousand between two rounds: within a pair it cancels."""
    ratio = paired_ratio([value * factor for value in theirs], theirs)
    assert ratio.median == pytest.approx(factor)
    assert ratio.low == pytest.approx(factor)
    assert ratio.high == pytest.approx(factor)
    assert ratio.pairs == len(theirs)


def test_one_wild_pair_does_not_move_the_median() -> None:
    assert paired_ratio([2.0, 2.0, 2.0, 2.0, 900.0], [1.0] * 5).median == 2.0


def test_the_interval_holds_the_median_and_shows_the_noise() -> None:
    quiet = paired_ratio([1.00, 1.01, 0.99, 1.00, 1.01, 0.99, 1.0], [1.0] * 7)
    noisy = paired_ratio([0.5, 1.5, 0.7, 1.3, 1.0, 0.6, 1.4], [1.0] * 7)
    for ratio in (quiet, noisy):
        assert ratio.low <= ratio.median <= ratio.high
    assert noisy.high - noisy.low > quiet.high - quiet.low


def test_the_interval_is_the_same_every_time() -> None:
    ours, theirs = [1.0, 1.2, 0.9, 1.1], [1.0, 1.0, 1.1, 0.9]
    assert paired_ratio(ours, theirs) == paired_ratio(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0]), ([1.0], [-1.0]), ([math.nan], [1.0])]
)
def test_pairs_that_make_no_ratio_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|positive|sample"):
        paired_ratio(ours, theirs)

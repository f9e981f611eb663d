"""Seeds of rows: fixed for all time, apart from each other, and exact wherever they are written down."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.core import seeds
from mlx_notebook.core.seeds import row_seed

SEEDS = st.integers(0, 2**64 - 1)
NUMBERS = st.integers(0, 2**40)


def test_the_numbers_themselves() -> None:
    """Saved runs hold these: another mixing function would be another promise."""
    assert row_seed(7, 0) == 4593711780509518
    assert row_seed(7, 1) == 1547985367367727
    assert row_seed(7, 1, 1) == 2805347151056363


def test_the_step_is_splitmix64() -> None:
    """The first output of the published generator from state 0."""
    assert seeds._mix(0) == 0xE220A8397B1DCDAF


@given(SEEDS, NUMBERS, NUMBERS)
def test_each_is_exact_in_json_and_as_a_float(seed: int, row: int, sample: int) -> None:
    value = row_seed(seed, row, sample)
    assert 0 <= value < 2**53
    assert json.loads(json.dumps(value)) == value
    assert int(float(value)) == value


@given(SEEDS)
def test_neighbours_differ(seed: int) -> None:
    grid = {row_seed(seed, row, sample) for row in range(40) for sample in range(5)}
    assert len(grid) == 200


@given(SEEDS, NUMBERS)
def test_row_and_sample_are_not_interchangeable(seed: int, number: int) -> None:
    assert row_seed(seed, number, number + 1) != row_seed(seed, number + 1, number)


def test_bits_are_spread() -> None:
    """Each bit is set in about half of many seeds (within six standard deviations)."""
    values = [row_seed(1, row) for row in range(4000)]
    for bit in range(53):
        assert abs(sum(value >> bit & 1 for value in values) - 2000) < 6 * 31.7

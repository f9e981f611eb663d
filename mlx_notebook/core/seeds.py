"""One seed a row out of one seed a run, so that rows draw apart and each can be drawn again alone.

`row_seed(seed, row, sample)` chains the output function of SplitMix64 (Steele, Lea, Flood: Fast
Splittable Pseudorandom Number Generators, OOPSLA 2014) over the three numbers and keeps the upper 53
bits. 53, so that every seed survives JSON, spreadsheets and a column of floats unchanged.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
SEED_BITS = 53


def row_seed(seed: int, row: int, sample: int = 0) -> int:
    """The seed of one sample of one row; depends on these three numbers alone.

    Args:
        seed: the run's seed, 0 to 2**64 - 1.
        row: position of the row in the data, from 0.
        sample: number of the sample of that row, from 0.

    Returns:
        A whole number from 0 to 2**53 - 1.
    """
    state = _mix(seed)
    for number in (row, sample):
        state = _mix(state ^ _mix(number))
    return state >> (64 - SEED_BITS)


def _mix(number: int) -> int:
    """SplitMix64's step and output: a bijection of 64-bit numbers in which each bit reaches all others."""
    z = (number + _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)

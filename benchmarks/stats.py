"""The arithmetic of the measurements: medians, quantiles, paired ratios. Pure Python, no clock.

A noisy machine drifts, so absolute figures of two runs cannot be compared. What is compared here is
measured in pairs, one beside the other in time, and the ratio is taken pair by pair.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and how far the samples lie around it.

    Attributes:
        median: the middle sample (the mean of the two middle ones).
        low: the first quartile.
        high: the third quartile.
        count: how many samples.
    """

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times one thing is of another, from pairs.

    Attributes:
        median: the middle of the pairs' ratios.
        low: the lower end of the 95% interval of that median.
        high: its upper end.
        pairs: how many pairs.
    """

    median: float
    low: float
    high: float
    pairs: int


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The value below which `fraction` of the samples lie, interpolated linearly (Hyndman and Fan's type 7).

    Raises ValueError without samples, on a NaN, or outside 0 to 1.
    """
    if not samples:
        raise ValueError("a quantile needs at least one sample")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must lie in 0..1, not {fraction}")
    if any(math.isnan(sample) for sample in samples):
        raise ValueError("one of the samples is not a number")
    ordered = sorted(samples)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles."""
    return Spread(quantile(samples, 0.5), quantile(samples, 0.25), quantile(samples, 0.75), len(samples))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Ratio:
    """The median of `ours[i] / theirs[i]`, with a 95% interval from resampling the pairs (bootstrap, percentiles).

    Raises ValueError if the two differ in length, are empty, or hold a value that is not positive.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"pairs need two equal lists, not {len(ours)} and {len(theirs)} samples")
    if any(not value > 0 for value in (*ours, *theirs)):
        raise ValueError("ratios need positive samples")
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    draw = random.Random(seed)
    medians = [quantile(draw.choices(ratios, k=len(ratios)), 0.5) for _ in range(RESAMPLES)] if ratios else []
    return Ratio(quantile(ratios, 0.5), quantile(medians, 0.025), quantile(medians, 0.975), len(ratios))

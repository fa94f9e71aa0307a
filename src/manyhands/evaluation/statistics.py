"""How sure a mean over samples is, and a difference between two methods on the same samples.

Where every sample is right or wrong and was asked once, the interval is Wilson's, which is sound for
few samples and near 0 and 1. Where a value may lie between (a list half right, several repeats), it is
the percentile bootstrap over samples: repeats of one sample are averaged first, since they are not
independent. The bootstrap knows only what it has seen, and no doubt where all values are alike, so the
least and the most that a value may be are put among them, as Agresti and Coull do with shares, and Bonett and Price (2012) with
differences of paired ones; where values vary, that is hardly seen. A value is from 0 to 1, a difference of two from -1 to 1, a judge's
level from 1 to the highest of its rubric. All intervals are of 95 %, and the random numbers are seeded: a report stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964  # of the normal distribution, two-sided 95 %
RESAMPLES = 4000
WILSON, BOOTSTRAP = "Wilson", "bootstrap over samples"


@dataclass(frozen=True)
class Interval:
    """A mean and where it may as well lie. `kind` says how that was computed."""

    mean: float
    low: float
    high: float
    count: int
    kind: str

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Difference:
    """How much better one method is than another on the samples that both were asked."""

    interval: Interval
    wins: int
    ties: int
    losses: int

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.interval.high < 0

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.interval.low > 0

    @property
    def chance(self) -> float:
        """The exact two-sided sign test over the samples that differ, 0 to 1.

        Where every value is 0 or 1 this is McNemar's exact test (McNemar 1947).
        """
        unequal, fewer = self.wins + self.losses, min(self.wins, self.losses)
        tail = sum(math.comb(unequal, count) for count in range(fewer + 1))
        return min(1.0, 2 * (tail / (1 << unequal)))


def interval(values: Sequence[float], *, repeated: bool = False) -> Interval:
    """The mean of one value per sample; `repeated` if these are means over repeats."""
    is_plain = not repeated and all(value in (0, 1) for value in values)
    return _wilson(values) if is_plain else _bootstrap(values, 0.0, 1.0)


def mean_level(levels: Sequence[float], highest: float) -> Interval:
    """The mean of what judges said, from 1 to `highest`; levels are no shares, so this is a bootstrap in any case."""
    return _bootstrap(levels, 1.0, highest)


def difference(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Difference | None:
    """Ours minus theirs, sample by sample; None if no sample is common to both."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    gaps = [ours[sample] - theirs[sample] for sample in common]
    return Difference(
        _bootstrap(gaps, -1.0, 1.0),
        wins=sum(gap > 1e-9 for gap in gaps),
        ties=sum(abs(gap) <= 1e-9 for gap in gaps),
        losses=sum(gap < -1e-9 for gap in gaps),
    )


def _wilson(values: Sequence[float]) -> Interval:
    n = len(values)
    mean = sum(values) / n
    scale = 1 + Z * Z / n
    centre = (mean + Z * Z / (2 * n)) / scale
    half = Z / scale * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    # At 0 and 1 the bound is the mean, and rounding must not put it on the other side: plots take the distance for a length.
    return Interval(mean, min(low, mean), max(high, mean), n, WILSON)


def _bootstrap(values: Sequence[float], least: float, most: float) -> Interval:
    """The interval of values that lie from `least` to `most`, with one of each of these ends among them."""
    mean = math.fsum(values) / len(values)  # in any order the same
    array = np.asarray(sorted([*values, least, most]), dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = map(float, np.percentile(array[picks].mean(axis=1), (2.5, 97.5)))
    return Interval(mean, min(low, mean), max(high, mean), len(values), BOOTSTRAP)

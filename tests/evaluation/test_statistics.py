"""Intervals and differences against numbers that are known."""

from __future__ import annotations

import random

import pytest

from manyhands.evaluation.statistics import BOOTSTRAP, WILSON, difference, interval, mean_level


def test_wilson_as_in_the_books() -> None:
    found = interval([1.0] * 8 + [0.0] * 2)  # 8 of 10: 0.4902 to 0.9433
    assert (found.mean, found.kind) == (0.8, WILSON)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)


def test_no_mean_lies_outside_of_its_interval() -> None:
    """Not by a rounding either: programs that draw take the distances as lengths, which are not negative."""
    for count in range(1, 200):
        for value in (0.0, 1.0):
            found = interval([value] * count)
            assert found.low <= found.mean <= found.high, (count, value)


def test_all_right_is_not_certainty() -> None:
    assert interval([1.0] * 5).low < 0.6
    assert interval([0.5] * 5).half > 0.2  # all alike, nothing to resample


def test_nearly_all_right_is_no_surer_than_all_right() -> None:
    whole, nearly = interval([1.0] * 128), interval([1.0] * 127 + [0.8])
    assert nearly.low < whole.low + 0.01
    assert nearly.low < nearly.mean < nearly.high


def test_where_values_vary_the_added_ends_are_hardly_seen() -> None:
    values = [index / 399 for index in range(400)]
    assert interval(values).half == pytest.approx(1.96 * (1 / 12) ** 0.5 / 20, rel=0.05)


def test_the_bootstrap_agrees_with_theory() -> None:
    rng = random.Random(0)
    values = [rng.random() for _ in range(400)]
    found = interval(values)
    assert found.kind == BOOTSTRAP
    assert found.half == pytest.approx(1.96 * (1 / 12) ** 0.5 / 20, rel=0.15)
    assert found == interval(values)


def test_repeats_are_never_wilson() -> None:
    assert interval([1.0, 0.0, 1.0], repeated=True).kind == BOOTSTRAP


def test_differences_are_taken_sample_by_sample() -> None:
    ours = {"a": 1.0, "b": 1.0, "c": 0.0, "only": 1.0}
    theirs = {"a": 1.0, "b": 0.0, "c": 0.5}
    found = difference(ours, theirs)
    assert found is not None
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)
    assert found.interval.mean == pytest.approx(1 / 6)
    assert difference(ours, {"other": 1.0}) is None
    sure = difference({str(n): 1.0 for n in range(9)}, {str(n): 0.0 for n in range(9)})
    assert sure is not None
    assert sure.is_gain
    assert not sure.is_loss
    turned = difference({str(n): 0.0 for n in range(9)}, {str(n): 1.0 for n in range(9)})
    assert turned is not None
    assert turned.is_loss
    assert not turned.is_gain


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_samples_that_agree_decide_nothing(count: int) -> None:
    worse = difference(dict.fromkeys("abcd"[:count], 0.0), dict.fromkeys("abcd"[:count], 1.0))
    assert worse is not None
    assert (worse.interval.mean, worse.losses) == (-1, count)
    assert worse.chance > 0.1
    assert not worse.is_loss


def test_no_difference_that_was_seen_is_no_certainty() -> None:
    ones = {str(number): 1.0 for number in range(6)}
    same = difference(ones, ones)
    assert same is not None
    assert same.interval.low < 0 < same.interval.high
    assert not same.is_gain
    assert not same.is_loss


def test_differences_cover_what_is_true() -> None:
    """Five samples of which three in ten are won and one lost: without the ends 81 of 100 intervals have the truth."""
    rng = random.Random(0)
    hits = 0
    for _ in range(100):
        gaps = rng.choices((-1, 0, 1), (1, 6, 3), k=5)
        ours = {str(index): float(gap > 0) for index, gap in enumerate(gaps)}
        found = difference(ours, {str(index): float(gap < 0) for index, gap in enumerate(gaps)})
        assert found is not None
        hits += found.interval.low <= 0.2 <= found.interval.high
    assert hits >= 93


def test_one_vote_is_not_certain() -> None:
    once = mean_level([5.0], 6)
    assert once.mean == 5
    assert 1 <= once.low < 3
    assert 5 < once.high <= 6


def test_the_order_of_the_samples_changes_no_interval() -> None:
    """An exam with many at once has its records in another order each time."""
    values = [number / 7 for number in range(8)] * 3
    assert interval(values) == interval(values[::-1])
    assert mean_level([1 + 4 * value for value in values], 5) == mean_level(
        [1 + 4 * value for value in values[::-1]], 5
    )

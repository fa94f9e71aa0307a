"""Seeds of an exam's questions."""

from __future__ import annotations

from manyhands.evaluation.seeds import seed_of


def test_seeds_stay_what_they_were() -> None:
    """Records hold them, and an exam that goes on draws what it would have drawn; also for a name with half of a letter."""
    assert (seed_of(5), seed_of(5, "d1")) == (1003177119, 526122997)
    assert (seed_of(6, "d1"), seed_of(5, "d1", 2)) == (821033463, 1021762520)
    assert seed_of(0, "\ud83d") == 102357648


def test_seeds_are_spread_over_thirty_bits() -> None:
    """And no further: a vote of several counts on from the first, in 32 bits."""
    seeds = [seed_of(0, number) for number in range(1000)]
    assert len(set(seeds)) == 1000
    assert 0 <= min(seeds) < 2**23
    assert 2**30 - 2**23 < max(seeds) < 2**30

"""The cost of an accuracy: passes, tokens and seconds until a method has it, beside the baseline's.

The accuracy is a share (97 %) of the baseline's own at its largest budget. Between two budgets the mean
value is taken as a straight line. A curve that has the accuracy at its first budget gives an upper bound
and no cost; such a cost of the baseline has no ratio. Ratios are the baseline's cost over the method's, so
2 is half the cost and 0 stands for a method that never gets there. Their intervals are percentile
bootstraps over the samples that both were asked: each draw has its own accuracy and both its own costs. Samples that are all alike
say nothing of others, so two stand among them of which one method has all and the other nothing, as in `statistics.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyhands.evaluation.statistics import RESAMPLES
from manyhands.evaluation.summary import Summary

SHARE = 0.97  # of the baseline's final value
COSTS = ("passes", "tokens", "seconds")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reach:
    """One method's cost of the accuracy `target`.

    `cost` is None where the method does not get there, and an upper bound where `is_bound`. `ratio` is
    the baseline's cost over it with its interval of 95 %; None where there is nothing to divide.
    """

    label: str
    what: str
    target: float
    samples: int
    cost: float | None
    is_bound: bool
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def reaches(baseline: Summary, others: Sequence[Summary]) -> list[Reach]:
    """Every method's costs, the baseline's first; an endpoint, whose passes are unknown, has none.

    A baseline that is never right, or was asked at one budget, gives no rows.
    """
    able = [s for s in (baseline, *others) if not s.is_endpoint and not s.waits_for_judge]
    if baseline not in able or len(baseline.budgets) < 2:
        return []
    if baseline.last.value.mean <= 0:
        return []
    rows = []
    for ours in [baseline, *(s for s in able if s is not baseline)]:
        rows += [found for what in COSTS if (found := _reach(baseline, ours, what)) is not None]
    return rows


def _reach(baseline: Summary, ours: Summary, what: str) -> Reach | None:
    common = sorted(ours.values(ours.budgets[-1]).keys() & baseline.values(baseline.budgets[-1]))
    values = [_values(summary, common) for summary in (baseline, ours)]
    spent = [_spent(summary, common, what) for summary in (baseline, ours)]
    if not common or any(np.isnan(cost).any() for cost in spent):
        return None
    once: Floats = np.full((1, len(common)), 1 / len(common))
    target, theirs, mine = _costs(once, values, spent)
    if target[0] <= 0:
        return None
    found = Reach(
        ours.label,
        what,
        float(target[0]),
        len(common),
        cost=float(mine[0]) if np.isfinite(mine[0]) else None,
        is_bound=bool(values[1][:, 0].mean() >= target[0]),
    )
    heads = ours.results.header, baseline.results.header
    differs = what == "seconds" and heads[0].concurrency != heads[1].concurrency
    is_dear = all(bool((cost > 0).all()) for cost in spent)
    if ours is baseline or differs or values[0][:, 0].mean() >= target[0] or not is_dear:
        return found
    values, spent = (
        _with_ends(values),
        [np.vstack([cost, *[cost.mean(axis=0)] * 2]) for cost in spent],
    )
    size = len(common) + 2
    counts = np.random.default_rng(0).multinomial(size, [1 / size] * size, size=RESAMPLES)
    drawn, theirs_drawn, mine_drawn = _costs(counts / size, values, spent)
    ratio = float(theirs[0] / mine[0])
    ratios = (theirs_drawn / mine_drawn)[drawn > 0]
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Reach(
        found.label,
        found.what,
        found.target,
        found.samples,
        found.cost,
        found.is_bound,
        ratio=ratio,
        low=min(ratio, float(low)),
        high=max(ratio, float(high)),
    )


def _with_ends(values: Sequence[Floats]) -> list[Floats]:
    """The values of both with two samples more: one that the first always gets right and the second never, and the reverse."""
    rows = np.ones((1, values[0].shape[1])), np.zeros((1, values[1].shape[1]))
    others = np.zeros_like(rows[0]), np.ones_like(rows[1])
    return [np.vstack([own, *more]) for own, *more in zip(values, rows, others, strict=True)]


def _costs(
    weights: Floats, values: Sequence[Floats], spent: Sequence[Floats]
) -> tuple[Floats, Floats, Floats]:
    """The accuracy and both costs of it, one of each for every row of weights (draws × samples)."""
    target = SHARE * (weights @ values[0][:, -1])
    first, second = (
        _crossing(weights @ value, weights @ cost, target)
        for value, cost in zip(values, spent, strict=True)
    )
    return target, first, second


def _crossing(curve: Floats, cost: Floats, target: Floats) -> Floats:
    """Where each curve (draws × budgets) first has its target, in `cost`; infinite if never."""
    has = curve >= target[:, None] - 1e-12
    at = has.argmax(axis=1)
    rows = np.arange(len(curve))
    before = np.maximum(at - 1, 0)
    rise = curve[rows, at] - curve[rows, before]
    way = np.where(rise > 0, (target - curve[rows, before]) / np.where(rise > 0, rise, 1.0), 1.0)
    left, right = cost[rows, before], cost[rows, at]
    found: Floats = np.where(has.any(axis=1), left + np.clip(way, 0, 1) * (right - left), np.inf)
    return found


def _values(summary: Summary, samples: Sequence[str]) -> Floats:
    """The values, samples × budgets."""
    looks = [summary.values(budget) for budget in summary.budgets]
    return np.asarray([[look[sample] for look in looks] for sample in samples], dtype=np.float64)


def _spent(summary: Summary, samples: Sequence[str], what: str) -> Floats:
    """The costs, samples × budgets: the budget itself in passes, else what had been spent by then.

    A failed run has no cost of its own; it has the mean of the others, so that it moves no ratio. Costs
    that no run knows are NaN.
    """
    if what == "passes":
        return np.tile(np.asarray(summary.budgets, dtype=np.float64), (len(samples), 1))
    columns = []
    for budget in summary.budgets:
        known: defaultdict[str, list[float]] = defaultdict(list)
        for record in summary.records:
            cost = record.spent(budget, what) if record.error is None else None
            if cost is not None:
                known[record.sample].append(cost)
        means = {sample: sum(costs) / len(costs) for sample, costs in known.items()}
        mean = sum(means.values()) / len(means) if means else float("nan")
        columns.append([means.get(sample, mean) for sample in samples])
    return np.asarray(columns, dtype=np.float64).T

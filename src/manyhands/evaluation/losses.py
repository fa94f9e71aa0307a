"""Where a method loses, in sentences, and how the methods compare on the same samples.

A comparison is made by the records alone. A loss is said twice: where the two intervals lie apart, and
where they may touch but the difference on the same samples lies below zero. A method that spends more
and shows no gain for it loses, too. With many methods and budgets some difference in twenty is chance;
the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.errors import counted
from manyhands.evaluation.statistics import Difference, difference
from manyhands.evaluation.summary import CurvePoint, Summary, is_sequential

# Times what the baseline spends. Tokens and memory come out the same in every run; seconds do not.
MUCH_MORE = {"tokens": 1.05, "seconds": 1.3, "KV cache": 1.05}


@dataclass(frozen=True)
class Loss:
    """One loss: the method, how sure it is, and the sentence."""

    label: str
    kind: str  # "apart", "paired", "cost" or "failures"
    sentence: str


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same samples. `budget` None: each at its own end."""

    ours: Summary
    theirs: Summary
    budget: int | None
    difference: Difference


def losses(baseline: Summary, others: Sequence[Summary]) -> list[Loss]:
    """Everything in which a method does worse than the baseline, on the samples that both were asked.

    Records without a judgement have no value to be compared.
    """
    graded = [s for s in (baseline, *others) if not s.waits_for_judge]
    found: list[Loss] = []
    for other in others:
        if baseline in graded and other in graded and other is not baseline:
            found += _losses_of_value(*_on_common(baseline, other))
            found += _losses_of_cost(*_on_common(_peer(baseline, other, graded), other))
    return found + [_failed(summary) for summary in others if summary.failures]


def _on_common(baseline: Summary, other: Summary) -> tuple[Summary, Summary]:
    """Both on the samples that both were asked: others have other values and other costs."""
    common = baseline.samples & other.samples
    return baseline.on(common), other.on(common)


def _peer(baseline: Summary, other: Summary, graded: Sequence[Summary]) -> Summary:
    """The method whose cost is compared: seconds mean the same only where as many samples were asked at once."""
    wanted = other.results.header.concurrency
    if baseline.results.header.concurrency == wanted:
        return baseline
    peers = [s for s in graded if is_sequential(s) and s.results.header.concurrency == wanted]
    return peers[0] if peers else baseline


def compare(ours: Summary, theirs: Summary) -> Comparison | None:
    """The difference at the largest budget that both have; None if they share no sample."""
    budget = None
    if not ours.is_endpoint and not theirs.is_endpoint:
        budget = max(set(ours.budgets) & set(theirs.budgets), default=None)
    found = difference(
        ours.values(budget or ours.budgets[-1]), theirs.values(budget or theirs.budgets[-1])
    )
    return None if found is None else Comparison(ours, theirs, budget, found)


def compare_everywhere(ours: Summary, theirs: Summary) -> list[Comparison]:
    """The difference at every budget that both have, rising; at each one's end if they have none."""
    if ours.is_endpoint or theirs.is_endpoint:
        common: list[int] = []
    else:
        common = sorted(set(ours.budgets) & set(theirs.budgets))
    if not common:
        last = compare(ours, theirs)
        return [] if last is None else [last]
    return [
        Comparison(ours, theirs, budget, found)
        for budget in common
        if (found := difference(ours.values(budget), theirs.values(budget))) is not None
    ]


def resolution(baseline: Summary) -> float:
    """About the smallest difference that this number of samples would show."""
    return baseline.last.value.half


def _losses_of_value(baseline: Summary, other: Summary) -> list[Loss]:
    found = []
    for point, reference in _common(other, baseline):
        budget = point.budget
        if point.value.high < reference.value.low:
            kind, how = "apart", "their intervals lie apart"
        else:
            paired = difference(other.values(budget), baseline.values(budget))
            if paired is None or not paired.is_loss:
                continue
            kind = "paired"
            how = f"on the same samples it wins {counted(paired.wins, 'time')} and loses {counted(paired.losses, 'time')}"
        sentence = (
            f"At {counted(budget, 'forward pass')} {other.label} has {_value(point)} and "
            f"{baseline.label} {_value(reference)}; {how}."
        )
        found.append(Loss(other.label, kind, sentence))
    return found


def _losses_of_cost(baseline: Summary, other: Summary) -> list[Loss]:
    """More tokens, seconds or memory at the same budget, and no gain that the samples would show."""
    common = [] if other is baseline else _common(other, baseline)
    if not common:
        return []
    point, reference = common[-1]
    paired = difference(other.values(point.budget), baseline.values(point.budget))
    if paired is None or paired.is_gain:
        return []
    spent = {"tokens": (point.tokens, reference.tokens)}
    heads = other.results.header, baseline.results.header
    if heads[0].concurrency == heads[1].concurrency:
        spent["seconds"] = point.seconds, reference.seconds
        spent["KV cache"] = other.memory("kv_bytes"), baseline.memory("kv_bytes")
    more = [
        f"{ours / theirs:.1f} times the {what}"
        for what, (ours, theirs) in spent.items()
        if ours and theirs and ours > MUCH_MORE[what] * theirs
    ]
    if not more:
        return []
    sentence = (
        f"At {counted(point.budget, 'forward pass')} {other.label} spends {', '.join(more)} of "
        f"{baseline.label} per problem, and its value shows no gain for it "
        f"({_signed(paired.interval.mean)}, 95 % {_signed(paired.interval.low)} to "
        f"{_signed(paired.interval.high)})."
    )
    return [Loss(other.label, "cost", sentence)]


def _failed(summary: Summary) -> Loss:
    share = f"{len(summary.failures)} of {len(summary.records)}"
    return Loss(summary.label, "failures", f"{summary.label}: {share} runs failed.")


def _common(other: Summary, baseline: Summary) -> list[tuple[CurvePoint, CurvePoint]]:
    """Points of both at the same budget of forward passes; none where they share no sample."""
    if other.is_endpoint or baseline.is_endpoint or not other.records or not baseline.records:
        return []
    theirs = {point.budget: point for point in baseline.curve}
    return [(point, theirs[point.budget]) for point in other.curve if point.budget in theirs]


def _value(point: CurvePoint) -> str:
    return f"{point.value.mean:.3f} ({point.value.low:.3f}–{point.value.high:.3f})"


def _signed(number: float) -> str:
    return f"{number:+.3f}".replace("-", "−")

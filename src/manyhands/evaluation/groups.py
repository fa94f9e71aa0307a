"""The same exam by subject: how each method does on each kind of question.

A dataset says of its questions what they are about. Which of these facts part a task into groups is a choice,
made here once: the first of `GROUPED_BY` that differs from question to question.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.evaluation.record import Record
from manyhands.evaluation.statistics import Interval, interval
from manyhands.evaluation.summary import Summary

GROUPED_BY = ("subject", "subfield", "difficulty", "level", "platform", "type", "kind")


@dataclass(frozen=True)
class Group:
    """One kind of question: of each method its mean value there, None where it was asked none of them."""

    name: str
    num_samples: int
    values: Sequence[Interval | None]  # in the order of the summaries


@dataclass(frozen=True)
class Grouping:
    """All groups of a task, and the fact that parts them."""

    fact: str
    groups: Sequence[Group]


def group_of(record: Record) -> str | None:
    """The first of the facts that a sample has; None if it has none of them."""
    return next((str(record.facts[name]) for name in GROUPED_BY if record.facts.get(name)), None)


def grouped(summaries: Sequence[Summary]) -> Grouping | None:
    """The groups of a task at each method's largest budget; None where no fact parts its samples.

    A sample without the fact is in none. Methods that wait for a judge have no values.
    """
    facts: dict[str, dict[str, str]] = {name: {} for name in GROUPED_BY}
    for summary in summaries:
        for record in summary.records:
            for name in GROUPED_BY:
                if record.facts.get(name):
                    facts[name][record.sample] = str(record.facts[name])
    fact = next((name for name, of in facts.items() if len(set(of.values())) > 1), None)
    if fact is None:
        return None
    members: defaultdict[str, set[str]] = defaultdict(set)
    for sample, name in facts[fact].items():
        members[name].add(sample)
    return Grouping(
        fact,
        [
            Group(name, len(samples), [_value(summary, samples) for summary in summaries])
            for name, samples in sorted(members.items())
        ],
    )


def _value(summary: Summary, samples: set[str]) -> Interval | None:
    if summary.waits_for_judge:
        return None
    values = summary.values(summary.budgets[-1])
    own = [value for sample, value in values.items() if sample in samples]
    repeated = len(own) < sum(record.sample in samples for record in summary.records)
    return interval(own, repeated=repeated) if own else None

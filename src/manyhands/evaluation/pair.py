"""Two files of records, sample by sample: is the second as good as the first?

The files have to be of one task with the same questions. Samples that only one of them has are counted and
left out. The verdict is that of the largest budget which both were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manyhands.errors import InvalidRequest
from manyhands.evaluation.judge import graded_by_judges, with_judgements
from manyhands.evaluation.losses import Comparison, compare_everywhere
from manyhands.evaluation.reach import Reach, reaches
from manyhands.evaluation.record import Record, read_results
from manyhands.evaluation.summary import Summary


@dataclass(frozen=True)
class Pair:
    """The outcome: the second minus the first at every budget, and the cost of nearly the same value."""

    first: Summary
    second: Summary
    comparisons: tuple[Comparison, ...]
    costs: tuple[Reach, ...]
    alone: tuple[int, int]  # samples that only the first has, only the second

    @property
    def is_worse(self) -> bool:
        """Whether the second loses at the largest common budget: its whole interval lies below zero."""
        return self.comparisons[-1].difference.is_loss


def pair_of(first: str | Path, second: str | Path) -> Pair:
    """Read both files. InvalidRequest if they are of different tasks or questions, or share no sample."""
    ours, theirs = _read(second), _read(first)
    tasks = theirs.results.header.task, ours.results.header.task
    if tasks[0] != tasks[1]:
        raise InvalidRequest(
            f"{str(first)!r} has records of the task {tasks[0]!r}, {str(second)!r} of {tasks[1]!r}",
            hint="compare two methods on one task",
        )
    check_asked_the_same([theirs, ours])
    for path, summary in ((first, theirs), (second, ours)):
        if summary.waits_for_judge:
            raise InvalidRequest(
                f"the answers of {str(path)!r} have not been judged yet",
                hint="run manyhands judge DIR --rubric quality first",
            )
    found = compare_everywhere(ours, theirs)
    if not found:
        raise InvalidRequest(
            f"{str(first)!r} and {str(second)!r} have no sample in common",
            hint="ask both for the same samples",
        )
    asked = [{record.sample for record in summary.records} for summary in (theirs, ours)]
    alone = len(asked[0] - asked[1]), len(asked[1] - asked[0])
    return Pair(theirs, ours, tuple(found), tuple(reaches(theirs, [ours])), alone)


def check_asked_the_same(summaries: Sequence[Summary]) -> None:
    """Raise InvalidRequest for a sample that has one question or gold answer in one file, and another in the next.

    What is compared by its name would be two things.
    """
    known: dict[str, tuple[Record, Path]] = {}
    for summary in summaries:
        for record in summary.records:
            before, place = known.setdefault(record.sample, (record, summary.results.path))
            for what in ("question", "gold"):
                if getattr(before, what) != getattr(record, what):
                    name = {"gold": "gold answer"}.get(what, what)
                    raise InvalidRequest(
                        f"sample {record.sample!r} has one {name} in {str(place)!r} and another in {str(summary.results.path)!r}",
                        hint="ask both with the same --source, --task-seed and options of the task, or in folders of their own",
                    )


def _read(path: str | Path) -> Summary:
    summary = Summary.of(graded_by_judges(with_judgements(read_results(path))))
    if not summary.records:
        raise InvalidRequest(f"{str(path)!r} has no records yet", hint="run manyhands eval first")
    return summary

"""Every sample of a task, one line for each method that was asked: its answer beside the gold, and what it is worth.

A mean says how often a method is right; a reader then asks *where* it is not. The lines are in the order of the
samples, so the answers of all methods to one question stand together. Of a run that kept its trace
(`manyhands eval --traces`) a line leads to the run itself, as the page of the server shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from manyhands.errors import ManyhandsError
from manyhands.evaluation.groups import group_of
from manyhands.evaluation.record import Key, Record, trace_path
from manyhands.evaluation.summary import Summary
from manyhands.replay.trace import TRACE_LINES
from manyhands.schema.lines import read_lines

VERDICTS = ("right", "in part", "wrong", "no answer", "failed", "not judged")
_LONGEST = 160  # characters of an answer in the list; the records have all of it

Page = Callable[[Path], str | None]  # of a trace: its page's address; None if it has none


@dataclass(frozen=True)
class Listed:
    """One line: what a method made of one sample, in one repeat, at its largest budget."""

    sample: str
    repeat: int
    group: str
    label: str
    verdict: str  # one of VERDICTS
    value: float | None
    answer: str
    gold: str
    passes: int | None
    page: str | None  # where the run can be seen


def listed(summaries: Sequence[Summary], pages: Mapping[tuple[str, Key], str]) -> list[Listed]:
    """A line for each record, sample by sample. `pages`: addresses of runs, by label and key."""
    found = [
        (in_order(record.sample), record.repeat, number, record)
        for number, summary in enumerate(summaries)
        for record in summary.records
    ]
    return [
        _line(summaries[number], record, pages.get((summaries[number].label, record.key)))
        for _, _, number, record in sorted(found, key=lambda each: each[:3])
    ]


def in_order(name: str) -> list[tuple[int, str]]:
    """A key to sort by: 16 questions come behind 4, and what was chosen for a method behind the method."""
    parts = re.split(r"([0-9]+)", name)  # texts, and a number between any two
    digits = [part.lstrip("0") if at % 2 else part for at, part in enumerate(parts)]
    return [(len(part) if at % 2 else 0, part) for at, part in enumerate(digits)]


def verdict_of(summary: Summary, record: Record) -> str:
    """One of VERDICTS. An answer that is right in some places of a list is right in part."""
    score = record.scores[str(summary.budgets[-1])]
    if record.error is not None:
        return "failed"
    if summary.waits_for_judge or score["value"] is None:
        return "not judged"
    if record.answer is None:
        return "no answer"
    value = record.value(summary.budgets[-1])
    return "right" if value == 1 else "in part" if value > 0 else "wrong"


def worst_first(summary: Summary) -> list[Record]:
    """The records of a method, failures first, then wrong answers: a reader looks for these."""
    order = {name: at for at, name in enumerate(("failed", "no answer", "wrong", "in part"))}
    return sorted(
        summary.records, key=lambda record: order.get(verdict_of(summary, record), len(order))
    )


def pages_of(summaries: Sequence[Summary], make: Page, most: int) -> dict[tuple[str, Key], str]:
    """Pages of the runs that kept their traces: at most so many of each method, the worst runs first."""
    found: dict[tuple[str, Key], str] = {}
    for summary in summaries:
        kept = (
            (record, path)
            for record in worst_first(summary)
            if _is_of(path := trace_path(summary.results.path, record.key), record)
        )
        for record, path in islice(kept, most):
            if (page := make(path)) is not None:
                found[summary.label, record.key] = page
    return found


def _is_of(path: Path, record: Record) -> bool:
    """Whether a trace is there, and of this answer: a sample that is asked again without `--traces` leaves the earlier one."""
    if not path.exists():
        return False
    try:
        last = read_lines(path, TRACE_LINES)[-1]
    except ManyhandsError:  # for the one who makes its page to say
        return True
    told = last.get("answer")
    return not isinstance(told, Mapping) or told.get("text", record.text) == record.text


def _line(summary: Summary, record: Record, page: str | None) -> Listed:
    score = record.scores[str(summary.budgets[-1])]
    value = score["value"]
    said = record.error if record.error is not None else record.answer
    return Listed(
        sample=record.sample,
        repeat=record.repeat,
        group=group_of(record) or "",
        label=summary.label,
        verdict=verdict_of(summary, record),
        value=None if value is None else float(value),
        answer=_short("" if said is None else said),
        gold=_short(record.gold if isinstance(record.gold, str) else json.dumps(record.gold)),
        passes=record.forward_passes,
        page=page,
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"

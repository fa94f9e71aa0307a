"""The bundled model's exam: every row is one that `manyhands eval` takes, and its numbers add up."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import bundled_exam, summaries
from benchmarks.bundled_exam import EXAMS, Row, forced, stalled
from manyhands import bundled
from manyhands.cli.candidates import task_of
from manyhands.cli.exam_options import EXAM_METHODS
from manyhands.schema.choosing import choose
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.arithmetic.problem_list import parse_question
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.task import TaskOptions

ROWS = [row for exam in EXAMS.values() for row in exam()]
QUESTIONS = [sample.question for sample in make_task("arithmetic", TaskOptions(limit=30)).samples()]


def arguments(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(model=bundled.path(), records=folder, n=2, device="cpu", adapter=None)


def test_rows_have_names_of_their_own() -> None:
    for exam in EXAMS.values():
        rows = exam()
        assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_can_be_asked(row: Row, tmp_path: Path) -> None:
    _, samples = task_of(bundled_exam.options(row, arguments(tmp_path)))
    assert len(samples) == 2
    settings = choose(EXAM_METHODS[row.method].settings(), row.settings | {"budget": row.budget})
    assert sorted({*row.curve, row.budget}) == [*row.curve, settings.budget]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_one_worker_misses_twelve_passes(workers: int) -> None:
    found = [stalled(question, TeamSettings(workers=workers)).away for question in QUESTIONS]
    assert {away.worker for (away,) in found} == set(range(workers))
    assert {away.last - away.first + 1 for (away,) in found} == {12}
    assert found == [
        stalled(question, TeamSettings(workers=workers)).away for question in QUESTIONS
    ]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_claim_is_put_into_the_mouth_of_another(workers: int) -> None:
    """First claims go by most work: the problem named is the first of some other worker."""
    for question in QUESTIONS:
        ((place, words),) = forced(question, TeamSettings(workers=workers)).insertions.items()
        lines = parse_question(question) or []
        works = [len(re.findall("[+-]", line)) for line in lines]
        order = sorted(range(len(lines)), key=lambda k: -works[k])  # stable: by number among equals
        claimed = order.index(int(words[2:-1]) - 1)
        assert place[1] == 2
        assert claimed < workers
        assert claimed != place[0]


def test_a_row_is_sat_and_told(tmp_path: Path) -> None:
    questions: list[str] = []

    def changed(question: str, settings: TeamSettings) -> TeamSettings:
        questions.append(question)
        return replace(settings, check_every=0)

    row = Row(
        "two",
        *("arithmetic", "hogwild", {"workers": 2}),
        count=2,
        kind="bare",
        curve=(5, 90),
        budget=200,
        changed=changed,
    )
    results = bundled_exam.sit(row, arguments(tmp_path))
    assert [record.error for record in results.records] == [None, None]
    assert sorted(questions) == sorted(record.question for record in results.records)
    told = bundled_exam.line(row, results)
    assert (told["n"], told["accuracy"]) == (2, sum(r.value(200) for r in results.records) / 2)
    assert list(told["curve"]) == ["5", "90"]
    assert told["curve"]["5"] < 0.97
    assert told["first_good_budget"] in (90, None)
    assert sum(told["finish"].values()) == 2
    asked_again = bundled_exam.sit(row, arguments(tmp_path))  # all of it is on record
    lines = [[record.line() for record in asked.records] for asked in (results, asked_again)]
    assert json.loads(json.dumps(lines[0])) == lines[1]  # as they come back from the file
    assert len(questions) == 2
    small = summaries.line(results)
    assert (small["label"], small["num_records"], small["passes"]) == (
        *("two", 2),
        sum(record.forward_passes or 0 for record in results.records) / 2,
    )


def test_a_problem_is_solved_twice_if_two_workers_did() -> None:
    def record(*steps: tuple[int, str]) -> object:
        told = [{"worker": worker, "text": text} for worker, text in steps]
        return argparse.Namespace(steps=told, gold=[1, 2])

    alone = record((0, "#1: 3-2=1. #1 is 1."), (1, "#2 is 2."), (0, "#1 is 1."))
    assert bundled_exam.solved_twice(alone) == 0  # type: ignore[arg-type]
    both = record((0, "#1 is 1."), (1, "#1 is 1."))
    assert bundled_exam.solved_twice(both) == 0.5  # type: ignore[arg-type]

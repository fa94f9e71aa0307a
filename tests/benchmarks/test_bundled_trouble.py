"""Troubles of the bundled exam: they fall where they should, and their counts can tell good from bad."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.bundled_exam import grown
from benchmarks.bundled_trouble import (
    FIRST_PASS,
    LAST_PASS,
    claimed_again,
    corrections,
    dismissing,
    leaving,
    plant,
    planted,
)
from manyhands.evaluation.record import Record
from manyhands.replay.simulate import Simulation
from manyhands.school.arithmetic_team import ArithmeticTeam
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import EndSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.task import TaskOptions
from tests.replay.runs import LIST_PROMPT, list_text

SAMPLES = make_task("arithmetic", TaskOptions(limit=40, kind="wide")).samples()


def record(question: str, gold: Sequence[int], answer: str, *steps: str) -> Record:
    told: list[dict[str, Any]] = [
        {"worker": 0, "text": text, "first_pass": 10 * place + 1, "last_pass": 10 * place + 9}
        for place, text in enumerate(steps)
    ]
    found = argparse.Namespace(question=question, gold=list(gold), answer=answer, steps=told)
    return found  # type: ignore[return-value]


def test_workers_leave_in_the_middle_of_a_claim() -> None:
    """A scripted team stands in for a model: none of those who leave has said a result."""
    text = list_text()
    for sample in SAMPLES[:6]:
        rng = random.Random(sample.question)
        problems = problem_list(rng, 5, "wide")
        dismissals = leaving(problems.question, 4, 3)
        assert all(FIRST_PASS <= number <= LAST_PASS for number in dismissals)
        left = {worker for workers in dismissals.values() for worker in workers}
        assert len(left) == 3
        settings = TeamSettings(workers=4, check_every=0, budget=900, end=EndSettings(reply=False))
        names = LIST_PROMPT.team(4)
        team = ArithmeticTeam(problems, text, names, LIST_PROMPT, rng)
        strategy = hogwild(problems.question, text, settings, LIST_PROMPT)
        answer = Simulation(dismissing(strategy, dismissals), team).run()
        unfinished = [step for step in answer.steps if step.worker in left]
        assert {step.worker for step in unfinished} == left
        assert all(step.text.startswith("#") for step in unfinished)
        assert not any(" is " in step.text for step in unfinished)


@pytest.mark.parametrize("wrong", [True, False])
def test_what_is_planted_is_wrong_in_one_place_or_in_none(wrong: bool) -> None:
    for sample in SAMPLES:
        found = plant(sample.question, 4, wrong=wrong)
        false = [line for line in found.work if _value(line) != int(line.partition("=")[2])]
        assert len(false) == wrong
        assert (found.said != found.gold) == wrong
        assert found.gold == sample.gold[found.number - 1]
        assert 0 <= found.worker < 4
        if wrong:
            words = planted(sample.question, TeamSettings(workers=4)).insertions
            assert words == {(found.worker, 1): found.words}


def _value(equation: str) -> int:
    return int(eval(equation.partition("=")[0]))


def test_corrections_are_counted_one_by_one() -> None:
    sample = SAMPLES[0]
    found = plant(sample.question, 2)
    gold, place = list(sample.gold), found.number - 1
    wrong = [*gold[:place], found.said, *gold[place + 1 :]]
    boxes = [",".join(map(str, answers)) for answers in (gold, wrong)]
    claim = f"#{found.number}: 1+1=2. #{found.number} is"
    records = [
        record(sample.question, gold, boxes[0], f"{claim} {found.gold}, not {found.said}."),
        record(sample.question, gold, boxes[0], f"{claim} {found.gold}."),
        record(sample.question, gold, boxes[1], f"{claim} {found.gold + 1}, not {found.said}."),
        record(sample.question, gold, boxes[1], f"#{found.number + 10}: 1+1=2."),
    ]
    found_out = corrections(records, 2, wrong=True)
    assert found_out == {"noticed": 0.75, "said": 0.25, "corrected": 0.5}
    assert corrections(records[3:], 2, wrong=False)["noticed"] == 0


def test_a_right_result_that_is_claimed_again_is_a_false_alarm() -> None:
    quiet = record("", (7, -5), "7,-5", "#1: 3+4=7. #1 is 7.", "#2: 1-6=-5. #2 is -5.")
    alarmed = record("", (7, -5), "7,-5", "#1: 3+4=7. #1 is 7.", "#1: 3+4=7. #1 is 7.")
    mended = record("", (7, -5), "7,-5", "#1: 3+4=8. #1 is 8.", "#1: 3+4=7. #1 is 7, not 8.")
    assert claimed_again([quiet]) == claimed_again([mended]) == 0
    assert claimed_again([quiet, alarmed]) == pytest.approx(1 / 3, abs=1e-4)


def test_the_table_of_the_second_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row.name for row in grown()]
    lines = [{"name": name, "n": 256, "accuracy": 0.99, "first_good_budget": None} for name in rows]
    told = {line["name"]: line for line in lines}
    told["wide 12, 1"] |= {"first_good_budget": 700, "claimed_again": 0.002}
    told["wide 12, 8"] |= {"first_good_budget": 126, "claimed_again": 0.004}
    told["planted 5, 4"] |= {"noticed": 0.9, "said": 0.85, "corrected": 0.8}
    (tmp_path / "bundled_grown.json").write_text(json.dumps({"lines": lines}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    made = tables.grown()
    assert "| 12 | 99.0% | 99.0% | 99.0% | 99.0% | 99.0% | 99.0% |" in made
    assert "126 and 700, ratio 0.18." in made
    assert "in the worst line: 0.4%" in made
    assert "| planted 5, 4 | 256 | 99.0% | 90.0% | 85.0% | 80.0% |" in made
    assert "| one leaves 5, 2 | 256 | 99.0% |  |  |  |" in made

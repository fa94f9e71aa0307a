"""The scripted team solves every list, whatever comes in its way, and teaches no mistake."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Step
from manyhands.errors import OutOfMemory
from manyhands.replay.simulate import Lesson, Simulation
from manyhands.school.arithmetic_team import ArithmeticTeam, Mischief
from manyhands.strategies.base import Answer
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import Away, EndSettings, SoloSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import ProblemList, problem_list
from manyhands.tasks.graders import grade_list
from tests.replay.runs import LIST_PROMPT, list_text

TEXT = list_text()
NO_REPLY = EndSettings(reply=False)
HARMLESS = Mischief()
MISCHIEF = Mischief(random_claim=0.5, wrong_claim=0.2, late_notice=0.3)


@dataclass
class Run:
    problems: ProblemList
    team: ArithmeticTeam
    simulation: Simulation

    @property
    def solved_twice(self) -> int:
        return sum(len(by) - 1 for by in self.team.solved.values())

    def grade(self, answer: Answer) -> float:
        return grade_list(answer.answer, self.problems.gold).value


def team_of(
    seed: str, workers: int, layout: str, *, mischief: Mischief = HARMLESS, **settings: Any
) -> Run:
    rng = random.Random(seed)
    problems = problem_list(rng, rng.randint(2, 6), rng.choice(["bare", "word", "mixed"]))
    away = tuple(
        Away(rng.randrange(workers), first, first + rng.randint(0, 14))
        for first in (1, *(rng.randint(1, 120) for _ in range(3)))
    )
    forced = {
        (rng.randrange(workers), step): f" #{rng.randint(1, len(problems.problems))}:"
        for step in (1, 2, 3)
    }
    if settings.pop("pauses", False):
        settings["away"] = away
    if settings.pop("forced", False):
        settings["insertions"] = forced
    settings = {"budget": 3000, "check_every": 0, "end": NO_REPLY, **settings}
    names = LIST_PROMPT.team(workers)
    sees_desks = LAYOUTS[layout].sees_desks
    team = ArithmeticTeam(
        problems, TEXT, names, LIST_PROMPT, rng, sees_desks=sees_desks, mischief=mischief
    )
    chosen = TeamSettings(workers=workers, layout=layout, **settings)
    return Run(
        problems, team, Simulation(hogwild(problems.question, TEXT, chosen, LIST_PROMPT), team)
    )


TROUBLE: dict[str, dict[str, Any]] = {
    "none": {},
    "pauses": {"pauses": True},
    "forced claims": {"forced": True},
    "checks": {"check_every": 40},
    "mischief": {"mischief": MISCHIEF},
    "all": {"pauses": True, "forced": True, "check_every": 40, "mischief": MISCHIEF},
}


@pytest.mark.pairs
@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_list_is_solved(layout: str, workers: int, trouble: str) -> None:
    for seed in range(6):
        run = team_of(f"{seed}", workers, layout, **TROUBLE[trouble])
        answer = run.simulation.run()
        assert answer.finish_reason == "answer"
        assert run.grade(answer) == 1.0
        if LAYOUTS[layout].sees_desks and trouble in ("none", "pauses", "checks"):
            assert run.solved_twice == 0


@pytest.mark.parametrize(
    ("seed", "workers", "layout"),
    [
        (51, 4, "combined"),
        (277, 4, "combined"),
        (496, 4, "combined"),
        (396, 2, "combined"),
        (396, 2, "contiguous"),
    ],
)
def test_who_has_left_is_not_waited_for(seed: int, workers: int, layout: str) -> None:
    """Lists once left unsolved: a bare prefix of somebody gone passed for a claim about to come."""
    run = team_of(f"left/{seed}", workers, layout, **TROUBLE["all"])
    assert run.grade(run.simulation.run()) == 1.0


def test_work_is_done_twice_only_where_it_cannot_be_seen() -> None:
    unseen = [team_of(f"{seed}", 3, "interleaved") for seed in range(6)]
    for run in unseen:
        run.simulation.run()
    assert sum(run.solved_twice for run in unseen) > 0


def test_a_team_is_faster_than_one() -> None:
    passes = {
        workers: sum(
            team_of(f"{seed}", workers, "combined").simulation.run().forward_passes
            for seed in range(12)
        )
        for workers in (1, 2, 4)
    }
    assert passes[2] < 0.7 * passes[1]
    assert passes[4] < 0.8 * passes[2]


def test_what_a_team_writes() -> None:
    rng = random.Random(1)
    problems = problem_list(rng, 2, "bare")
    team = ArithmeticTeam(problems, TEXT, ["Alice", "Bob"], LIST_PROMPT, rng)
    settings = TeamSettings(check_every=0, budget=500, end=EndSettings(reply_tokens=64))
    strategy = hogwild(problems.question, TEXT, settings, LIST_PROMPT)
    answer = Simulation(strategy, team).run()
    first, second = problems.gold
    works = ["; ".join(problem.work) for problem in problems.problems]
    texts = [step.text for step in answer.steps]
    assert sorted(texts[:2]) == [
        f"#1: {works[0]}. #1 is {first}.",
        f"#2: {works[1]}. #2 is {second}.",
    ]
    assert texts[-1] == f"All solved: \\boxed{{{first},{second}}}"
    assert answer.answer == f"{first},{second}"
    assert answer.text == f"The answers, in order: {first}, {second}."


def test_one_alone() -> None:
    for seed in range(5):
        rng = random.Random(seed)
        problems = problem_list(rng, 4, "mixed")
        team = ArithmeticTeam(problems, TEXT, ["writer"], LIST_PROMPT, rng)
        strategy = sequential(problems.question, TEXT, SoloSettings(budget=2000), LIST_PROMPT)
        answer = Simulation(strategy, team).run()
        assert grade_list(answer.answer, problems.gold).value == 1.0
        assert answer.finish_reason == "answer"


@pytest.mark.parametrize("budget", [3, 20, 45, 70])
def test_the_finisher_knows_what_is_computed(budget: int) -> None:
    """At the budget: right where a result stands written, a question mark elsewhere, never wrong."""
    for seed in range(5):
        run = team_of(f"{seed}", 2, "combined", budget=budget, snapshots=(2,))
        answer = run.simulation.run()
        assert set((answer.snapshots[2] or "").split(",")) == {"?"}
        found = (answer.answer or "").split(",")
        assert len(found) == len(run.problems.gold)
        for entry, gold in zip(found, run.problems.gold, strict=True):
            assert entry in ("?", str(gold))
        if answer.finish_reason == "budget" and budget <= 3:
            assert set(found) == {"?"}


# -- what is learned -----------------------------------------------------------------------------


def lesson_of(run: Run) -> tuple[Lesson, list[str | None]]:
    """The lesson, and who wrote the token of each row."""
    writers: list[str | None] = []
    predict = run.simulation.predict

    def watched(step: Step) -> tuple[tuple[int, ...], tuple[float, ...]]:
        writers.extend(row.writer for row in step.rows)
        return predict(step)

    run.simulation.predict = watched
    return run.simulation.lesson(), writers


@pytest.mark.parametrize("layout", ["combined", "contiguous"])
def test_every_written_token_is_learned_and_no_other(layout: str) -> None:
    run = team_of("1", 3, layout, check_every=50, snapshots=(9,), end=EndSettings(reply_tokens=64))
    lesson, writers = lesson_of(run)
    assert len(writers) == len(lesson.targets) == len(lesson.weights)
    assert [weight > 0 for weight in lesson.weights] == [writer is not None for writer in writers]
    assert {"Alice", "Bob", "Carol", "finisher", "reply", None} == set(writers)
    assert lesson.num_tokens == lesson.merged.plan.num_tokens


def test_a_wrong_claim_is_not_learned() -> None:
    run = team_of("3", 2, "combined", mischief=Mischief(wrong_claim=1.0, late_notice=1.0))
    claims = 0
    simulation, team = run.simulation, run.team
    predict = simulation.predict
    digits = {TEXT.encode(str(n))[0] for n in range(1, 10)}
    sign = TEXT.encode(" #")[0]

    def watched(step: Step) -> tuple[tuple[int, ...], tuple[float, ...]]:
        nonlocal claims
        tokens, weights = predict(step)
        for row, token, weight in zip(step.rows, tokens, weights, strict=True):
            claiming = row.feed[-1] == sign and row.writer in team.actors
            if claiming and token in digits and team.actors[str(row.writer)].problem is None:
                claims += 1
                assert weight == 0.0
        return tokens, weights

    simulation.predict = watched
    for step in simulation.steps():
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        if claims > 5:
            break
    assert claims > 5


def test_an_overlooked_duplicate_is_not_learned() -> None:
    """The token that a worker should have said, `taken`, is not replaced by praise for going on."""
    plain = team_of("7", 4, "combined", forced=True)
    late = team_of("7", 4, "combined", forced=True, mischief=Mischief(late_notice=1.0))
    lesson, writers = lesson_of(late)
    unlearned = [
        writer for writer, weight in zip(writers, lesson.weights, strict=True) if not weight
    ]
    assert any(writer is not None for writer in unlearned)
    plain_lesson, plain_writers = lesson_of(plain)
    assert [w > 0 for w in plain_lesson.weights] == [w is not None for w in plain_writers]


def test_a_lesson_too_long_says_so() -> None:
    with pytest.raises(OutOfMemory):
        team_of("1", 2, "combined").simulation.lesson(max_tokens=60)

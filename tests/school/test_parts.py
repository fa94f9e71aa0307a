"""The scripted writers work through their parts in every method, and what they teach is right."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from manyhands.cache.step import Step
from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.replay.simulate import Simulation
from manyhands.school.parts import (
    InAttempts,
    InBranches,
    InThreads,
    ListAttempts,
    ListParts,
    Parts,
    Sequentially,
    StudentParts,
    finished,
)
from manyhands.school.scripted import Script, ScriptedWriters
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import branches
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    BranchSettings,
    EndSettings,
    SkeletonSettings,
    SoloSettings,
)
from manyhands.strategies.skeleton import skeleton
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.retrieval import RetrievalQuestion, retrieval
from tests.replay.runs import LIST_PROMPT, list_text

TEXT = list_text()
SILENT = EndSettings(reply=False)
BRANCHES = BranchPrompt(rules="Solve each part of this in a branch.\n\n{question}")
THREADS = SkeletonPrompt(
    rules="First list the parts of this.\n\n{question}",
    opening="",
    point="-{title}",
    thread="\n{title}:",
    stop="\n",
    join="\n\nTogether:\n",
)


def methods(question: str, parts: Parts, budget: int = 4000) -> Iterator[tuple[Strategy, Script]]:
    """Every way in which parts are worked through."""
    solo = SoloSettings(budget=budget, end=SILENT)
    yield sequential(question, TEXT, solo, LIST_PROMPT), Sequentially(parts)
    for join in JOINS:
        settings = BranchSettings(budget=budget, join=join, max_branches=32, end=SILENT)
        yield branches(question, TEXT, settings, BRANCHES), InBranches(parts)
    for workers in (0, 2):
        chosen = SkeletonSettings(workers=workers, budget=budget, end=SILENT)
        yield skeleton(question, TEXT, chosen, THREADS), InThreads(parts, THREADS)


def answers(question: str, parts: Parts, budget: int = 4000) -> list[Answer]:
    return [
        Simulation(strategy, ScriptedWriters(TEXT, script)).run()
        for strategy, script in methods(question, parts, budget)
    ]


@pytest.mark.parametrize("count", [2, 9, 30])
@pytest.mark.parametrize("brief", [False, True])
def test_students_are_found(count: int, brief: bool) -> None:
    asked = retrieval(random.Random(count), count)
    for answer in answers(asked.question, StudentParts(asked, brief=brief)):
        assert answer.answer == asked.boxed
        assert answer.finish_reason in ("answer", "stopped")


@pytest.mark.parametrize("count", [2, 5, 8])
def test_lists_are_solved(count: int) -> None:
    problems = problem_list(random.Random(count), count, "mixed")
    gold = ",".join(map(str, problems.gold))
    assert [a.answer for a in answers(problems.question, ListParts(problems))] == [gold] * 6


def test_parts_at_the_same_time_need_fewer_passes() -> None:
    asked = retrieval(random.Random(1), 30)
    alone, *together, two_threads = answers(asked.question, StudentParts(asked))
    assert all(answer.forward_passes < 0.3 * alone.forward_passes for answer in together)
    assert two_threads.forward_passes < 0.7 * alone.forward_passes
    brief, *_ = answers(asked.question, StudentParts(asked, brief=True))
    assert brief.forward_passes < 0.5 * alone.forward_passes


def test_what_is_written() -> None:
    asked = retrieval(random.Random(3), 3)
    (student, *_), low, high = asked.students, asked.low / 100, asked.high / 100
    told = [answer.text for answer in answers(asked.question, StudentParts(asked))]
    for text in told:
        assert f"has a GPA of {student.gpa}, which is" in text
        assert text.endswith(f"Answer: \\boxed{{{asked.boxed}}}")
        verdicts = [line for line in text.split("\n") if ", so " in line]
        assert len(verdicts) == 3
        for line, one in zip(verdicts, asked.students, strict=True):
            matches = line.endswith(f", so yes ({one.name}).")
            assert matches or line.endswith(", so no.")
            says = "between" if matches else "above" if " above " in line else "below"
            gpa = one.hundredths / 100
            assert says == ("below" if gpa < low else "above" if gpa > high else "between")
    for answer in answers(asked.question, StudentParts(asked, brief=True)):
        for one in asked.students:
            verdict = f"yes ({one.name})" if one.name in asked.gold else "no"
            assert f"{one.gpa} {verdict}\n" in answer.text


@pytest.mark.parametrize("budget", [3, 20, 60, 100])
def test_who_is_asked_early_tells_what_is_known(budget: int) -> None:
    problems = problem_list(random.Random(7), 5, "bare")
    for answer in answers(problems.question, ListParts(problems), budget):
        for entry, gold in zip((answer.answer or "").split(","), problems.gold, strict=True):
            assert entry in ("?", str(gold))
    asked = retrieval(random.Random(7), 8)
    for answer in answers(asked.question, StudentParts(asked), budget):
        assert set((answer.answer or "").split(",")) <= {*asked.gold, "none"}


def lessons(asked: RetrievalQuestion) -> Iterator[tuple[Simulation, list[str | None]]]:
    for strategy, script in methods(asked.question, StudentParts(asked)):
        writers: list[str | None] = []
        teacher = ScriptedWriters(TEXT, script)

        def watched(
            step: Step,
            writers: list[str | None] = writers,
            teacher: ScriptedWriters = teacher,
        ) -> tuple[tuple[int, ...], tuple[float, ...]]:
            writers.extend(row.writer for row in step.rows)
            return teacher(step)

        yield Simulation(strategy, watched), writers


def test_every_written_token_is_learned_and_no_other() -> None:
    for simulation, writers in lessons(retrieval(random.Random(2), 4)):
        lesson = simulation.lesson()
        assert len(writers) == len(lesson.targets)
        assert [w > 0 for w in lesson.weights] == [writer is not None for writer in writers]
        decisions = {TEXT.encode(word)[0] for word in (" yes", " no")}
        for target, weight in zip(lesson.targets, lesson.weights, strict=True):
            if int(target) in decisions:
                assert weight == 3.0


@pytest.mark.parametrize("slips", [0.0, 1.0])
@pytest.mark.parametrize("size", [2, 5, 9])
def test_attempts_solve_each_problem_by_its_own_number(size: int, slips: float) -> None:
    """Slips of one of them are learned by nobody."""
    problems = problem_list(random.Random(size), size, "mixed")
    attempts = ListAttempts(problems, 3, random.Random(1), slips)
    answers, wrong = [problem.answer for problem in problems.problems], 0
    for attempt in range(3):
        said = attempts(attempt)
        text = "".join(one.words for one in said)
        solved = re.findall(r" #(\d+):(.*?)=(\d+)\. #(\d+) is (\d+)\.\n\n", text)
        assert sorted(int(number) for number, *_ in solved) == list(range(1, size + 1))
        found = {}
        for number, _, last, again, told in solved:
            assert (number, last) == (again, told)
            found[int(number) - 1] = int(told)
        assert text.endswith(
            " All solved: \\boxed{" + ",".join(str(found[k]) for k in range(size)) + "}."
        )
        slipped = [k for k in range(size) if found[k] != answers[k]]
        assert attempts.is_right(attempt) == (not slipped)
        assert sum(one.weight == 0 and one.words.isdigit() for one in said) == len(slipped)
        wrong += len(slipped)
    assert bool(wrong) == bool(slips)


@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_whoever_ends_one_attempt_knows_what_that_one_has_solved(attempt: int) -> None:
    problems = problem_list(random.Random(3), 4, "mixed")
    parts = ListParts(problems)
    script = InAttempts(parts, ListAttempts(problems, 3, random.Random(1), 0.0))
    done = frozenset({0 * 4 + 1, 1 * 4 + 2, 1 * 4 + 0, 2 * 4 + 3})
    own = [{1}, {0, 2}, {3}][attempt]
    assert script(f"attempt {attempt + 1} finisher", "", done) == finished(parts, own)
    assert script("finisher", "", done) == finished(parts, {0, 1, 2, 3})

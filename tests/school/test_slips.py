"""A slip is one mistake, and everything behind it is right."""

from __future__ import annotations

import random

import pytest

from manyhands.school.slips import Slip, slip_in, written_step
from manyhands.tasks.arithmetic.bare import wide_problem
from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.words import word_problem


def _is_true(equation: str) -> bool:
    left, _, right = equation.partition("=")
    return bool(eval(left) == int(right))


@pytest.mark.parametrize("kind", ["wide", "word"])
def test_one_place_is_wrong_and_so_is_the_answer(kind: str) -> None:
    rng = random.Random(kind)
    places = set[bool]()
    for _ in range(300):
        problem: Problem = wide_problem(rng) if kind == "wide" else word_problem(rng)
        slip = slip_in(rng, problem)
        if slip is None:
            continue
        assert slip.answer != problem.answer
        assert len(slip.work) == len(problem.work)
        false = [place for place, equation in enumerate(slip.work) if not _is_true(equation)]
        said_wrong = slip.answer != int(slip.work[-1].partition("=")[2])
        assert (false, said_wrong) in (([slip.place], False), ([], True))
        assert said_wrong == (slip.place == len(problem.work))
        places.add(said_wrong)
    assert places == {True, False}


def test_a_step_as_a_worker_writes_it() -> None:
    slip = Slip(("84+29=123", "123-38=85"), 85, 0)
    assert written_step(3, slip.work, slip.answer) == " #3: 84+29=123; 123-38=85. #3 is 85."

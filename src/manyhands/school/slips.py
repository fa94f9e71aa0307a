"""Slips: a problem worked out with one mistake, for a team to find.

    84+29=113; 113-38=75. #3 is 75.      the work
    84+29=123; 123-38=85. #3 is 85.      one wrong sum, and all that follows from it
    84+29=113; 113-38=75. #3 is 57.      a wrong result behind right work

A slip changes one number; what is computed from it is right. So a reader finds it in one place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

from manyhands.tasks.arithmetic.problem import Problem

_EQUATION = re.compile(r"(-?\d+)([-+*])(\d+)=(-?\d+)")
_WRONG_RESULT = 0.15  # of all slips: the work is right, the result is not
_FURTHEST = 999  # no number of a slip is larger, so that it looks like any other


@dataclass(frozen=True)
class Slip:
    """Work with one mistake. `place`: the equation that is wrong, or their number: the result is.

    `is_cut`: the mistake is noticed at once, and nothing is written behind its equation.
    """

    work: tuple[str, ...]
    answer: int
    place: int
    is_cut: bool = False

    def cut(self) -> Slip:
        """The same slip, noticed at once; a wrong result behind right work is at the end as it is."""
        return replace(self, is_cut=self.place < len(self.work))


def slip_in(rng: Random, problem: Problem) -> Slip | None:
    """A slip in this problem; None if the draw has no consequence for its answer."""
    if rng.random() < _WRONG_RESULT:
        return Slip(problem.work, _misread(rng, problem.answer), len(problem.work))
    place = rng.randrange(len(problem.work))
    work, changed = list(problem.work), dict[int, int]()
    for number in range(place, len(work)):
        left, sign, right, result = _parts(work[number])
        # of a bare line the first number alone is a result of what comes before
        now = (
            changed.get(left, left),
            right if problem.kind == "bare" else changed.get(right, right),
        )
        if number > place and now == (left, right):
            continue
        wrong = _misread(rng, result) if number == place else _computed(now[0], sign, now[1])
        if abs(wrong) > _FURTHEST or now[1] < 0 or (sign == "*" and min(now) < 0):
            return None
        changed[result] = wrong
        work[number] = f"{now[0]}{sign}{now[1]}={wrong}"
    answer = _parts(work[-1])[3]
    return None if answer == problem.answer else Slip(tuple(work), answer, place)


def written_step(number: int, work: tuple[str, ...], answer: int) -> str:
    """A whole step, as a worker writes it: ` #3: 84+29=113; 113-38=75. #3 is 75.`; `number` from 1."""
    return f" #{number}: {'; '.join(work)}. #{number} is {answer}."


def _misread(rng: Random, number: int) -> int:
    """Another number: off by a carry, with one digit changed, or anything of its size."""
    while True:
        roll, size = rng.random(), len(str(abs(number)))
        if roll < 0.4:
            wrong = number + rng.choice((-100, -20, -10, -2, -1, 1, 2, 10, 20, 100))
        elif roll < 0.8:
            digits = list(str(abs(number)))
            digits[rng.randrange(size)] = str(rng.randint(0, 9))
            wrong = int("".join(digits)) * (-1 if number < 0 else 1)
        else:
            wrong = rng.randint(0, 10 ** min(3, size + 1) - 1) * rng.choice((1, 1, 1, -1))
        if wrong != number and abs(wrong) <= _FURTHEST:
            return wrong


def _parts(equation: str) -> tuple[int, str, int, int]:
    found = _EQUATION.fullmatch(equation)
    assert found is not None, f"{equation!r} is an equation of a problem's work"
    return int(found[1]), found[2], int(found[3]), int(found[4])


def _computed(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]

"""How a story with gaps becomes a problem.

    Template("lend", "{who} had {a:20-99} {things} and lent {friend} {b:2-60}. How …?", "a - b")

A gap is a person ({who}, {friend}, {third}: three different names), the {things} of the story, or
a number, with its range where it is first told ({a:20-99}).
Numbers begin at 2, so that every noun stays plural. The work is a list of operations, separated by
semicolons; their results are called p, q and r, for use by later ones: "a * b; p - c". An operand is a number where
the story says it in words ("twice": "a * 2").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import add, mul, sub
from random import Random

from manyhands.tasks.arithmetic.problem import LARGEST_RESULT, Problem
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS

PLACEHOLDER = re.compile(r"\{([a-z]+)(?::([0-9]+)-([0-9]+))?\}")

PEOPLE = ("who", "friend", "third")
RESULTS = ("p", "q", "r")

_NAME, _THINGS, _NUMBER = "[A-Z][a-z]+", "[a-z]+", "[1-9][0-9]*"  # the forms of gaps

_OPERATORS = {"+": add, "-": sub, "*": mul}


@dataclass(frozen=True)
class Template:
    """A story with gaps, and the operations that solve it."""

    name: str
    text: str
    work: str
    held_out: bool = False

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The smallest and the largest value of each number, by its letter."""
        return {
            gap[1]: (int(gap[2]), int(gap[3])) for gap in PLACEHOLDER.finditer(self.text) if gap[2]
        }

    @property
    def num_steps(self) -> int:
        """How many operations the work has."""
        return len(self.work.split(";"))

    def problem(
        self, rng: Random, names: Sequence[str] = NAMES, things: Sequence[str] = THINGS
    ) -> Problem:
        """Fill the gaps. Numbers are drawn again until every step stays in the small world."""
        work: tuple[str, ...] | None = None
        while work is None:
            numbers = {letter: rng.randint(*bounds) for letter, bounds in self.ranges.items()}
            work = self._solve(numbers)
        gaps = {letter: str(number) for letter, number in numbers.items()}
        gaps.update(zip(PEOPLE, rng.sample(names, len(PEOPLE)), strict=True))
        gaps["things"] = rng.choice(things)
        text = PLACEHOLDER.sub(lambda gap: gaps[gap[1]], self.text)
        answer = int(work[-1].partition("=")[2])
        return Problem(text, work, answer, kind="word", template=self.name)

    def tells(self, story: str) -> bool:
        """Whether the story is this one, with any names, things and numbers in its gaps."""
        found = _pattern(self.text).fullmatch(story)
        if found is None:
            return False
        gaps = found.groupdict()
        people = [gaps[person] for person in PEOPLE if person in gaps]
        return (
            len(set(people)) == len(people)
            and set(people) <= set(NAMES)
            and gaps.get("things", THINGS[0]) in THINGS
        )

    def _solve(self, numbers: dict[str, int]) -> tuple[str, ...] | None:
        """The equations for these numbers, or None if one of them is out of bounds."""
        values = dict(numbers)
        equations = []
        for name, operation in zip(RESULTS, self.work.split(";"), strict=False):
            left, sign, right = operation.split()
            a, b = (values[x] if x in values else int(x) for x in (left, right))
            result = values[name] = _OPERATORS[sign](a, b)
            if not 1 <= result <= LARGEST_RESULT or (sign == "*" and not _small_product(a, b)):
                return None
            equations.append(f"{a}{sign}{b}={result}")
        return tuple(equations)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """The text with a group for each gap; a gap that is told again repeats what it had."""
    between, *rest = PLACEHOLDER.split(text)
    pattern, told = re.escape(between), set()
    for gap, between in zip(rest[::4], rest[3::4], strict=True):
        looks = _NAME if gap in PEOPLE else _THINGS if gap == "things" else _NUMBER
        pattern += f"(?P={gap})" if gap in told else f"(?P<{gap}>{looks})"
        pattern += re.escape(between)
        told.add(gap)
    return re.compile(pattern)


def _small_product(a: int, b: int) -> bool:
    """Only products that a child knows by heart: 2 to 9 times 2 to 12."""
    return 2 <= min(a, b) <= 9 and 2 <= max(a, b) <= 12

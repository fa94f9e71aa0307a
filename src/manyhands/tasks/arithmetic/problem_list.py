"""Several independent problems as one question, the form in which a team meets them.

    Solve these problems and box the answers in order, separated by commas:
    1. 84 + 29 - 38
    2. 12 + 30 - 4

`problem_list` writes such questions with their gold answers; `parse_question` reads the lines back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.bare import bare_problem, solve_bare, wide_problem
from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.words import Stories, word_problem

__all__ = [
    "INTRODUCTION",
    "ListKind",
    "ProblemList",
    "ask",
    "parse_question",
    "problem_list",
    "solve_bare",
]

ListKind = Literal["bare", "wide", "word", "mixed"]

INTRODUCTION = "Solve these problems and box the answers in order, separated by commas:"

_NUMBERED = re.compile(r"([0-9]{1,6})\.[ \t]+(\S.*)")


@dataclass(frozen=True)
class ProblemList:
    """The problems of one question, in the order of their numbers."""

    problems: tuple[Problem, ...]

    @property
    def question(self) -> str:
        """The text that a user would type."""
        return ask([problem.text for problem in self.problems])

    @property
    def gold(self) -> tuple[int, ...]:
        """The right answers, in order."""
        return tuple(problem.answer for problem in self.problems)


def ask(lines: Sequence[str]) -> str:
    """The question that lists these lines, numbered from 1."""
    return "\n".join([INTRODUCTION, *(f"{n}. {line}" for n, line in enumerate(lines, start=1))])


def problem_list(
    rng: Random, count: int, kind: ListKind, stories: Stories = "known"
) -> ProblemList:
    """`count` fresh problems, no two alike; `wide`: bare lines of a wider world; `stories`: of which word problems are made (`words.py`)."""
    if count < 1:
        raise InvalidRequest(f"a list of {count} problems was asked for", hint="ask for 1 or more")
    problems: dict[str, Problem] = {}  # by text
    while len(problems) < count:
        problem = _one_problem(rng, kind, stories)
        problems.setdefault(problem.text, problem)
    return ProblemList(tuple(problems.values()))


def _one_problem(rng: Random, kind: ListKind, stories: Stories) -> Problem:
    wordy = rng.random() < 0.5 if kind == "mixed" else kind == "word"
    if wordy:
        return word_problem(rng, stories)
    return wide_problem(rng) if kind == "wide" else bare_problem(rng)


def parse_question(question: str) -> list[str] | None:
    """The numbered lines of a question, without their numbers; None if it is not such a list.

    Spaces around lines, blank lines and any introduction are welcome; numbers must run 1, 2, 3, …
    and nothing may follow the last line, since it could change what is asked.
    """
    lines = [line.strip() for line in question.strip().splitlines() if line.strip()]
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    first = next((i for i, match in enumerate(matches) if match), len(lines))
    found = [match for match in matches[first:] if match]
    in_order = all(int(match[1]) == n for n, match in enumerate(found, start=1))
    if not found or len(found) < len(lines) - first or not in_order:
        return None
    return [match[2] for match in found]

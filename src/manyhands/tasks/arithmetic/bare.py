"""Bare arithmetic: one line of additions and subtractions, such as `84 + 29 - 38`.

`bare_problem` writes such lines; `parse_bare` and `solve_bare` read any of them back, also those
that a user typed, without trusting a general evaluator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.problem import LARGEST_RESULT, SMALLEST_RESULT, Problem

SMALLEST_OPERAND, LARGEST_OPERAND = 1, 99
FEWEST_OPERATIONS, MOST_OPERATIONS = 2, 5
WIDE_OPERATIONS, WIDE_LARGEST, WIDE_RESULT = (1, 6), 999, 999
_WIDE_LARGE = 0.25  # of the operands of wide lines; the others are up to LARGEST_OPERAND

# Nine digits are far beyond the small world and keep reading linear for hostile input.
_LINE = re.compile(r"\s*[0-9]{1,9}(?:\s*[+-]\s*[0-9]{1,9})*\s*")
_TERM = re.compile(r"([+-]?)\s*([0-9]+)")


@dataclass(frozen=True)
class Bare:
    """A line read back: the first operand, then pairs of a sign ("+" or "-") and an operand."""

    first: int
    rest: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The line as `bare_problem` spells it: single spaces around operators."""
        return " ".join([str(self.first), *(f"{sign} {operand}" for sign, operand in self.rest)])

    @property
    def operands(self) -> tuple[int, ...]:
        """All numbers of the line, in order."""
        return (self.first, *(operand for _, operand in self.rest))

    @property
    def results(self) -> tuple[int, ...]:
        """The running result after each operation, in order."""
        totals = [self.first]
        for sign, operand in self.rest:
            totals.append(totals[-1] + operand if sign == "+" else totals[-1] - operand)
        return tuple(totals[1:])

    @property
    def work(self) -> tuple[str, ...]:
        """One equation per operation, such as "84+29=113"."""
        before = (self.first, *self.results)
        return tuple(
            f"{left}{sign}{operand}={result}"
            for left, (sign, operand), result in zip(before, self.rest, self.results, strict=False)
        )


def bare_problem(rng: Random, num_operations: int | None = None) -> Problem:
    """A fresh bare problem of 2 to 5 operations (uniformly many, unless given)."""
    if num_operations is None:
        num_operations = rng.randint(FEWEST_OPERATIONS, MOST_OPERATIONS)
    if not FEWEST_OPERATIONS <= num_operations <= MOST_OPERATIONS:
        raise InvalidRequest(
            f"a bare problem of {num_operations} operations was asked for",
            hint=f"choose {FEWEST_OPERATIONS} to {MOST_OPERATIONS} operations",
        )
    first = total = rng.randint(SMALLEST_OPERAND, LARGEST_OPERAND)
    rest = []
    for _ in range(num_operations):
        sign, operand = _next_term(rng, total)
        total = total + operand if sign == "+" else total - operand
        rest.append((sign, operand))
    line = Bare(first, tuple(rest))
    return Problem(line.text, line.work, answer=total, kind="bare", template="bare")


def wide_problem(rng: Random, num_operations: int | None = None) -> Problem:
    """A fresh line of 1 to 6 operations, with every result from -999 to 999.

    One operand in four has up to three digits, the others have up to two.
    """
    fewest, most = WIDE_OPERATIONS
    count = rng.randint(fewest, most) if num_operations is None else num_operations
    if not fewest <= count <= most:
        raise InvalidRequest(
            f"a wide problem of {count} operations was asked for",
            hint=f"choose {fewest} to {most} operations",
        )
    first = total = _wide_operand(rng)
    rest: list[tuple[str, int]] = []
    while len(rest) < count:
        sign, operand = rng.choice("+-"), _wide_operand(rng)
        after = total + operand if sign == "+" else total - operand
        if abs(after) <= WIDE_RESULT:
            total = after
            rest.append((sign, operand))
    line = Bare(first, tuple(rest))
    return Problem(line.text, line.work, answer=total, kind="bare", template="bare")


def _wide_operand(rng: Random) -> int:
    return rng.randint(
        SMALLEST_OPERAND, WIDE_LARGEST if rng.random() < _WIDE_LARGE else LARGEST_OPERAND
    )


def _next_term(rng: Random, total: int) -> tuple[str, int]:
    """An operation that keeps the running total in range."""
    room = {"+": LARGEST_RESULT - total, "-": total - SMALLEST_RESULT}
    sign = rng.choice([sign for sign in room if room[sign] >= SMALLEST_OPERAND])
    return sign, rng.randint(SMALLEST_OPERAND, min(LARGEST_OPERAND, room[sign]))


def parse_bare(text: str) -> Bare | None:
    """Read a line of additions and subtractions of whole numbers; None if it is not one."""
    if not _LINE.fullmatch(text):
        return None
    (_, first), *rest = _TERM.findall(text)
    return Bare(int(first), tuple((sign, int(operand)) for sign, operand in rest))


def solve_bare(text: str) -> int | None:
    """The exact value of a bare line, or None if the text is not one."""
    line = parse_bare(text)
    return None if line is None else (line.first, *line.results)[-1]

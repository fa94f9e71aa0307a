r"""Grades programs: a program is right if it passes every test of its problem.

    PrintTest("2 3\n", "5\n")                      # text in, text out
    CallTest("add", [2, 3], 5)                # a function, or a method of the class Solution

Each test is one run in the sandbox (`sandbox/program.py`), stopped at the first that fails. What a program
printed or returned is compared here, where it cannot reach: it never learns what was expected.

Printed lines count without blanks at their ends, and a line of numbers by its values: 2.50 is 2.5. The
standard library is all that a program finds; names that answers to such problems use without an import
(`List`, `deque`, `sqrt`) are there, as in the evaluations of the datasets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.sandbox import Call, Failed, Limits, find_isolation, run_program
from manyhands.tasks.graders import Score
from manyhands.tasks.task import TaskOptions

SECONDS_PER_TEST = 6.0  # as in LiveCodeBench
LIMITS = Limits(
    seconds=SECONDS_PER_TEST, memory_bytes=2 << 30, output_bytes=16 << 20, open_files=32
)
_BRIEF = 60  # characters that an explanation quotes
# As a program prints one. Exponents beyond four digits would be beyond any float, and slow.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_PRELUDE = """
import sys, math, re, string, random, itertools, functools, collections, heapq, bisect, operator
from math import *
from typing import *
from collections import *
from itertools import *
from functools import *
from heapq import *
from bisect import *
from builtins import *
sys.setrecursionlimit(50_000)
"""


@dataclass(frozen=True)
class PrintTest:
    """The standard input, and the output that has to be printed."""

    given: str
    expected: str


@dataclass(frozen=True)
class CallTest:
    """A call, and the value that it has to return, both in JSON."""

    function: str
    arguments: list[Any]
    expected: Any


def check_allowed(task: str, options: TaskOptions) -> None:
    """InvalidRequest unless the user has allowed programs of the model, and they can be closed in here."""
    if not options.allow_code:
        raise InvalidRequest(
            f"the task {task} runs programs that the model writes",
            hint="allow that with --allow-code; docs/tasks.md says how they are closed in",
        )
    find_isolation()


def grade_program(
    program: str | None,
    tests: Iterable[PrintTest | CallTest],
    *,
    tolerance: float = 0.0,
    limits: Limits = LIMITS,
) -> Score:
    """1 if the program passes every test, else 0 with the first that it fails.

    `tolerance`: how far a printed number may be off, in parts of the expected one. InvalidRequest without a test.
    """
    if program is None or not program.strip():
        return Score(0.0, None, "no program")
    passed = 0
    for test in tests:
        fault = _fault(program, test, tolerance, limits)
        if fault:
            return Score(0.0, program, f"test {passed + 1}: {fault}")
        passed += 1
    if not passed:
        raise InvalidRequest("a program has no tests", hint="grade it with one test or more")
    return Score(1.0, program, f"passes {passed} of {passed} tests")


def same_output(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Whether the lines are the same, numbers by their value."""
    found, wanted = _lines(printed), _lines(expected)
    return len(found) == len(wanted) and all(
        one == other or _same_numbers(one.split(), other.split(), tolerance)
        for one, other in zip(found, wanted, strict=True)
    )


def _fault(program: str, test: PrintTest | CallTest, tolerance: float, limits: Limits) -> str:
    """Why the test fails; empty if it is passed."""
    if isinstance(test, PrintTest):
        outcome = run_program(program, test.given, limits, prelude=_PRELUDE)
        if isinstance(outcome, Failed):
            return f"the program {outcome.why}"
        if same_output(outcome.printed, test.expected, tolerance):
            return ""
        return f"printed {_brief(outcome.printed)}, expected {_brief(test.expected)}"
    call = Call(test.function, test.arguments)
    outcome = run_program(program, limits=limits, call=call, prelude=_PRELUDE)
    if isinstance(outcome, Failed):
        return f"the program {outcome.why}"
    if outcome.value == test.expected:
        return ""
    return f"returned {_brief(repr(outcome.value))}, expected {_brief(repr(test.expected))}"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(found: list[str], wanted: list[str], tolerance: float) -> bool:
    if len(found) != len(wanted):
        return False
    for one, other in zip(found, wanted, strict=True):
        if one == other:
            continue
        if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
            return False
        value, expected = Decimal(one), Decimal(other)
        if abs(value - expected) > Decimal(tolerance) * abs(expected):
            return False
    return True


def _brief(text: str) -> str:
    shown = " / ".join(_lines(text)) or "nothing"
    return shown if len(shown) <= _BRIEF else shown[: _BRIEF - 1] + "…"

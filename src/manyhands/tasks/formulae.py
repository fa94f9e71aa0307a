r"""Grades formulae by their meaning.

`\frac{1}{2}` and `0.5`, `1 \pm \sqrt{19}` and `1-\sqrt{19}, 1+\sqrt{19}`: whether a boxed formula is
the right one is a question for computer algebra (MATH-500, LIMO). That algebra can run for ever and eat
all memory, so it runs in a sandbox (`manyhands.sandbox`); a formula that could not be compared is graded
0, and the score says why. What needs no algebra never gets there: equal texts, and two plain numbers.

    FormulaGrader().grade("0.5", r"\frac{1}{2}")  # 1.0, "the same number"
"""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec

from manyhands.errors import InvalidRequest
from manyhands.sandbox import Failed, Limits, Sandbox
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.tasks.numbers import BETWEEN_DIGITS_NOT, read_number

SECONDS = 10.0  # for one comparison
LONGEST = 2000  # characters of an answer; a formula that is longer is a text


class FormulaGrader:
    """Grades formulae. Safe to be used by several threads, and to travel to another process."""

    def __init__(
        self, seconds: float = SECONDS, function: str = "manyhands.tasks.algebra:compare"
    ) -> None:
        self._sandbox = Sandbox(function, Limits(seconds))

    def grade(self, answer: str | None, gold: str, tolerance: float = 0.0) -> Score:
        """1 if the boxed `answer` means what `gold` means, else 0 with the reason.

        `tolerance`: how far a number may be from a gold number; 0 wants them equal.
        """
        if answer is None:
            return Score(0.0, None, "no answer")
        answer, gold = answer.strip(), gold.strip()
        if _plain(answer) == _plain(gold):
            return Score(1.0, answer, "the same text")
        found, expected = read_number(answer), read_number(gold)
        if found is not None and expected is not None:
            right = abs(found - expected) <= Fraction(tolerance)
            why = "within the tolerance" if tolerance else "the same number"
            return Score(float(right), answer, why if right else f"expected {gold}")
        if len(answer) > LONGEST:
            return Score(0.0, answer[:LONGEST], f"a text of {len(answer)} characters, no formula")
        check_installed()
        outcome = self._sandbox.run(gold, answer, tolerance)
        if isinstance(outcome, Failed):
            return Score(0.0, answer, f"the comparison with {gold} {outcome.why}")
        right, why = outcome.value
        return Score(float(right), answer, why)

    def close(self) -> None:
        """End the sandbox's process, if there is one. The next question starts another."""
        self._sandbox.close()


def check_installed() -> None:
    """InvalidRequest without math-verify: a task says so before its first question is asked."""
    if find_spec("math_verify") is None:
        raise InvalidRequest(
            "formulae are graded by math-verify, which is not installed", hint=INSTALL_EXAM
        )


def _plain(text: str) -> str:
    """A formula without what only its looks depend on."""
    for dress in ("$", r"\left", r"\right", r"\!", r"\,", r"\;"):
        text = text.replace(dress, "")
    text = BETWEEN_DIGITS_NOT.sub("", text)
    return text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").rstrip(".")

"""One arithmetic problem, with its solution written out.

`work` is what a worker writes while it solves the problem: one equation per step, in solving
order, without spaces ("84+29=113", "113-38=75"). Each operand is a number of the text or an
earlier result; the last result is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SMALLEST_RESULT, LARGEST_RESULT = 0, 299
"""Every result of every step lies in this range, for bare and for word problems."""


@dataclass(frozen=True)
class Problem:
    """A question of one line and everything there is to know about it."""

    text: str
    work: tuple[str, ...]
    answer: int
    kind: Literal["bare", "word"]
    template: str  # "bare", or the name of the word problem's template

    @property
    def num_steps(self) -> int:
        """How many equations lead to the answer."""
        return len(self.work)

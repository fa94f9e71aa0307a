"""How right is a boxed answer?

A list of problems is graded as in the Hogwild! paper (section 4.1): the share of questions whose
answer stands at its place. A score carries its evidence, so that a surprising number can be
understood without a second run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from manyhands.errors import InvalidRequest

_DECORATION = re.compile(r"\\(?:text|mathrm|mathbf)\b|\\[ ,;!]|[{}$~\s]")
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Score:
    """A value from 0 to 1, what was read from the answer, and why."""

    value: float
    extracted: str | None
    explanation: str


def grade_list(answer: str | None, gold: Sequence[int]) -> Score:
    """Grade `75, 12, 9` against the gold answers, place by place.

    A missing entry is wrong at its place, and so is one too many: the value is the number of right
    entries over the longer of the two lists.
    """
    if not gold:
        raise InvalidRequest("there are no gold answers", hint="grade a list of one or more")
    if answer is None:
        return Score(0.0, None, "no answer")
    entries = _entries(answer)
    places = list(zip_longest(entries, gold))
    wrong = [
        _complaint(place, found, expected)
        for place, (found, expected) in enumerate(places, start=1)
        if expected is None or not _equal(found, expected)
    ]
    explanation = "; ".join(wrong) if wrong else "all right"
    return Score(1 - len(wrong) / len(places), ", ".join(entries), explanation)


def _entries(answer: str) -> list[str]:
    """The comma-separated entries, freed of spaces and of LaTeX dress."""
    bare = _DECORATION.sub("", answer)
    return bare.split(",") if bare else []


def _equal(found: str | None, expected: int) -> bool:
    return found is not None and bool(_WHOLE.fullmatch(found)) and int(found) == expected


def _complaint(place: int, found: str | None, expected: int | None) -> str:
    """What is wrong at one place, in words."""
    if expected is None:
        return f"{place}: {found or 'nothing'} is one too many"
    return f"{place}: {found or 'missing'}, expected {expected}"

r"""A plain majority vote over boxed answers (self-consistency, Wang et al., 2022).

Answers count as one if they are written alike, apart from dress: blanks, `\text{...}`, dollar signs,
a full stop, capitals, `\dfrac` for `\frac`, `1,000` for `1000`, `7.0` for `7`. No mathematics is done:
`1/2` and `0.5` are two answers here, and one to the grader of formulae (`tasks/formulae.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Mode:
    """How self-consistency comes to its answer. `reads_all`: one row reads all attempts."""

    reads_all: bool


MODES: Mapping[str, Mode] = MappingProxyType(
    {"final": Mode(reads_all=True), "vote": Mode(reads_all=False)}
)

_DRESS = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf))\b|\\[ ,;!]|[$~\s]|\\(?:left|right)\b")
_BRACES = re.compile(r"\{([^{}\\]*)\}")
_THOUSANDS = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMALS = re.compile(r"(-?[0-9]+)\.(?:0+|([0-9]*[1-9])0*)")


def normalised(answer: str) -> str:
    """The answer without its dress; two that are equal then are one answer."""
    bare = (
        _DRESS.sub("", answer).casefold().replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac")
    )
    bare = bare.removesuffix(".").replace("{,}", ",")
    if whole := _BRACES.fullmatch(bare):  # the rest of \text{seven}
        bare = whole[1]
    if _THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    if number := _DECIMALS.fullmatch(bare):
        bare = number[1] + (f".{number[2]}" if number[2] else "")
    return bare


def majority(answers: Sequence[str | None]) -> int | None:
    """The worker whose answer it is: the earliest worker with the answer that most of them gave.

    Of two answers with as many votes, the one that stands earlier. None if nobody gave any.
    """
    votes = [None if answer is None else normalised(answer) for answer in answers]
    counted = Counter(vote for vote in votes if vote is not None)
    if not counted:
        return None
    return votes.index(max(counted, key=counted.__getitem__))  # the first of equals

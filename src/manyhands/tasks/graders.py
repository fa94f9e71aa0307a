"""How right is a boxed answer?

A list of problems is graded as in the Hogwild! paper (section 4.1): the share of questions whose
answer stands at its place; a list of names as in PDOS (section 4.2): all of it or nothing. A score
carries its evidence, so that a surprising number can be understood without a second run.

Formulae need more than a rule: `tasks/formulae.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.tasks.numbers import read_number, undressed

EQUALS = re.compile(r"(?<!\\not)(?<![<>!≠=:])=(?!=)")  # and no sign of another relation
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_PAPER_INTEGER = re.compile(r"\+?0*([0-9]{1,3})")  # AIME answers are written 000 to 999
_BETWEEN_NAMES = re.compile(r"\s*(?:,|;|\band\b|&|\n)\s*", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NOBODY = frozenset({"none", "nobody", "no one", "no student"})
_BRIEF = 60  # characters of an answer that an explanation quotes


@dataclass(frozen=True)
class Score:
    """A value from 0 to 1, what was read from the answer, and why."""

    value: float
    extracted: str | None
    explanation: str


def same_integer(found: str, expected: int) -> bool:
    """Whether an entry is exactly this integer, in plain digits."""
    return bool(_WHOLE.fullmatch(found)) and int(found) == expected


def same_number(found: str, expected: int | str) -> bool:
    """Whether an entry has this value: `18.00`, `$18` and `18 dollars` are 18, `1{,}200` is 1200."""
    number = read_number(found)
    return number is not None and number == read_number(str(expected))


def grade_list(
    answer: str | None,
    gold: Sequence[int] | Sequence[str],
    same: Callable[[str, Any], bool] = same_integer,
) -> Score:
    """Grade `75, 12, 9` against the gold answers, place by place, each with the rule `same`.

    A missing entry is wrong at its place, and so is one too many: the value is the number of right
    entries over the longer of the two lists.
    """
    if not gold:
        raise InvalidRequest("there are no gold answers", hint="grade a list of one or more")
    if answer is None:
        return Score(0.0, None, "no answer")
    entries = _entries(answer, len(gold))
    places = list(zip_longest(entries, gold))
    wrong = [
        _complaint(place, found, expected)
        for place, (found, expected) in enumerate(places, start=1)
        if found is None or expected is None or not same(found, expected)
    ]
    explanation = "; ".join(wrong) if wrong else "all right"
    return Score(1 - len(wrong) / len(places), ", ".join(entries), explanation)


def grade_number(answer: str | None, gold: str) -> Score:
    """Grade one number by its value; units, currency signs and thousands separators do not count."""
    if answer is None:
        return Score(0.0, None, "no answer")
    return _verdict(same_number(after_equals(answer), gold), answer, gold)


def grade_paper_integer(answer: str | None, gold: int) -> Score:
    """Grade an integer from 0 to 999, as in the AIME: digits and nothing else, zeros may lead."""
    if answer is None:
        return Score(0.0, None, "no answer")
    match = _PAPER_INTEGER.fullmatch(undressed(after_equals(answer)))
    if match is None:
        return Score(0.0, answer, f"{answer[:_BRIEF]!r} is not an integer from 0 to 999")
    return _verdict(int(match[1]) == gold, match[1], str(gold))


def grade_names(
    answer: str | None, text: str, gold: Collection[str], known: Collection[str]
) -> Score:
    """Grade a set of names: exactly these, in any order, is right, and nothing else is (PDOS 4.2).

    Without a box, the last line of the reply is read: those `known` names that stand in it, after its
    colon if it has one. `none` is the empty set.
    """
    named = _last_line_names(text, known) if answer is None else _names(answer)
    if named is None:
        return Score(0.0, None, "no answer")
    spelled = {name.casefold(): name for name in (*known, *gold)}
    found = {spelled.get(name.casefold(), name) for name in named}
    missing, extra = sorted(set(gold) - found), sorted(found - set(gold))
    extracted = ", ".join(sorted(found)) or "none"
    if not missing and not extra:
        return Score(1.0, extracted, "exactly these")
    faults = [f"missing {name}" for name in missing] + [f"{n[:_BRIEF]} is wrong" for n in extra]
    right = 2 * len(found & set(gold))
    share = right / (right + len(missing) + len(extra))
    return Score(0.0, extracted, f"{'; '.join(faults)} (F1 {share:.2f})")


def grade_word(answer: str | None, text: str, gold: str, known: Collection[str]) -> Score:
    """Grade one word, such as a colour. Without a box, the last line must name exactly one `known`."""
    if answer is None:
        words = set(re.findall(r"\w+", _last_line(text).casefold())) & set(known)
        if len(words) != 1:
            return Score(0.0, None, "no answer")
        (answer,) = words
    word = " ".join(undressed(answer, spaces=True).casefold().split()).rstrip(".")
    return _verdict(word == gold.casefold(), word, gold)


def after_equals(answer: str) -> str:
    """`x = 5` as `5`: what stands after the last equals sign. `x >= 5` and `x != 5` stay as they are."""
    return EQUALS.split(answer)[-1].strip()


def _verdict(right: bool, found: str, expected: str) -> Score:
    if right:
        return Score(1.0, found, "right")
    return Score(0.0, found, f"{found[:_BRIEF] or 'nothing'}, expected {expected}")


def _entries(answer: str, expected: int) -> list[str]:
    """The comma-separated entries, freed of spaces and of LaTeX dress.

    A comma within a number (`1,200`) does not separate, if only so as many entries come out as are
    expected.
    """
    answer = answer.replace("{,}", "")
    bare = undressed(answer)
    entries = bare.split(",") if bare else []
    if len(entries) > expected:
        joined = _THOUSANDS.sub("", answer)  # before spaces are lost: `1, 200` are two entries
        merged = undressed(joined).split(",")
        if len(merged) == expected:
            return merged
    return entries


def _names(answer: str) -> list[str]:
    bare = undressed(answer, spaces=True).strip().rstrip(".")
    if bare.casefold() in _NOBODY:
        return []
    return [name.strip().rstrip(".") for name in _BETWEEN_NAMES.split(bare) if name.strip()]


def _last_line_names(text: str, known: Collection[str]) -> list[str] | None:
    """The names in the last line; None if there are none and it does not say so either."""
    line = _last_line(text)
    line = line.rpartition(":")[2].strip() or line
    found = [n for n in known if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", line, re.IGNORECASE)]
    if found or line.casefold().strip(" .*") in _NOBODY:
        return found
    return None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _complaint(place: int, found: str | None, expected: object) -> str:
    """The mistake at one place, in words."""
    if expected is None:
        return f"{place}: {found or 'nothing'} is one too many"
    return f"{place}: {found or 'missing'}, expected {expected}"

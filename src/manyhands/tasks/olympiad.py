r"""OlympiadBench: mathematics and physics at the level of olympiads (Hogwild!, section 4.2).

The paper takes the two parts in English that are text alone: 675 problems of mathematics and 236 of
physics. A gold answer has a type, and each type its grader:

    Numerical    within the tolerance of the record (`error`), in its `unit` (`tasks/quantities.py`)
    Expression, Equation    of the same meaning (`tasks/formulae.py`)
    Interval     the same brackets and ends of the same meaning; unions in any order
    Tuple        entry by entry

Where a problem has several answers, all have to be there, in any order, and none besides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from manyhands.errors import InvalidRequest, counted
from manyhands.tasks.formulae import FormulaGrader, check_installed
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import Dataset, Example, first, load_examples
from manyhands.tasks.quantities import grade_quantity
from manyhands.tasks.task import Sample, TaskOptions, TaskProtocol, check_options

_COLUMNS = {"question": (str,), "final_answer": (list,), "answer_type": (str,)}
_OPTIONAL = {
    **dict.fromkeys(
        ("unit", "context", "subfield", "subject", "question_type", "modality"), (str,)
    ),
    "error": (str, int, float),
    "is_multiple_answer": (bool,),
}
MATHS = Dataset(
    hub="Hothan/OlympiadBench",
    columns=_COLUMNS,
    optional=_OPTIONAL,
    fixture="olympiad_maths.jsonl",
    config="OE_TO_maths_en_COMP",
    split="train",
)
PHYSICS = Dataset(
    hub="Hothan/OlympiadBench",
    columns=_COLUMNS,
    optional=_OPTIONAL,
    fixture="olympiad_physics.jsonl",
    config="OE_TO_physics_en_COMP",
    split="train",
)
TYPES = ("Numerical", "Expression", "Equation", "Interval", "Tuple")
_EXACT = 1e-8  # the tolerance of a number where a record names none
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_INTERVAL = re.compile(r"\s*([\[(])(.*)([\])])\s*", re.DOTALL)
_NAMED = re.compile(r"[(\[]?[A-Za-z_0-9{}, ]+[)\]]?\s*=\s*([(\[][^=]*[)\]])", re.DOTALL)
_INFINITY = re.compile(r"\+\s*(?=\\infty|∞)")
_MEMBER = re.compile(r"\\in(?![A-Za-z])|∈")
_UNION = re.compile(r"\\cup|∪|\bor\b")


@dataclass(frozen=True)
class Olympiad:
    """One part of the dataset; 1 if all answers of a problem are right and none is too many."""

    name: str
    about: str
    dataset: Dataset
    options: TaskOptions
    grader: FormulaGrader = field(default_factory=FormulaGrader)
    protocol = TaskProtocol(finisher_tokens=64)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source")

    def samples(self) -> Sequence[Sample]:
        """The part in its order. Pictures there are none in it: another part is refused."""
        check_installed()
        examples = first(load_examples(self.dataset, self.options), self.options.limit)
        return [_sample(example) for example in examples]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        if answer is None:
            return Score(0.0, None, "no answer")
        kind = str(sample.facts["type"])
        golds = _entries(sample.gold, kind) if sample.facts["several"] else [sample.gold]
        answers = _entries(answer, kind) if sample.facts["several"] else [answer]
        if len(answers) != len(golds):
            return Score(
                0.0,
                answer,
                f"{counted(len(answers), 'answer')}, expected {len(golds)}: {sample.gold}",
            )
        tolerances = list(sample.facts["tolerances"])
        tolerances += tolerances[-1:] * (len(golds) - len(tolerances))
        graded = [
            [self._grade(kind, one, gold, tolerance, sample) for one in answers]
            for gold, tolerance in zip(golds, tolerances, strict=False)
        ]
        unmatched = _first_unmatched([[score.value == 1 for score in row] for row in graded])
        if unmatched is not None:
            return Score(
                0.0, answer, graded[unmatched][min(unmatched, len(answers) - 1)].explanation
            )
        why = next(score.explanation for score in graded[0] if score.value == 1)
        return Score(1.0, answer, why)

    def _grade(self, kind: str, answer: str, gold: str, tolerance: float, sample: Sample) -> Score:
        if kind == "Numerical":
            unit = str(sample.facts["unit"] or "")
            found = grade_quantity(answer, gold, tolerance, unit)
            return found if found is not None else self.grader.grade(answer, gold, tolerance)
        if kind == "Interval":
            return self._intervals(answer, gold)
        if kind == "Tuple":
            return self._tuple(answer, gold)
        return self.grader.grade(answer, gold)

    def _intervals(self, answer: str, gold: str) -> Score:
        found, wanted = _intervals(answer), _intervals(gold)
        if wanted is None:
            return self.grader.grade(answer, gold)
        if found is None or len(found) != len(wanted):
            return Score(0.0, answer, f"expected the interval {gold}")
        for opening, ends, closing in wanted:
            place = next(
                (
                    number
                    for number, one in enumerate(found)
                    if (one[0], one[2]) == (opening, closing) and self._same(one[1], ends)
                ),
                None,
            )
            if place is None:
                return Score(0.0, answer, f"expected the interval {gold}")
            del found[place]
        return Score(1.0, answer, "the same interval")

    def _tuple(self, answer: str, gold: str) -> Score:
        found, wanted = _inside(answer), _inside(gold)
        right = len(found) == len(wanted) and self._same(found, wanted)
        return Score(float(right), answer, "the same entries" if right else f"expected {gold}")

    def _same(self, found: Sequence[str], wanted: Sequence[str]) -> bool:
        pairs = zip(found, wanted, strict=True)
        return all(self.grader.grade(one, other).value == 1 for one, other in pairs)


def olympiad_maths(options: TaskOptions) -> Olympiad:
    """The problems of mathematics."""
    about = "675 olympiad problems of mathematics: numbers, formulae, intervals"
    return Olympiad("olympiad-maths", about, MATHS, options)


def olympiad_physics(options: TaskOptions) -> Olympiad:
    """The problems of physics."""
    about = "236 olympiad problems of physics: numbers with units and tolerances, formulae"
    return Olympiad("olympiad-physics", about, PHYSICS, options)


def _sample(example: Example) -> Sample:
    values = example.values
    answers = values["final_answer"]
    if len(answers) != 1 or not isinstance(answers[0], str) or not answers[0].strip():
        raise InvalidRequest(
            f"{example.where}: 'final_answer' is {str(answers)[:60]}; expected a list of one text",
            hint="several answers stand in one text, separated by commas",
        )
    kind = values["answer_type"]
    if kind not in TYPES:
        raise InvalidRequest(
            f"{example.where}: 'answer_type' is {kind!r}", hint=f"it is one of: {', '.join(TYPES)}"
        )
    if "MM" in str(values.get("question_type") or "") or values.get("modality") == "Multimodal":
        raise InvalidRequest(
            f"{example.where} has pictures, which nothing here reads",
            hint="take a part whose name has TO in it: text only",
        )
    gold = answers[0].strip()
    unit = (values.get("unit") or "").strip()
    facts = {
        "type": kind,
        "unit": unit,
        "several": bool(values.get("is_multiple_answer")),
        "tolerances": _tolerances(example),
    }
    facts |= {name: values[name] for name in ("subfield", "subject") if values.get(name)}
    told = f"{values['question'].strip()}\n\n{_told(kind, unit, bool(facts['several']))}"
    context = (values.get("context") or "").strip()
    return Sample(example.id, f"{context}\n\n{told}" if context else told, gold.strip("$"), facts)


def _told(kind: str, unit: str, several: bool) -> str:
    """The form of the answer; the unit is told, as the dataset's own prompt tells it."""
    forms = {
        "Numerical": "a number",
        "Expression": "an expression",
        "Equation": "an equation",
        "Interval": "an interval",
        "Tuple": "a tuple",
    }
    form = forms[kind].partition(" ")[2]
    what = (
        f"Box all answers, separated by commas; each is a {form}"
        if several
        else f"Box {forms[kind]}"
    )
    return f"{what.replace('a e', 'an e').replace('a i', 'an i')}" + (
        f", in {unit}." if unit else "."
    )


def _tolerances(example: Example) -> list[float]:
    """One tolerance, or one for each answer."""
    written = example.values.get("error")
    if written is None or not str(written).strip():
        return [_EXACT]
    try:
        found = [float(part) for part in str(written).split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one < float("inf") for one in found):
        raise InvalidRequest(
            f"{example.where}: 'error' is {written!r}",
            hint="it is a number above 0, or one for each answer, separated by commas",
        )
    return found


def _entries(text: str, kind: str) -> list[str]:
    """Several answers of one text: parted at commas that no bracket holds."""
    text = text.strip().strip("$").replace(r"\left", "").replace(r"\right", "").replace("$", "")
    if kind == "Numerical":
        text = re.sub(r"\band\b|\\text\{\s*(?:and|or)\s*\}", ",", text)
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char in ",;" and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _first_unmatched(fits: Sequence[Sequence[bool]]) -> int | None:
    """The first row that finds no column of its own, however the others choose theirs; None if all do."""
    owners: dict[int, int] = {}

    def find(row: int, seen: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in seen:
                seen.add(column)
                if column not in owners or find(owners[column], seen):
                    owners[column] = row
                    return True
        return False

    return next((row for row in range(len(fits)) if not find(row, set())), None)


def _inside(text: str) -> list[str]:
    """The entries of a tuple, with its brackets or without, and without the names before `=`."""
    text = text.strip().strip("$").replace(r"\left", "").replace(r"\right", "").strip()
    if (named := _NAMED.fullmatch(text)) is not None:
        text = named[1]
    if text[:1] in _CLOSING and text.endswith(_CLOSING[text[0]]) and len(_entries(text, "")) == 1:
        text = text[1:-1]
    return _entries(text, "")


def _intervals(text: str) -> list[tuple[str, list[str], str]] | None:
    r"""`[0,1) \cup (2,\infty)` as brackets and ends; None if it is no union of intervals."""
    text = text.strip().strip("$").replace(r"\left", "").replace(r"\right", "")
    text = _INFINITY.sub("", _MEMBER.split(text, maxsplit=1)[-1])
    found = []
    for part in _UNION.split(text):
        match = _INTERVAL.fullmatch(part)
        if match is None:
            return None
        ends = _entries(match[2], "")
        if len(ends) != 2:
            return None
        found.append((match[1], ends, match[3]))
    return found

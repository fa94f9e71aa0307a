r"""Questions that fall into parts, as the bundled model is taught to work through them.

    titles        what the parts are called: "Ada", "Ben", … or "1", "2", …
    body          how a part is worked out: " has a GPA of 3.42, which is above 3.10, so no."
    conclusion    what follows from all of them: "Answer: \boxed{Ada,Mia}"
    box           what is known when only some are done, for whoever is asked early

The scripts here say these words at the places where the strategies want them: one part after another
(`Sequentially`), in branches behind titles (`InBranches`), in threads behind the points of an outline
(`InThreads`), or several times over, in attempts that are then compared (`InAttempts`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.school.scripted import ANSWER, DECISION, END, Said
from manyhands.tasks.arithmetic.problem_list import ProblemList
from manyhands.tasks.retrieval import NOBODY, RetrievalQuestion, Student, written
from manyhands.text.markers import MarkerProfile

_NUMBER = re.compile(r"\d+")
_TITLE = 1.5  # a title that is skipped or misspelt is lost work
# A box of names is a handful of tokens behind hundreds of copied ones, and each of them is a choice:
# the next name, and whether a name comes at all.
_NAMES = 6.0


class Parts(Protocol):
    """A question in parts."""

    titles: tuple[str, ...]
    box_weight: float  # the weight of a token of the box

    def body(self, part: int) -> list[Said]:
        """How this part is worked out, behind its title."""

    def conclusion(self) -> list[Said]:
        """The words behind all parts: the answer, in a box."""

    def box(self, done: Collection[int]) -> str:
        """The inside of the box when these parts are done."""


class StudentParts:
    """One part per student. `brief`: drafts of a few words (chain of draft) in place of sentences.

    Whoever is found is named once more behind the verdict, spelt as in the box, so that the box is
    gathered by looking for one word. Without it, a found "yes" would have to lead back to the
    beginning of its strand, and small networks do not learn to go that far.
    """

    box_weight = _NAMES

    def __init__(self, asked: RetrievalQuestion, *, brief: bool = False) -> None:
        self.asked = asked
        self.brief = brief
        self.titles = tuple(student.name for student in asked.students)

    def body(self, part: int) -> list[Said]:
        """` has a GPA of 3.42, which is above 3.10, so no.`; ` 3.42 yes (Ada)` is a draft."""
        student = self.asked.students[part]
        verdict = [Said(" no", DECISION, done=part)]
        if self._matches(student):
            verdict = [Said(" yes", DECISION), Said(f" ({student.name})", _TITLE, done=part)]
        if self.brief:
            return [Said(f" {student.gpa}"), *verdict]
        compared, bounds = self._compared(student)
        return [
            Said(f" has a GPA of {student.gpa}, which is"),
            Said(compared, DECISION),
            Said(f" {bounds}, so"),
            *verdict,
            Said("."),
        ]

    def conclusion(self) -> list[Said]:
        r"""`Answer: \boxed{Ada,Mia}`."""
        return [Said("Answer: \\boxed{"), Said(self.asked.boxed + "}", _NAMES)]

    def box(self, done: Collection[int]) -> str:
        """The names found so far."""
        found = [
            s.name for k, s in enumerate(self.asked.students) if k in done and self._matches(s)
        ]
        return ",".join(found) or NOBODY

    def _matches(self, student: Student) -> bool:
        return self.asked.low < student.hundredths < self.asked.high

    def _compared(self, student: Student) -> tuple[str, str]:
        low, high = written(self.asked.low), written(self.asked.high)
        if student.hundredths < self.asked.low:
            return " below", low
        if student.hundredths > self.asked.high:
            return " above", high
        return " between", f"{low} and {high}"


class ListParts:
    """One part per problem of an arithmetic list; its work is written as the teams write it."""

    box_weight = ANSWER

    def __init__(self, problems: ProblemList) -> None:
        self.problems = problems
        self.titles = tuple(str(number) for number in range(1, len(problems.problems) + 1))

    def body(self, part: int) -> list[Said]:
        """` 84+29=113; 113-38=75. #3 is 75.`."""
        problem = self.problems.problems[part]
        return [
            Said(f" {'; '.join(problem.work)}."),
            Said(f" #{part + 1} is {problem.answer}.", done=part),
        ]

    def conclusion(self) -> list[Said]:
        r"""`All solved: \boxed{75,12,9}`."""
        box = ",".join(map(str, self.problems.gold))
        return [Said("All solved: \\boxed{"), Said(box + "}", ANSWER)]

    def box(self, done: Collection[int]) -> str:
        """The answers known so far, a question mark for the others."""
        return ",".join(str(a) if k in done else "?" for k, a in enumerate(self.problems.gold))


def finished(parts: Parts, done: Collection[int]) -> list[Said]:
    """The inside of a box that is open already, and its end."""
    return [Said(parts.box(done) + "}", parts.box_weight)]


class Sequentially:
    """One part after another, a line each, then the answer."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """See `Script`."""
        if writer.endswith("finisher"):
            return finished(self.parts, done)
        lines: list[Said] = []
        for part, title in enumerate(self.parts.titles):
            lines += [Said(title + ":", _TITLE), *self.parts.body(part), Said("\n")]
        return [*lines, *self.parts.conclusion(), END]


class InBranches:
    """Titles first, the parts in branches, then the answer (PDOS)."""

    def __init__(self, parts: Parts, profile: MarkerProfile | None = None) -> None:
        self.parts = parts
        self.profile = profile or MarkerProfile()
        self.listed = 0

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """See `Script`."""
        profile, titles = self.profile, self.parts.titles
        if writer.endswith("finisher"):
            return finished(self.parts, done)
        if writer != "writer":  # a branch, which begins with its title
            title = fed.strip().removeprefix(profile.marker).removesuffix(profile.title_end)
            return [*self.parts.body(titles.index(title)), END]
        if profile.terminator in fed:
            return [*self.parts.conclusion(), END]
        opening = [] if self.listed else [Said(profile.marker, DECISION)]
        if self.listed == len(titles):
            return [Said(profile.closing, DECISION)]
        self.listed += 1
        return [*opening, Said(titles[self.listed - 1] + profile.title_end, _TITLE)]


class InThreads:
    """An outline first, its points in threads, then the answer (skeleton-of-thought)."""

    def __init__(self, parts: Parts, prompt: SkeletonPrompt) -> None:
        self.parts = parts
        self.prompt = prompt
        self.headings = [prompt.heading(k, title) for k, title in enumerate(parts.titles, 1)]
        self.has_outline = False

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """See `Script`."""
        if writer.endswith("finisher"):
            return finished(self.parts, done)
        if writer != "writer":  # a thread, which begins with its heading
            return [*self.parts.body(self.headings.index(fed)), END]
        if self.has_outline:
            return [*self.parts.conclusion(), END]
        self.has_outline = True
        points = [
            self.prompt.point.replace("{number}", str(number)).replace("{title}", title)
            for number, title in enumerate(self.parts.titles, 1)
        ]
        outline = "\n".join(points).removeprefix(self.prompt.opening)
        return [Said(outline, _TITLE), Said(self.prompt.close, DECISION)]


class AttemptWords(Protocol):
    """The text of an attempt, and whether it is right."""

    def is_right(self, attempt: int) -> bool:
        """Whether nothing in it is wrong."""

    def __call__(self, attempt: int) -> list[Said]:
        """The words of one attempt."""


class LineByLine:
    """Attempts without a slip: every time the same words."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def is_right(self, attempt: int) -> bool:
        """It is."""
        return True

    def __call__(self, attempt: int) -> list[Said]:
        """One part after another."""
        return list(Sequentially(self.parts)("writer", "", frozenset()))


class ListAttempts:
    """How one worker alone solves a list, several times, some of them with a slip.

    A slip is a wrong last result of one problem, written once and copied; nobody learns to make it.
    """

    def __init__(self, problems: ProblemList, count: int, rng: random.Random, slips: float) -> None:
        self.problems = problems.problems
        self.slips: list[dict[int, int]] = [{} for _ in range(count)]  # problem -> wrong answer
        for number, problem in enumerate(self.problems):
            if count > 2 and rng.random() < slips:
                wrong = problem.answer + rng.choice((-10, -1, 1, 2, 10, 20))
                rng.choice(self.slips)[number] = max(wrong, 0)

    def is_right(self, attempt: int) -> bool:
        """Whether it holds no slip."""
        slips = self.slips[attempt]
        return all(self.problems[k].answer == wrong for k, wrong in slips.items())

    def __call__(self, attempt: int) -> list[Said]:
        """The words of one attempt: most work first, as the teams do it."""
        order = sorted(range(len(self.problems)), key=lambda k: (-len(self.problems[k].work), k))
        said = [words for number in order for words in self._solved(attempt, number)]
        found = [self._answer(attempt, k) for k in range(len(self.problems))]
        box = ",".join(map(str, found)) + "}"
        return [
            *said,
            Said(" All", DECISION),
            Said(" solved: \\boxed{" + box, ANSWER),
            Said("."),
            END,
        ]

    def _answer(self, attempt: int, number: int) -> int:
        return self.slips[attempt].get(number, self.problems[number].answer)

    def _solved(self, attempt: int, number: int) -> list[Said]:
        problem, answer = self.problems[number], self._answer(attempt, number)
        *before, last = problem.work
        sum_, _, _ = last.partition("=")
        return [
            Said(" #", DECISION),
            Said(str(number + 1), DECISION),
            Said(":"),
            *(Said(f" {equation};") for equation in before),
            Said(f" {sum_}="),
            Said(str(answer), 1.0 if answer == problem.answer else 0.0),
            Said("."),
            Said(f" #{number + 1} is {answer}.", done=number),
            Said("\n\n", 1.0 if answer == problem.answer else 0.0),  # a team says that it is wrong
        ]


class InAttempts:
    """Attempts at the same time, then a row that has read all of them; or a grade for each."""

    def __init__(self, parts: Parts, attempts: AttemptWords) -> None:
        self.parts = parts
        self.attempts = attempts

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """See `Script`."""
        size = len(self.parts.titles)
        number = _NUMBER.search(writer)
        attempt = int(number[0]) - 1 if number else None
        if writer.endswith("grade"):
            assert attempt is not None, "every attempt gets its own grade"
            return [Said("9" if self.attempts.is_right(attempt) else "0", DECISION)]
        if writer.endswith("reply"):
            return [
                Said(
                    "The answers, in order: " + self.parts.box(range(size)).replace(",", ", ") + "."
                ),
                END,
            ]
        if writer.endswith("finisher"):
            own = {key % size for key in done if attempt in (None, key // size)}
            return finished(self.parts, own)
        assert attempt is not None, "everybody else writes an attempt"
        return [
            words if words.done is None else replace(words, done=attempt * size + words.done)
            for words in self.attempts(attempt)
        ]

r"""Student retrieval: which of n students have a GPA in a range? (PDOS, section 4, "retrieval").

    Here are 3 students:
    Ada is 23, collects stamps and has a GPA of 3.42.
    Ben has a GPA of 2.08, is 31 and paints maps.
    Mia, who is 19 and sells hats, has a GPA of 4.71.

    Which students have a GPA between 3.10 and 3.60? Box their names, separated by commas, or none.

Looking at one student does not depend on looking at another: the plainest work for branches. A tenth
of the names is held out, so that the bundled model can be asked about people it never met.
No GPA equals an end of the range, so whether the ends belong to it is no question.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS

MOST_STUDENTS = 100
NOBODY = "none"
_LOWEST, _HIGHEST = 100, 500  # ends of ranges, in hundredths; GPAs lie between them
_MOST_MATCHES = 4

_MORE_NAMES = """
    Agnes Alan Albert Aldo Alina Amara Andre Anita Anton Arlo Astrid Aya Bertha Bianca Boris Bruno
    Camila Cara Cecil Clara Colin Cora Cyrus Daisy Darius David Delia Denis Dora Edgar Edith Elias
    Elif Elsa Enzo Erik Esra Ethan Fabio Faye Fiona Flora Franz Frida Gaspar Gemma George Gloria
    Greta Gustav Harun Hassan Hector Heidi Helga Henri Hilda Igor Ilse Imani Irene Isaac Ismail Jana
    Jasper Joel Jonas Judith Julia Kamal Karim Katya Kenji Kira Klaus Lara Laura Leo Lidia Linus
    Lotte Luis Magda Malik Marta Max Mehmet Mirko Monika Moses Nadim Naomi Nico Nora Oleg Oscar
    Otis Paolo Paula Pedro Pia Quentin Rania Remi Rita Rolf Roman Ruben Sabine Salma Samuel Sandro
    Selim Silvia Simon Sonia Stella Tanja Thea Tilda Tobias Ulla Umberto Viktor Viola Wanda Wilma
    Xenia Yasmin Yusuf Zelda
"""
_ALL_NAMES = tuple(sorted({*NAMES, *_MORE_NAMES.split()}))
STUDENT_NAMES = tuple(name for place, name in enumerate(_ALL_NAMES) if place % 10 != 4)
HELD_OUT_NAMES = tuple(name for place, name in enumerate(_ALL_NAMES) if place % 10 == 4)

_HABITS = ("collects", "paints", "sells", "likes", "makes", "buys", "keeps", "needs")
LINES = (
    "{name} is {age}, {habit} {thing} and has a GPA of {gpa}.",
    "{name} has a GPA of {gpa}, is {age} and {habit} {thing}.",
    "{name}, who is {age} and {habit} {thing}, has a GPA of {gpa}.",
)
QUESTION = (
    "Which students have a GPA between {low} and {high}? "
    "Box their names, separated by commas, or none."
)


@dataclass(frozen=True)
class Student:
    """One student: a name, a GPA in hundredths, and the line that tells both."""

    name: str
    hundredths: int
    line: str

    @property
    def gpa(self) -> str:
        """The GPA as it is written, "3.42"."""
        return written(self.hundredths)


@dataclass(frozen=True)
class RetrievalQuestion:
    """One question about some students. `low` and `high` are in hundredths."""

    students: tuple[Student, ...]
    low: int
    high: int

    @property
    def question(self) -> str:
        """The text that a user would type."""
        count = len(self.students)
        lines = "\n".join(student.line for student in self.students)
        asked = QUESTION.format(low=written(self.low), high=written(self.high))
        return f"Here are {count} students:\n{lines}\n\n{asked}"

    @property
    def gold(self) -> tuple[str, ...]:
        """The names that the box should hold, in the order of the list; none if there are none."""
        return tuple(s.name for s in self.students if self.low < s.hundredths < self.high)

    @property
    def boxed(self) -> str:
        """The content of the box of a right answer."""
        return ",".join(self.gold) or NOBODY


def written(hundredths: int) -> str:
    """342 as "3.42"."""
    return f"{hundredths // 100}.{hundredths % 100:02}"


def retrieval(rng: Random, count: int, held_out: bool = False) -> RetrievalQuestion:
    """A fresh question about `count` students; `held_out` draws names never trained on."""
    if not 2 <= count <= MOST_STUDENTS:
        raise InvalidRequest(
            f"a list of {count} students was asked for",
            hint=f"ask for 2 to {MOST_STUDENTS} of them",
        )
    names = HELD_OUT_NAMES if held_out else STUDENT_NAMES
    if count > len(names):
        raise InvalidRequest(
            f"{count} students were asked for, with held-out names",
            hint=f"there are {len(names)} of these names",
        )
    # Only odd values: between two neighbours there is always room for an end of the range.
    values = rng.sample(range(_LOWEST + 1, _HIGHEST, 2), count)
    chosen = rng.sample(names, count)
    students = [_student(rng, name, gpa) for name, gpa in zip(chosen, values, strict=True)]
    return RetrievalQuestion(tuple(students), *_range(rng, sorted(values)))


def _student(rng: Random, name: str, hundredths: int) -> Student:
    line = rng.choice(LINES).format(
        name=name,
        age=rng.randint(18, 39),
        habit=rng.choice(_HABITS),
        thing=rng.choice(THINGS),
        gpa=written(hundredths),
    )
    return Student(name, hundredths, line)


def _range(rng: Random, values: list[int]) -> tuple[int, int]:
    """Ends of a range that holds none to four of the sorted values, mostly one or two."""
    matches = rng.choices(range(_MOST_MATCHES + 1), weights=(2, 5, 4, 2, 1))[0]
    matches = min(matches, len(values) - 1)
    bounds = [_LOWEST - 1, *values, _HIGHEST + 1]
    if not matches:
        below, above = max(pairwise(bounds), key=lambda gap: gap[1] - gap[0])
        low = rng.randint(below + 1, (below + above) // 2)
        return low, rng.randint(low + 1, above - 1)
    first = rng.randint(1, len(values) - matches + 1)
    last = first + matches - 1
    return (
        rng.randint(bounds[first - 1] + 1, bounds[first] - 1),
        rng.randint(bounds[last] + 1, bounds[last + 1] - 1),
    )

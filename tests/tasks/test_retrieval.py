"""Student retrieval: the gold names are right, no GPA stands on an end, and names are held out."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.retrieval import (
    HELD_OUT_NAMES,
    MOST_STUDENTS,
    STUDENT_NAMES,
    retrieval,
    written,
)


def test_one_question() -> None:
    asked = retrieval(random.Random(1), 3)
    first, *lines, blank, last = asked.question.split("\n")
    assert first == "Here are 3 students:"
    assert lines == [student.line for student in asked.students]
    assert blank == ""
    assert last == (
        f"Which students have a GPA between {written(asked.low)} and {written(asked.high)}? "
        "Box their names, separated by commas, or none."
    )
    assert retrieval(random.Random(1), 3) == asked
    assert retrieval(random.Random(2), 3) != asked


@pytest.mark.parametrize("count", [2, 3, 10, 30, MOST_STUDENTS])
def test_the_text_says_what_the_gold_says(count: int) -> None:
    for seed in range(60):
        asked = retrieval(random.Random(seed), count)
        found = []
        for student, line in zip(asked.students, asked.question.split("\n")[1:], strict=False):
            (gpa,) = re.findall(r"GPA of (\d\.\d\d)\b", line)
            assert line.startswith(student.name)
            assert 1.0 <= float(gpa) <= 5.0
            if float(written(asked.low)) < float(gpa) < float(written(asked.high)):
                found.append(student.name)
            assert written(asked.low) != gpa != written(asked.high)
        assert tuple(found) == asked.gold
        assert asked.boxed == (",".join(found) or "none")
        assert 100 <= asked.low < asked.high <= 500
        assert len({student.name for student in asked.students}) == count


def test_mostly_one_or_two_match() -> None:
    counts = Counter(len(retrieval(random.Random(seed), 10).gold) for seed in range(600))
    assert set(counts) == {0, 1, 2, 3, 4}
    assert counts[1] > counts[2] > counts[3] > counts[4]


def test_held_out_names_are_never_trained() -> None:
    assert not set(STUDENT_NAMES) & set(HELD_OUT_NAMES)
    assert len(HELD_OUT_NAMES) >= 20
    for seed in range(20):
        assert {s.name for s in retrieval(random.Random(seed), 30).students} <= set(STUDENT_NAMES)
        asked = retrieval(random.Random(seed), 20, held_out=True)
        assert {s.name for s in asked.students} <= set(HELD_OUT_NAMES)


def test_what_cannot_be_asked_is_refused() -> None:
    for count in (-1, 0, 1, MOST_STUDENTS + 1):
        with pytest.raises(InvalidRequest, match=f"a list of {count} students"):
            retrieval(random.Random(0), count)
    with pytest.raises(InvalidRequest, match="30 students were asked for, with held-out names"):
        retrieval(random.Random(0), 30, held_out=True)

"""The borders of the bundled model's other worlds, from both sides."""

from __future__ import annotations

import random

import pytest

from manyhands.tasks.arithmetic.world import outside_world
from manyhands.tasks.needles import ask, haystack
from manyhands.tasks.retrieval import retrieval

STUDENTS = retrieval(random.Random(1), 4).question
HAY = haystack(random.Random(1), 4, 10)
NEEDLE = ask(HAY.document, HAY.needles[5].question)


@pytest.mark.parametrize("method", ["sequential", "branches", "skeleton"])
def test_what_the_model_was_made_for_is_inside(method: str) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        asked = retrieval(rng, rng.randint(3, 20), held_out=seed % 2 > 0)
        assert outside_world(asked.question, method=method) is None
        hay = haystack(rng, rng.randint(1, 64), 40, held_out=seed % 2 > 0)
        for needle in rng.sample(hay.needles, 4):
            assert outside_world(ask(hay.document, needle.question), method=method) is None


@pytest.mark.parametrize("question", [STUDENTS, NEEDLE])
def test_teams_know_lists_only(question: str) -> None:
    assert "lists are all that the bundled teams know" in (outside_world(question, 2) or "")


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (retrieval(random.Random(1), 2).question, "There are 2 students"),
        (retrieval(random.Random(1), 31).question, "There are 31 students"),
        (STUDENTS.replace("Here are 4", "Here are 5"), 'needs "Here are 4 students:"'),
        (STUDENTS.replace("\n\n", "\n"), 'needs "Here are 3 students:"'),
        (STUDENTS.replace(" has a GPA of ", " got a GPA of ", 1), "Student 1 is told in other"),
        ("\n".join([*STUDENTS.split("\n")[-1:]]), "There are 0 students"),
        (ask("A word. " * 2000 + HAY.document, HAY.needles[0].question), "characters"),
        (ask("No dogs here.", HAY.needles[0].question), "does not tell of a dog named"),
        (HAY.needles[0].question, "does not tell of a dog named"),
        (STUDENTS + " Please.", "not a numbered list"),
    ],
)
def test_what_is_outside_is_told(question: str, reason: str) -> None:
    assert reason in (outside_world(question, method="branches") or "")


def test_two_of_one_name() -> None:
    lines = STUDENTS.split("\n")
    names = [line.split()[0].strip(",") for line in lines[1:5]]
    lines[2] = lines[2].replace(names[1], names[0])
    assert "the same name" in (outside_world("\n".join(lines), method="sequential") or "")

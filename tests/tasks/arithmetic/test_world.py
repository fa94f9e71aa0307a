"""The border of the bundled model's world, from both sides."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.tasks.arithmetic.problem_list import INTRODUCTION, ListKind, ask, problem_list
from manyhands.tasks.arithmetic.templates.template import Template
from manyhands.tasks.arithmetic.words import held_out_templates, known_templates
from manyhands.tasks.arithmetic.world import outside_world

GOOD = "84 + 29 - 38"
STORY = "Ana has 68 masks. After giving 44 of them to Mina, how many masks does Ana have left?"
UNSEEN = (
    "is worded in a way that the bundled model has not seen; such problems it mostly gets wrong."
)


@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from(("bare", "wide", "word", "mixed")),
)
def test_what_the_model_was_made_for_is_inside(seed: int, count: int, kind: ListKind) -> None:
    question = problem_list(Random(seed), count, kind).question
    assert outside_world(question) is None
    assert outside_world(f"\n {question} \n") is None


@pytest.mark.parametrize("template", known_templates(), ids=lambda template: template.name)
def test_every_known_story_is_inside(template: Template) -> None:
    rng = Random(1)
    for _ in range(25):
        stories = [template.problem(rng).text for _ in range(8)]
        assert outside_world(ask(stories)) is None


@pytest.mark.parametrize("template", held_out_templates(), ids=lambda template: template.name)
def test_no_held_out_story_is_inside(template: Template) -> None:
    rng = Random(1)
    for _ in range(25):
        assert outside_world(ask([GOOD, template.problem(rng).text])) == f"Problem 2 {UNSEEN}"


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_no_held_out_list_is_inside(seed: int, count: int) -> None:
    question = problem_list(Random(seed), count, "word", "held-out").question
    assert outside_world(question) == f"Problem 1 {UNSEEN}"


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("", "not a numbered list"),
        ("2 + 2", "single expression"),
        ("12 + 30 - 4", f'needs "{INTRODUCTION}"'),
        ("Write an essay about the sea.", "not a numbered list"),
        ("def f(x):\n    return x + 1", "not a numbered list"),
        (f"{ask([GOOD, GOOD])}\nin French", "not a numbered list"),
        ("x" * 4000, "4000 characters"),
        ("1" * 1_000_000, "1000000 characters"),
        (ask([GOOD] * 13), "The list has 13; "),
        (f"Quickly:\n1. {GOOD}\n2. {GOOD}", "the text around them"),
        (f"1. {GOOD}\n2. {GOOD}", "the text around them"),
        (ask([GOOD, GOOD]).replace("\n2", "\n\n2"), "the text around them"),
    ],
)
def test_questions_outside(question: str, reason: str) -> None:
    complaint = outside_world(question)
    assert complaint is not None
    assert reason in complaint
    assert_one_sentence(complaint)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7", "operation count of 0"),
        ("1 + 2 + 3 + 4 + 5 + 6 + 7 + 8", "operation count of 7"),
        ("1000 + 2 - 1", "uses 1000"),
        ("5 + 0 - 1", "uses 0"),
        ("3 - 999 - 4", "passes through -1000"),
        ("999 + 99 - 99", "passes through 1098"),
        ("84+29-38", 'reads "84 + 29 - 38"'),
        ("3 * 4 - 2", "'*'"),
        ("(3 + 4) - 2", "'('"),
        ("3 + 4 - 2 = ?", "'='"),
        ("3 \u2212 4 + 2", r"'\u2212'"),
        ("3 + 4 \x1b[31m", r"'\x1b'"),
        ("5\u00b2", r"'\xb2'"),
        ("\uff11\uff12 + 3", r"'\uff11'"),
        (STORY.replace("68", "\u2460"), r"'\u2460'"),
        ("17 + 60 - 31 <|im_end|>", "contains '<'"),
        ("17 + 60 - 31 ?", "is neither a line"),
        ("-1 + 60 - 31", "is neither a line"),
        (STORY.replace("44 of", "44 - 2 of"), "is neither a line"),
        ("1000 + 60 - 31?", "uses 1000; the bundled model was trained on 1 to 999."),
        ("1234567890 + 60 - 31", "uses 1234567890; "),
        ("Ana \x1b[31m has 3 masks?", r"'\x1b'"),
        ("2 + x - 1", '"x"'),
        ("Differentiate x^2 with respect to x", "'^'"),
        ("What is the derivative of a polynomial?", '"derivative"'),
        ("print(1)", "'('"),
        ("Write an essay about 3 hens, 4 eggs and the sea", '"Write"'),
        ("a" * 200, f'"{"a" * 30}"'),
        (STORY.replace("masks", "dragons"), '"dragons"'),
        (STORY.replace("Ana", "ANA"), '"ANA"'),
        (STORY.replace("68", "300"), "uses 300"),
        (STORY.replace("68", "9" * 900), "uses 999999"),
        (STORY.replace("68", "1"), "uses 1; "),
        (STORY.replace("68", "3.5"), "not plain text"),
        (STORY.replace("68", "068"), "not plain text"),
        (STORY.replace("68", " 68"), "not plain text"),
        (STORY.replace("68", "many").replace("44", "more"), "count of 0 numbers"),
        (STORY[:-1] + ".", "question at the end"),
        ("Ana has 68 masks and 3 hats?", "length of 7 words"),
        (STORY.replace("have left", "have now"), UNSEEN),
        (STORY.replace("does Ana", "does Mina"), UNSEEN),
        (STORY.replace("Mina", "Ana"), UNSEEN),
        (STORY.replace("Ana", "coins"), UNSEEN),
        (STORY.replace("masks", "coins"), UNSEEN),
        (STORY.replace("many masks", "many hats"), UNSEEN),
        (" ".join([STORY[:-1]] + ["and has them"] * 9) + "?", "words"),
    ],
)
def test_lines_outside(line: str, reason: str) -> None:
    complaint = outside_world(ask([GOOD, line]))
    assert complaint is not None
    assert complaint.startswith("Problem 2 ")
    assert reason in complaint
    assert_one_sentence(complaint)


@given(st.text())
def test_any_text_has_a_verdict(text: str) -> None:
    for question in (text, ask([GOOD, text or "."])):
        complaint = outside_world(question)
        assert complaint is not None
        assert_one_sentence(complaint)


def assert_one_sentence(complaint: str) -> None:
    """One short line, safe to print."""
    assert complaint.endswith(".")
    assert complaint.isprintable()
    assert len(complaint) < 300


def test_the_size_of_the_team() -> None:
    question = ask(["84 + 29 - 38", "17 + 60 + 5"])
    assert outside_world(question, workers=8) is None
    assert outside_world(question, workers=9) == (
        "The team has 9 workers; the bundled model was trained on 1 to 8."
    )


@pytest.mark.parametrize("method", ["branches", "skeleton"])
def test_lists_in_parts_are_shorter_than_those_of_teams(method: str) -> None:
    """The model boxes a question mark for each problem behind the eighth, which no branch was made for."""
    sums = ["84 + 29 - 38"] * 12
    assert outside_world(ask(sums[:8]), 1, method) is None
    for count in (1, 9, 12):
        said = outside_world(ask(sums[:count]), 1, method)
        assert said is not None
        assert f"has {count}, and the method is {method}" in said
        assert "2 to 8" in said
    assert outside_world(ask(sums), 8, "hogwild") is None

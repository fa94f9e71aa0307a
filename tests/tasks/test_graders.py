"""Grading lists place by place; numbers, names and words."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.tasks.graders import (
    Score,
    grade_list,
    grade_names,
    grade_number,
    grade_paper_integer,
    grade_word,
    same_number,
)


@pytest.mark.parametrize(
    ("answer", "value", "extracted", "explanation"),
    [
        ("75, 12, 9", 1, "75, 12, 9", "all right"),
        ("75, 12,9", 1, "75, 12, 9", "all right"),
        (r"75,\ 12,\,9", 1, "75, 12, 9", "all right"),
        (r"\text{75}, \text{ 12 }, 9 ", 1, "75, 12, 9", "all right"),
        (r"$75, 12, 9$", 1, "75, 12, 9", "all right"),
        ("75,\n12, 9", 1, "75, 12, 9", "all right"),
        ("75, 13, 9", Fraction(2, 3), "75, 13, 9", "2: 13, expected 12"),
        ("12, 75, 9", Fraction(1, 3), "12, 75, 9", "1: 12, expected 75; 2: 75, expected 12"),
        ("75, 12", Fraction(2, 3), "75, 12", "3: missing, expected 9"),
        ("75, , 9", Fraction(2, 3), "75, , 9", "2: missing, expected 12"),
        ("75, 12, 9, 4", Fraction(3, 4), "75, 12, 9, 4", "4: 4 is one too many"),
        ("75, 12, 9,", Fraction(3, 4), "75, 12, 9, ", "4: nothing is one too many"),
        ("75, twelve, 9.0", Fraction(1, 3), None, "2: twelve, expected 12; 3: 9.0, expected 9"),
        ("7 5, 12, 9", Fraction(2, 3), None, "1: 7 5, expected 75"),
        ("-75, 1_2, ٩", 0, None, "1: -75, expected 75; 2: 1_2, expected 12; 3: ٩, expected 9"),
        ("", 0, "", "1: missing, expected 75; 2: missing, expected 12; 3: missing, expected 9"),
    ],
)
def test_answers(answer: str, value: Fraction, extracted: str | None, explanation: str) -> None:
    score = grade_list(answer, (75, 12, 9))
    assert score.value == pytest.approx(float(value))
    assert score.explanation == explanation
    assert extracted is None or score.extracted == extracted


def test_no_answer_is_worth_nothing() -> None:
    assert grade_list(None, (75, 12)) == Score(0.0, None, "no answer")


def test_no_gold_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="gold"):
        grade_list("75", ())


@given(st.lists(st.integers(-999, 999), min_size=1), st.lists(st.integers(-999, 999), min_size=1))
def test_the_value_is_the_share_of_right_places(found: list[int], gold: list[int]) -> None:
    score = grade_list(", ".join(map(str, found)), gold)
    right = sum(a == b for a, b in zip(found, gold, strict=False))
    assert score.value == pytest.approx(right / max(len(found), len(gold)))
    assert grade_list(",".join(map(str, gold)), gold).value == 1.0


@given(st.text(), st.lists(st.integers(), min_size=1))
def test_any_text_is_graded(answer: str, gold: list[int]) -> None:
    assert 0.0 <= grade_list(answer, gold).value <= 1.0


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("1200", "1200", 1),
        ("1,200", "1200", 1),
        (r"\$1{,}200.00", "1200", 1),
        ("x = 18", "18", 1),
        ("18 dollars", "18", 1),
        ("2.50", "2.5", 1),
        ("-5", "-5", 1),
        ("5", "-5", 0),
        ("1200.5", "1200", 0),
        ("18 or 19", "18", 0),
        ("x >= 18", "18", 0),
        ("x != 18", "18", 0),
        ("1 8", "18", 0),
        ("eighteen", "18", 0),
        ("", "18", 0),
    ],
)
def test_one_number(answer: str, gold: str, value: int) -> None:
    score = grade_number(answer, gold)
    assert score.value == value
    assert value or f"expected {gold}" in score.explanation


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("42", 42, 1),
        ("042", 42, 1),
        ("0", 0, 1),
        ("000", 0, 1),
        ("$m+n = 42$", 42, 1),
        (r"\text{42}", 42, 1),
        ("43", 42, 0),
        ("42.0", 42, 0),  # the paper asks for an integer
        ("-42", 42, 0),
        ("1042", 42, 0),
        ("42, 43", 42, 0),
        ("forty-two", 42, 0),
        ("٤٢", 42, 0),
    ],
)
def test_integers_from_0_to_999(answer: str, gold: int, value: int) -> None:
    score = grade_paper_integer(answer, gold)
    assert score.value == value
    assert value or "0 to 999" in score.explanation or "expected 42" in score.explanation


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("126, 5600, 2.5", 1),
        ("126, 5,600, 2.5", 1),  # else there would be four entries
        (r"126, 5{,}600, 2.50", 1),
        (r"\$126, 5600 \text{ envelopes}, 2.5", 1),
        ("126, 5600", Fraction(2, 3)),
        ("5600, 126, 2.5", Fraction(1, 3)),
        ("126, 5600, 2.5, 9", Fraction(3, 4)),
        ("126 5600 2.5", 0),
    ],
)
def test_a_list_of_numbers_by_value(answer: str, value: Fraction) -> None:
    score = grade_list(answer, ("126", "5600", "2.5"), same_number)
    assert score.value == pytest.approx(float(value))


def test_no_box_is_no_answer() -> None:
    nothing = Score(0.0, None, "no answer")
    assert grade_number(None, "1") == grade_paper_integer(None, 1) == nothing
    assert grade_names(None, "I am not sure.", ["Ada"], ["Ada", "Ben"]) == nothing
    assert grade_word(None, "", "red", ["red"]) == nothing


# -- names and words -------------------------------------------------------------------------------

STUDENTS = ("Ada", "Adam", "Ben", "Mia Lopez")


@pytest.mark.parametrize(
    ("answer", "text", "gold", "value"),
    [
        ("Ada, Ben", "", {"Ada", "Ben"}, 1),
        ("Ben and Ada", "", {"Ada", "Ben"}, 1),
        (r"\text{Ada}, \text{Mia Lopez}", "", {"Ada", "Mia Lopez"}, 1),
        ("ada, BEN.", "", {"Ada", "Ben"}, 1),
        ("Ada, Ada", "", {"Ada"}, 1),
        ("none", "", set(), 1),
        ("None.", "", set(), 1),
        ("none", "", {"Ada"}, 0),
        ("Ada", "", set(), 0),
        ("Ada", "", {"Ada", "Ben"}, 0),
        ("Ada, Ben, Adam", "", {"Ada", "Ben"}, 0),
        ("Adam", "", {"Ada"}, 0),
        ("Mia", "", {"Mia Lopez"}, 0),
        ("Zoe", "", {"Ada"}, 0),
        # no box: the last line
        (None, "Ada: too low.\nBen: fits.\n\nName: Ben", {"Ben"}, 1),
        (None, "The students are Ada and Mia Lopez.", {"Ada", "Mia Lopez"}, 1),
        (None, "Not Ada: Adam", {"Adam"}, 1),
        (None, "Name: none", set(), 1),
        (None, "Ben\n\nI cannot tell.", {"Ben"}, 0),
        ("Ada", "Name: Ben", {"Ben"}, 0),  # a box counts before the last line
    ],
)
def test_names(answer: str | None, text: str, gold: set[str], value: int) -> None:
    assert grade_names(answer, text, gold, STUDENTS).value == value


def test_wrong_names_are_explained() -> None:
    score = grade_names("Ada, Adam", "", ("Ada", "Ben"), STUDENTS)
    assert score == Score(0.0, "Ada, Adam", "missing Ben; Adam is wrong (F1 0.50)")


@pytest.mark.parametrize(
    ("answer", "text", "value"),
    [
        ("red", "", 1),
        (r"\text{Red}", "", 1),
        ("red.", "", 1),
        ("redd", "", 0),
        ("dark red", "", 0),
        ("red or blue", "", 0),
        ("", "", 0),
        (None, "The fur is red.", 1),
        (None, "Red", 1),
        (None, "The fur is red, not blue.", 0),
        (None, "It is red.\nI think.", 0),
        (None, "reddish", 0),
    ],
)
def test_a_word(answer: str | None, text: str, value: int) -> None:
    assert grade_word(answer, text, "red", ("red", "blue")).value == value


@given(st.text(), st.text())
def test_any_text_has_a_grade(answer: str, text: str) -> None:
    for score in (
        grade_number(answer, "12"),
        grade_paper_integer(answer, 12),
        grade_names(answer, text, ("Ada",), STUDENTS),
        grade_names(None, text, ("Ada",), STUDENTS),
        grade_word(answer, text, "red", ("red", "blue")),
        grade_word(None, text, "red", ("red", "blue")),
    ):
        assert score.value in (0.0, 1.0)

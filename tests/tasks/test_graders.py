"""Grading lists place by place."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.tasks.graders import Score, grade_list


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

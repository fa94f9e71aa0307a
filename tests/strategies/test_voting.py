"""The majority of answers."""

from __future__ import annotations

import pytest

from manyhands.strategies.voting import majority, normalised


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["7"], 0),
        (["8", "7", "7"], 1),
        (["8", "7", "7", "8"], 0),  # a tie: the earliest worker
        (["8", "7"], 0),
        ([None, "7", None], 1),
        ([None, None, "8", "7", "7"], 3),
        ([None, None], None),
        ([], None),
        (["8", " 7", "\\text{7}", "8", "$7.0$"], 1),
    ],
)
def test_majority(answers: list[str | None], winner: int | None) -> None:
    assert majority(answers) == winner


@pytest.mark.parametrize(
    "alike",
    [
        ("1000", "1,000", "1{,}000", "1000.", "1000.00", " 1 000 "),
        ("seven", "Seven.", "\\text{seven}", "\\mathrm{Seven}"),
        ("\\frac{1}{2}", "\\dfrac{1}{2}", "\\frac{1}{2} ", "\\tfrac{1}{2}"),
        ("1,2,3", "1, 2, 3", "1,\\ 2,\\,3"),
        ("-3.5", "-3.50", "$-3.5$"),
        ("(1,2)", "\\left(1, 2\\right)"),
        ("10", "10.0"),
    ],
)
def test_written_alike(alike: tuple[str, ...]) -> None:
    assert {normalised(answer) for answer in alike} == {normalised(alike[0])}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10", "1"),
        ("1,2", "12"),
        ("3.05", "3.5"),
        ("-3", "3"),
        ("x", "y"),
        ("\\frac12", "\\frac13"),
    ],
)
def test_not_alike(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)

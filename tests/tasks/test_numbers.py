"""Numbers as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.tasks.numbers import read_number, undressed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-42", -42),
        ("+7", 7),
        ("1,200", 1200),
        ("1{,}200", 1200),
        (r"1,\!200", 1200),
        ("12,345,678.5", Fraction("12345678.5")),
        ("18.00", 18),
        (".5", Fraction(1, 2)),
        ("$18", 18),
        (r"\$18.50", Fraction("18.5")),
        (r"75\%", 75),
        ("18 dollars", 18),
        (r"18\text{ dollars}", 18),
        ("12 miles per hour", 12),
        ("3 m", 3),
        ("9 cm2", 9),
        (r"90^\circ", 90),
        (r"90^{\circ}", 90),
        ("42.", 42),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac34", Fraction(-3, 4)),
        ("6 / 8", Fraction(3, 4)),
    ],
)
def test_numbers(text: str, value: Fraction) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    # two numbers, variables, powers, groups that are no thousands, digits of other scripts, nothing
    [
        "",
        "12 3",
        "1,2",
        "1,20",
        "12,00",
        "1e3",
        "5x",
        "x=5",
        "1 or 2",
        "5 of 6",
        "٩",
        "1/0",
        "\\frac{1}{0}",
        "\\frac123",
        "--1",
        "1_2",
        "2^3",
        "∞",
        "nan",
    ],
)
def test_no_numbers(text: str) -> None:
    assert read_number(text) is None


@given(st.integers(-(10**12), 10**12))
def test_thousands_separators_change_nothing(number: int) -> None:
    assert read_number(f"{number:,}") == read_number(str(number)) == number


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    read_number(text)
    undressed(text)


def test_a_long_text_is_read_quickly() -> None:
    assert read_number("1," * 100_000) is None
    assert read_number("a " * 100_000) is None
    assert read_number("5" + " km" * 50_000 + "!") is None

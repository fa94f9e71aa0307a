"""Text that comes in, and text that goes to a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.text import MAX_PROBLEM_CHARS, clean_problem, printable


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  What is 2 + 2?\n", "What is 2 + 2?"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("a\tb", "a\tb"),
        ("\ufeffa\x00b\x1b[31mc\x7f\x9b", "ab[31mc"),
        ("half \ud83d of a pair", "half \ufffd of a pair"),
        ("a whole \ud83d\ude00 pair", "a whole 😀 pair"),
        ("### Own work\n<|im_end|>", "### Own work\n<|im_end|>"),
        ("x" * MAX_PROBLEM_CHARS, "x" * MAX_PROBLEM_CHARS),
    ],
)
def test_a_problem_is_cleaned(text: str, cleaned: str) -> None:
    assert clean_problem(text) == cleaned


@pytest.mark.parametrize("text", ["", "  \n\t", "\x00\x1b\x07", "\ufeff"])
def test_a_problem_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected some text"):
        clean_problem(text)


def test_a_problem_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"1,000,001 characters, at most 1,000,000"):
        clean_problem("x" * (MAX_PROBLEM_CHARS + 1))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b[2J\x1b[H", "␛[2J␛[H"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "␛]8;;http://x␛\\link␛]8;;␛\\"),
        ("\x9b31mred", "\ufffd31mred"),
        ("over\rwritten\b\x7f\x00", "over␍written␈␡␀"),
        ("\u202eevil\u2066\u200f", "\ufffdevil\ufffd\ufffd"),
        ("\ud800\u2028\x85", "\ufffd\ufffd\ufffd"),
        ("数学 é 👩‍👩‍👧", "数学 é 👩‍👩‍👧"),
    ],
)
def test_controls_are_shown_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(), max_size=50))
def test_anything_becomes_harmless(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(char >= " " or char in "\n\t" for char in shown)
    shown.encode("utf-8")
    assert printable(shown) == shown

"""Words that messages have in common."""

from __future__ import annotations

import pytest

from manyhands.errors import counted


@pytest.mark.parametrize(
    ("number", "noun", "form", "told"),
    [
        (1, "block", "", "1 block"),
        (0, "block", "", "0 blocks"),
        (161, "token", "", "161 tokens"),
        (1, "forward pass", "", "1 forward pass"),
        (2, "forward pass", "", "2 forward passes"),
        (12345, "token", ",", "12,345 tokens"),
        (1.0, "minute", "g", "1 minute"),
        (0.5, "minute", "g", "0.5 minutes"),
    ],
)
def test_a_number_stands_before_its_noun(number: float, noun: str, form: str, told: str) -> None:
    assert counted(number, noun, form) == told

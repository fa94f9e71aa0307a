"""Words that messages have in common, and where a hint is shown."""

from __future__ import annotations

import pickle
import traceback

import pytest

from manyhands.errors import InvalidRequest, ManyhandsError, counted


def _lines_of(error: ManyhandsError) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_a_traceback_shows_the_hint() -> None:
    """An error that a program does not catch is read there, and nowhere else."""
    error = InvalidRequest("workers is 0; expected 1 to 256", hint="Write workers=2.")
    shown = [
        "manyhands.errors.InvalidRequest: workers is 0; expected 1 to 256",
        "hint: Write workers=2.",
    ]
    assert _lines_of(error) == _lines_of(pickle.loads(pickle.dumps(error))) == shown
    assert str(error) == "workers is 0; expected 1 to 256"
    error.hint = "Write workers=3."
    assert _lines_of(error) == [shown[0], "hint: Write workers=3."]
    assert _lines_of(InvalidRequest("no")) == ["manyhands.errors.InvalidRequest: no"]


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

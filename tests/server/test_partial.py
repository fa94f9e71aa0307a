"""Answers of runs that are cut short: what was written up to then, and a reason that says so."""

from __future__ import annotations

import pytest

from manyhands.server.chat import finish_reason
from manyhands.server.partial import CUT_SHORT
from manyhands.strategies.base import Answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("7", answer="7", finish_reason="answer"), "stop"),
        (Answer("7", finish_reason="stopped"), "stop"),
        (Answer("7", answer="7", finish_reason="budget"), "stop"),  # the finisher has it
        (Answer("7 and th", answer="7", finish_reason="budget", is_cut=True), "length"),
        (Answer("7", answer="7", finish_reason="answer", is_cut=True), "length"),  # of 1 token
        (Answer("hm", finish_reason="budget"), "length"),
        (Answer("hm", finish_reason="context"), "length"),
        (
            Answer("so th", answer="7", finish_reason=CUT_SHORT),
            "length",
        ),  # in the midst of its reply
    ],
)
def test_why_an_answer_ends(answer: Answer, told: str) -> None:
    assert finish_reason(answer) == told

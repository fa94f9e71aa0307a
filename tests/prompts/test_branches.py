"""The words of `branches`: they name the marks that the strategy looks for."""

from __future__ import annotations

import re

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts.branches import BranchPrompt

MARKS = {"marker": "@@", "title_end": "=>", "placeholder": "....", "terminator": "@@end"}


def test_the_rules_are_short_and_name_the_marks() -> None:
    prompt = BranchPrompt()
    assert len(re.sub(r"\{\w+\}", "", prompt.rules).split()) <= 150
    message = prompt.message("Who is it?", **MARKS)
    assert "\n@@first title=>....\n@@second title=>....\n@@end\n" in message
    assert "####" not in message
    assert r"\boxed{}" in message
    assert message.endswith("Who is it?")


def test_a_question_is_not_searched_for_placeholders() -> None:
    message = BranchPrompt("{marker}|{question}").message(r"\frac{marker}{x}", **MARKS)
    assert message == r"@@|\frac{marker}{x}"


def test_rules_without_a_question_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="question"):
        BranchPrompt("Just do it.")

"""The words of a skeleton: what is an outline, and what is a mistake."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.prompts.skeleton import SkeletonPrompt


@pytest.mark.parametrize(
    ("outline", "titles"),
    [
        ("1. wind\n2. sun", ["wind", "sun"]),
        ("1.  wind\n2. sun ", ["wind", "sun"]),
        ("Sure:\n1. wind\n   - cold\n2. **sun**\n", ["wind", "sun"]),
        ("1. wind\n3. rain\n2. sun\n3. hail", ["wind", "sun", "hail"]),
        ("2. sun\n1. wind\n", ["wind"]),
        ("1. 2 + 3\n2. 4.5 apples: all", ["2 + 3", "4.5 apples: all"]),
        ("1.\n2.  \nwind", []),
        ("first, wind", []),
        ("1) wind", []),
        ("1.5 metres", []),
        ("", []),
    ],
)
def test_points_of_an_outline(outline: str, titles: list[str]) -> None:
    assert SkeletonPrompt().titles(outline) == titles


@pytest.mark.parametrize(
    ("point", "outline", "titles"),
    [
        ("{number}) {title}", "1) wind\n2) sun", ["wind", "sun"]),
        ("- {title}", "- wind\n- sun\nrain", ["wind", "sun"]),
        ("#{number} {title}.", "#1 wind.\n#2 sun.", ["wind", "sun"]),
        ("{title} [{number}]", "wind [1]\nsun [2]\nrain [9]", ["wind", "sun"]),
        ("{title}", "wind\n\nsun", ["wind", "sun"]),
    ],
)
def test_points_of_another_form(point: str, outline: str, titles: list[str]) -> None:
    assert SkeletonPrompt(point=point).titles(outline) == titles


def test_a_question_is_never_searched_for_placeholders() -> None:
    prompt = SkeletonPrompt(rules="Q: {question} in \\boxed{}")
    assert prompt.message("{question} {title}") == "Q: {question} {title} in \\boxed{}"
    assert SkeletonPrompt(thread="{number}:{title}").heading(3, "{number}") == "3:{number}"


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("rules", "no place", "lacks the placeholder {question}"),
        ("rules", "{question} of {nobody}", "unknown placeholder {nobody}"),
        ("point", "{number}.", "lacks the placeholder {title}"),
        ("point", "{number}\n{title}", "expected one line"),
        ("point", "{number}{title}", "digits of a title would be read into its number"),
        ("point", "{title}{number}.", "digits of a title would be read into its number"),
        ("point", "{title} {title}", "each placeholder once"),
        ("thread", "### {number}", "lacks the placeholder {title}"),
        ("close", "", "'close' is empty"),
        ("join", "", "'join' is empty"),
        ("opening", 1, "is a int"),
        ("finisher", "\boxed{", "U+0008"),
    ],
)
def test_mistakes(field: str, value: Any, found: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        SkeletonPrompt(**{field: value})
    assert found in str(error.value)


def test_the_rules_say_all() -> None:
    rules = SkeletonPrompt().rules
    for word in ("outline", "numbered", "empty line", "\\boxed{}", "{question}"):
        assert word in rules

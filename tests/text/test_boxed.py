r"""boxed_answer, BoxWatch: balanced braces, the last complete box, no placeholders."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.text import BoxWatch, boxed_answer

TABLE = [
    (r"so \boxed{5}", "5"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\fbox{7}", "7"),
    (r"\boxed {7}", "7"),
    ("\\boxed\n{7}", "7"),
    (r"\boxed{ 7 }", "7"),
    (r"\boxed{1} then \boxed{2} and", "2"),
    (r"\boxed{1} then \boxed{2", "1"),
    (r"\boxed{1", None),
    (r"\boxed{1 and \boxed{2}", "2"),
    (r"\boxed{\boxed{3}}", "3"),
    (r"\boxed{\boxed{3}, \boxed{4}}", r"\boxed{3}, \boxed{4}"),
    (r"\boxed{x = \fbox{3}}", r"x = \fbox{3}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"\boxed{a \\} b}", r"a \\"),
    (r"\\boxed{5}", None),
    (r"\\\boxed{5}", "5"),
    (r"\boxedx{5}", None),
    (r"\xboxed{5}", None),
    (r"boxed{5}", None),
    (r"\boxed 5 {6}", None),
    (r"}} \boxed{5}}", "5"),
    (r"{ \boxed{5}", "5"),
    (r"\boxed{[]}", "[]"),
    (r"\boxed{\{\}}", r"\{\}"),
    (r"\boxed{unknown}", "unknown"),
    (r"\boxed{the answer is 4}", "the answer is 4"),
    (r"\boxed{5} or put it into \boxed{}", "5"),
    ("", None),
]
PLACEHOLDERS = [
    "", "  ", "...", "…", r"\ldots", r"\dots", "answer", "Answer", "your answer", "final answer",
    "your_final_answer", "<answer>", "[answer]", r"\text{answer}", r"\text{your answer here}", "?",
    "insert your answer here", "____", "result", r"\boxed{}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), TABLE)
def test_table(text: str, answer: str | None) -> None:
    assert boxed_answer(text) == answer


@pytest.mark.parametrize("content", PLACEHOLDERS)
def test_a_placeholder_is_no_answer(content: str) -> None:
    assert boxed_answer(rf"\boxed{{{content}}}") is None
    assert boxed_answer(rf"\boxed{{4}} \boxed{{{content}}}") == "4"


@pytest.mark.parametrize(("text", "answer"), TABLE)
def test_the_watch_agrees_character_by_character(text: str, answer: str | None) -> None:
    watch = BoxWatch()
    answers = [found for char in text if (found := watch.push(char)) is not None]
    assert (answers[-1] if answers else None) == answer


def test_the_watch_speaks_when_the_brace_closes() -> None:
    watch = BoxWatch()
    pieces = ["So \\bo", "xed", "{\\frac", "{1}", "{2", "}", "} is", " it \\boxed{}"]
    said = [watch.push(piece) for piece in pieces]
    assert said == [None] * 6 + [r"\frac{1}{2}", None]


@given(st.lists(st.sampled_from(["\\boxed", "{", "}", " ", "a", "x y", "\\{", "\\"]), max_size=14))
def test_a_piece_is_read_as_its_characters_are(pieces: list[str]) -> None:
    whole, one_by_one = BoxWatch(), BoxWatch()
    for piece in pieces:
        said = whole.push(piece)
        assert said == next(filter(None, [one_by_one.push(char) for char in piece][::-1]), None)
        assert vars(whole) == vars(one_by_one)


contents = st.recursive(
    st.text("ab12 ,=", max_size=5) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac", r"\cdot "]),
    lambda inner: (
        st.lists(inner, max_size=3).map("".join) | inner.map(lambda text: "{" + text + "}")
    ),
    max_leaves=12,
)


@given(contents, st.text("ab {}\\\n", max_size=8), st.lists(st.integers(0, 40), max_size=5))
def test_any_balanced_content_comes_back(content: str, before: str, cuts: list[int]) -> None:
    text = before.rstrip("\\") + rf" \boxed{{x{content}}}"
    assert boxed_answer(text) == f"x{content}".strip()
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    watch = BoxWatch()
    said = [watch.push(text[a:b]) for a, b in pairwise(borders)]
    assert f"x{content}".strip() in said

"""Lists of problems: their one text, and reading it back."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.bare import bare_problem, solve_bare
from manyhands.tasks.arithmetic.problem_list import (
    ListKind,
    ProblemList,
    parse_question,
    problem_list,
)
from manyhands.tasks.arithmetic.words import held_out_templates

kinds: tuple[ListKind, ...] = ("bare", "word", "mixed")


def test_the_question_is_spelled_exactly_so() -> None:
    rng = Random(0)
    first, second = bare_problem(rng), bare_problem(rng)
    listed = ProblemList((first, second))
    assert listed.question == (
        "Solve these problems and box the answers in order, separated by commas:\n"
        f"1. {first.text}\n"
        f"2. {second.text}"
    )
    assert listed.gold == (first.answer, second.answer)


@given(st.integers(0, 2**32), st.integers(1, 12), st.sampled_from(kinds), st.booleans())
def test_a_list_is_read_back(seed: int, count: int, kind: ListKind, held_out: bool) -> None:
    listed = problem_list(Random(seed), count, kind, "held-out" if held_out else "known")
    lines = parse_question(listed.question)
    assert lines == [problem.text for problem in listed.problems]
    assert len(set(lines)) == len(listed.gold) == count
    for line, gold, problem in zip(lines, listed.gold, listed.problems, strict=True):
        assert problem.kind == kind or kind == "mixed"
        assert solve_bare(line) == (gold if problem.kind == "bare" else None)
    if held_out:
        names = {template.name for template in held_out_templates()}
        assert {p.template for p in listed.problems if p.kind == "word"} <= names


def test_mixed_lists_mix() -> None:
    drawn = problem_list(Random(0), 200, "mixed").problems
    assert 70 < sum(problem.kind == "bare" for problem in drawn) < 130


@pytest.mark.parametrize("count", [0, -3])
def test_an_empty_list_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequest, match="problems"):
        problem_list(Random(0), count, "bare")


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        ("1. 2 + 3", ["2 + 3"]),
        ("Please, quickly:\n1. 2 + 3 \n\n  2.  4 - 1\r\n", ["2 + 3", "4 - 1"]),
        ("Two lines\nof introduction\n1. a\n2. b", ["a", "b"]),
        ("", None),
        ("12 + 30 - 4", None),
        ("Write an essay.", None),
        ("1. a\n3. b", None),
        ("2. a\n3. b", None),
        ("1. a\nand then\n2. b", None),
        ("1. a\n2. b\nin French", None),
        ("1.\n2. b", None),
        ("1.5 is a number", None),
        ("1" * 5000 + ". a", None),
    ],
)
def test_numbered_lines_are_found(question: str, lines: list[str] | None) -> None:
    assert parse_question(question) == lines

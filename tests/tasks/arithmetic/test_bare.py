"""Bare lines: always in range, always solved as an independent reader solves them."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import InvalidRequest
from manyhands.tasks.arithmetic.bare import bare_problem, parse_bare, solve_bare

seeds = st.integers(0, 2**32)


def running_totals(text: str) -> list[int]:
    """An independent evaluation: split at spaces, walk from left to right."""
    first, *rest = text.split(" ")
    totals = [int(first)]
    for sign, operand in zip(rest[::2], rest[1::2], strict=True):
        totals.append(totals[-1] + {"+": 1, "-": -1}[sign] * int(operand))
    return totals


@given(seeds)
def test_gold_is_the_value_of_the_text(seed: int) -> None:
    problem = bare_problem(Random(seed))
    totals = running_totals(problem.text)
    assert problem.answer == totals[-1] == solve_bare(problem.text)
    assert all(0 <= total <= 299 for total in totals)
    assert all(1 <= operand <= 99 for operand in map(int, problem.text.split(" ")[::2]))
    assert (problem.kind, problem.template) == ("bare", "bare")


@given(seeds)
def test_work_retells_the_text(seed: int) -> None:
    problem = bare_problem(Random(seed))
    totals = running_totals(problem.text)
    terms = problem.text.split(" ")[1:]
    expected = [
        f"{before}{sign}{operand}={after}"
        for before, sign, operand, after in zip(
            totals, terms[::2], terms[1::2], totals[1:], strict=False
        )
    ]
    assert list(problem.work) == expected
    assert problem.num_steps == len(expected)


def test_the_number_of_operations_is_uniform_or_as_asked() -> None:
    rng = Random(0)
    counts = Counter(bare_problem(rng).num_steps for _ in range(4000))
    assert sorted(counts) == [2, 3, 4, 5]
    assert min(counts.values()) > 900
    assert all(bare_problem(rng, num_operations=n).num_steps == n for n in (2, 3, 4, 5))


@pytest.mark.parametrize("num_operations", [-1, 0, 1, 6])
def test_other_numbers_of_operations_are_refused(num_operations: int) -> None:
    with pytest.raises(InvalidRequest, match="operations"):
        bare_problem(Random(0), num_operations)


@given(
    st.integers(0, 10**6),
    st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 10**6)), max_size=9),
    st.sampled_from(["", " ", "  ", "\t"]),
)
def test_any_bare_line_is_solved_exactly(
    first: int, rest: list[tuple[str, int]], space: str
) -> None:
    text = str(first) + "".join(f"{space}{sign}{space}{operand}" for sign, operand in rest)
    assert solve_bare(text) == first + sum(
        operand if sign == "+" else -operand for sign, operand in rest
    )
    line = parse_bare(text)
    assert line is not None
    assert running_totals(line.text) == [first, *line.results]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "+", "3 +", "- 3", "3 4", "3 + + 4", "3 * 4", "(3 + 4)", "3 + x", "3.5 + 1"),
        *("3 + 4 = 7", "__import__('os')", "٣ + ٤", "1" * 5000, "1+" * 400_000),
    ],
)
def test_what_is_not_a_bare_line_has_no_value(text: str) -> None:
    assert solve_bare(text) is None

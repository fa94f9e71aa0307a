"""A cover of pairs leaves none out, and is smaller than all cases."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from tests.covers import cover, examples, in_turns, is_every_case, left_out


def are_all_run(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--every-case")) or torch.cuda.is_available()


@pytest.mark.parametrize("sizes", [(2, 3, 4), (6, 4, 2, 2), (2, 2, 2, 2, 2), (3, 1, 3)])
def test_every_pair_of_values_is_in_a_case(sizes: tuple[int, ...]) -> None:
    names = [f"parameter {index}" for index in range(len(sizes))]
    every = [dict(zip(names, values, strict=True)) for values in product(*map(range, sizes))]
    kept = [every[index] for index in cover(every)]
    for one, other in combinations(range(len(sizes)), 2):
        found = {(case[names[one]], case[names[other]]) for case in kept}
        assert found == set(product(range(sizes[one]), range(sizes[other])))
    assert len(kept) <= len(every)
    assert cover(every) == cover(every)
    assert (len(kept) < len(every)) == (min(sizes) > 1)


@pytest.mark.pairs
@pytest.mark.parametrize("one", range(3))
@pytest.mark.parametrize("other", range(3))
@pytest.mark.parametrize("third", range(3))
def test_a_marked_test_has_fewer_cases(
    one: int, other: int, third: int, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--every-case") or request.config.getoption("keyword"):
        pytest.skip("all cases were asked for, or some by name")
    mine = [item for item in request.session.items if "fewer_cases" in item.nodeid]
    assert len(mine) in range(9, 27)
    assert left_out(mine) == []


@pytest.mark.values
@pytest.mark.parametrize("one", range(3))
@pytest.mark.parametrize("other", range(4))
def test_a_test_whose_values_are_enough_has_few_cases(
    one: int, other: int, request: pytest.FixtureRequest
) -> None:
    if are_all_run(request) or request.config.getoption("keyword"):
        pytest.skip("all cases were asked for, or some by name")
    mine = [item for item in request.session.items if "has_few_cases" in item.nodeid]
    assert len(mine) == 4


@pytest.mark.parametrize(("name", "value"), in_turns("abc", 1, 2))
def test_names_have_values_in_turns(name: str, value: int, request: pytest.FixtureRequest) -> None:
    assert (name, value) in (("a", 1), ("b", 2), ("c", 1)) or are_all_run(request)


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.spared)])
def test_a_case_that_is_spared_is_not_run(number: int, request: pytest.FixtureRequest) -> None:
    assert number == 1 or are_all_run(request)


drawn = examples(3, of=7)


def test_examples_are_fewer_unless_every_case_is_wanted(pytestconfig: pytest.Config) -> None:
    """Asked while this module is imported, as modules of properties do."""
    assert drawn == (7 if is_every_case(pytestconfig) else 3)

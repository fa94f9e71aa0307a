"""Cases of a test of which every pair of values of two parameters is in one: most faults need no third.

A test is marked with `pairs`; or with `values`, where cases that have every value are enough. A test, or a case of one, that
others stand for is marked with `spared`. `--every-case` runs all of them, and so does a machine with a GPU. Examples that are
drawn at random are fewer without `--every-case`, wherever the tests run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

SPARED = pytest.StashKey[
    list[pytest.Item]
]()  # of a session's configuration: tests that were collected and are not run


def sets_of(case: Mapping[str, object], size: int) -> frozenset[tuple[tuple[str, str], ...]]:
    """Every `size` of a case's values, as they are written."""
    values = sorted((name, repr(value)) for name, value in case.items())
    return frozenset(combinations(values, size))


def cover(cases: Sequence[Mapping[str, object]], size: int = 2) -> list[int]:
    """Cases that have all pairs, or sets of `size`; each time the one with most that are missing, the first of equals."""
    pairs = [sets_of(case, size) for case in cases]
    missing = frozenset[tuple[tuple[str, str], ...]]().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda index: len(pairs[index] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests that are marked, and that others stand for."""
    functions: dict[tuple[str, int], list[pytest.Function]] = {}
    found: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("spared"):
            found.append(item)
            continue
        for size, marker in enumerate(("values", "pairs"), start=1):
            if isinstance(item, pytest.Function) and item.get_closest_marker(marker):
                function = f"{item.path}::{item.originalname}"
                functions.setdefault((function, size), []).append(item)
    for (_, size), tests in functions.items():
        kept = set(cover([test.callspec.params for test in tests], size))
        found += [test for index, test in enumerate(tests) if index not in kept]
    return found


def spared(*values: Any) -> list[Any]:
    """Cases that others stand for."""
    return [pytest.param(value, marks=pytest.mark.spared) for value in values]


def in_turns(names: Iterable[Any], *values: Any) -> list[Any]:
    """Cases (name, value): each name with all values, of which all but one, which is another for the next name, are spared."""
    return [
        pytest.param(name, value, marks=[pytest.mark.spared] * (index % len(values) != turn))
        for index, name in enumerate(names)
        for turn, value in enumerate(values)
    ]


def is_every_case(config: pytest.Config) -> bool:
    """Whether tests run all of their cases, and not those alone that stand for the others."""
    return bool(config.getoption("--every-case"))


_of_this_run: list[pytest.Config] = []


def note(config: pytest.Config) -> None:
    """The options of this run, for what modules of tests decide while they are imported."""
    _of_this_run[:] = [config]


def examples(fewer: int, *, of: int) -> int:
    """How many examples of a property are drawn: `of`, where all cases are run."""
    return of if any(map(is_every_case, _of_this_run)) else fewer

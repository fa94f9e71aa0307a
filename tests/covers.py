"""Cases of a test of which every pair of values of two parameters is in one: most faults need no third.

A test is marked with `pairs`; `--every-case` runs all of its cases, and so does a machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

SPARED = pytest.StashKey[
    list[pytest.Item]
]()  # of a session's configuration: tests that were collected and are not run


def pairs_of(case: Mapping[str, object]) -> frozenset[tuple[tuple[str, str], ...]]:
    """Every two of a case's values, as they are written."""
    return frozenset(combinations(sorted((name, repr(value)) for name, value in case.items()), 2))


def cover(cases: Sequence[Mapping[str, object]]) -> list[int]:
    """Cases that have all pairs; each time the one with most that are missing, the first of equals."""
    pairs = [pairs_of(case) for case in cases]
    missing = frozenset[tuple[tuple[str, str], ...]]().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda index: len(pairs[index] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests that are marked, and that the others of their function stand for."""
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs"):
            functions.setdefault(f"{item.path}::{item.originalname}", []).append(item)
    spared: list[pytest.Item] = []
    for tests in functions.values():
        kept = set(cover([test.callspec.params for test in tests]))
        spared += [test for index, test in enumerate(tests) if index not in kept]
    return spared


def is_every_case(config: pytest.Config) -> bool:
    """Whether tests run all of their cases, and not those alone that stand for the others."""
    return bool(config.getoption("--every-case"))

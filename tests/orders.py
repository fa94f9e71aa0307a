"""Tests of a file in a random order: what one of them leaves behind, or finds by chance, is no other one's.

`--dist worksteal` gives a process the end of another one's tests, so that those of a file come in many orders and in several
processes. Files stay where they are: what a file prepares is prepared once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


def shuffled(items: Iterable[Item], seed: int, file_of: Callable[[Item], object]) -> list[Item]:
    """The items, those of each file in an order of their own, which the seed and their number make and no other file."""
    found: list[Item] = []
    for _, of_file in groupby(items, file_of):
        group = list(of_file)
        Random(seed).shuffle(group)
        found += group
    return found

"""Joins: how finished branches become one text again (PDOS, section 3, stage 3).

    reencode   the branches' text is fed once more behind the trunk, one after another: exactly the
               causal text, as the authors' code does it
    stitch     nothing is computed anew: the branches' own blocks, one after another, which have not
               read each other; their keys are rotated to where they now stand
    keep       nothing is computed and nothing moves: all branches stay where they were written, side
               by side behind the trunk, and what follows stands behind the longest of them

The last two are not what a causal prefill would give; how far they are from it, for a recorded run,
says `replay/joins.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, Lanes, View
from manyhands.strategies.scene import Writing

# From the trunk and the branches to what stands behind the trunk, and the rows to be fed for it.
Joined = tuple[tuple[Item, ...], list[Row]]
Join = Callable[[tuple[Item, ...], Sequence[Writing]], Joined]


def reencode(trunk: tuple[Item, ...], team: Sequence[Writing]) -> Joined:
    """All branches in one block behind the trunk, each reading those before it."""
    joined = Block("branches")
    tokens = tuple(token for branch in team for token in branch.tokens())
    return (joined,), [Row(View((*trunk, joined)), tokens)]


def stitch(trunk: tuple[Item, ...], team: Sequence[Writing]) -> Joined:
    """The branches' own blocks, one behind another."""
    parts = [branch.fed(trunk) for branch in team]
    items = tuple(item for items, _ in parts for item in items)
    return items, [row for _, rows in parts for row in rows]


def keep(trunk: tuple[Item, ...], team: Sequence[Writing]) -> Joined:
    """The branches' own blocks, side by side."""
    parts = [branch.fed(trunk) for branch in team]
    return (Lanes(items for items, _ in parts),), [row for _, rows in parts for row in rows]


# A new join is one function and one name.
JOINS: Mapping[str, Join] = MappingProxyType(
    {join.__name__: join for join in (reencode, stitch, keep)}
)

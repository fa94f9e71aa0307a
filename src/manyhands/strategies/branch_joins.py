"""Joins: how finished branches become one text again (PDOS, section 3, stage 3).

    reencode   the branches' text is fed once more behind the trunk, one after another: exactly the
               causal text, as the authors' code does it
    stitch     nothing is computed anew: the branches' own blocks, one after another, which have not
               read each other; their keys turn to where they now stand
    keep       nothing is computed and nothing moves: all branches stay where they were written, side
               by side behind the trunk, and what follows stands behind the longest of them

The last two are not what a causal prefill would give; how far they are from it, for a recorded run,
says `replay/joins.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, Lanes, View


@dataclass(frozen=True)
class Piece:
    """A branch as it is joined: what lies in memory, and what has not been fed yet."""

    name: str
    blocks: tuple[Block, ...]
    unfed: tuple[int, ...]

    def tokens(self) -> tuple[int, ...]:
        """Title and text, up to the line break."""
        return tuple(t for block in self.blocks for t in block.tokens) + self.unfed

    def fed(self, trunk: tuple[Item, ...]) -> tuple[tuple[Block, ...], list[Row]]:
        """All blocks of the branch, and the row that feeds the rest of it, read as it was written."""
        if not self.unfed:
            return self.blocks, []
        last = Block(f"{self.name}'s last")
        return (*self.blocks, last), [Row(View((*trunk, *self.blocks, last)), self.unfed)]


# From the trunk and the branches to what stands behind the trunk, and the rows to be fed for it.
Joined = tuple[tuple[Item, ...], list[Row]]
Join = Callable[[tuple[Item, ...], Sequence[Piece]], Joined]


def reencode(trunk: tuple[Item, ...], team: Sequence[Piece]) -> Joined:
    """All branches in one block behind the trunk, each reading those before it."""
    joined = Block("branches")
    tokens = tuple(token for piece in team for token in piece.tokens())
    return (joined,), [Row(View((*trunk, joined)), tokens)]


def stitch(trunk: tuple[Item, ...], team: Sequence[Piece]) -> Joined:
    """The branches' own blocks, one behind another."""
    parts = [piece.fed(trunk) for piece in team]
    blocks = tuple(block for blocks, _ in parts for block in blocks)
    return blocks, [row for _, rows in parts for row in rows]


def keep(trunk: tuple[Item, ...], team: Sequence[Piece]) -> Joined:
    """The branches' own blocks, side by side."""
    parts = [piece.fed(trunk) for piece in team]
    return (Lanes(blocks for blocks, _ in parts),), [row for _, rows in parts for row in rows]


# A new join is one function and one name.
JOINS: Mapping[str, Join] = MappingProxyType(
    {join.__name__: join for join in (reencode, stitch, keep)}
)

"""Where a block lies: a place on a strip, and the moves from one place to another.

A Strip is a list of pages with one ruler, a Place a strip and an offset on it:

    strip   pages 4, 7, 2    |marker|desk......|     one ruler over all three
    place   of the desk      offset 3                its index 0 is index 3 of the strip

A Move says which slots are copied to which others, and by how much their keys are rotated. Many moves are made at once where
none meets another (`num_apart`). These are numbers alone: which pages are free, and for whom, is the pool's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyhands.cache.block import Block

Ints = NDArray[np.int64]
NOWHERE = -1  # in the place of a slot


class Front(NamedTuple):
    """The block of which a copy stands at the beginning of a strip, and its tokens."""

    block: weakref.ref[Block]
    size: int


@dataclass(eq=False)
class Strip:
    """Pages with one ruler. `places` of living blocks are on it; `left` once its block moved away.

    `awaited` is a front that is still to be filled.
    """

    pages: list[int] = field(default_factory=list)
    num_tokens: int = 0
    places: list[Place] = field(default_factory=list)
    left: bool = False
    front: Front | None = None
    awaited: Front | None = None
    number: int = field(default_factory=count().__next__)  # its name, for arrays

    @property
    def num_blocks(self) -> int:
        """How many living blocks lie here."""
        return len(self.places)


@dataclass(eq=False)
class Place:
    """Where a block lies: its index 0 is index `offset` of the strip.

    `size` is known of a block that shares its strip with others: it is frozen. `fronts` are strips with nothing but a
    copy of the block, `rooms` those with room for one.
    """

    strip: Strip
    offset: int = 0
    size: int = 0
    fronts: list[Strip] = field(default_factory=list)
    rooms: list[Strip] = field(default_factory=list)


@dataclass(frozen=True)
class Move:
    """Copy these slots; rotate the keys forward by `shift`, the difference of the two offsets.

    Where a source is `NOWHERE`, zeros are written.
    """

    sources: Ints
    targets: Ints
    shift: int

    @cached_property
    def is_clearing(self) -> bool:
        """Whether nothing is copied."""
        return bool((self.sources == NOWHERE).all())


def num_apart(moves: Sequence[Move]) -> int:
    """How many of the first moves can be made at once: none writes a slot that another reads or writes."""
    if len(moves) == 1:
        return 1
    read: set[int] = set()
    written: set[int] = set()
    for index, move in enumerate(moves):
        sources, targets = move.sources.tolist(), move.targets.tolist()
        if not (
            written.isdisjoint(sources) and written.isdisjoint(targets) and read.isdisjoint(targets)
        ):
            return index
        read.update(sources)
        written.update(targets)
    return len(moves)

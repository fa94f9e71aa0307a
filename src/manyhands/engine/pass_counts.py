"""Counts of how passes were made: what an operator looks at when passes take longer than they should.

A server that got ready (`Engine.get_ready`) compiles and records next to nothing afterwards, and runs hardly a pass launch by
launch. No tensor is needed here, so that reading the counts brings no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass
class PassCounts:
    """How passes were run so far, each in one of the first three ways, and what that has cost."""

    eager: int = 0  # launch by launch
    replayed: int = 0  # by a recording, all integers sent anew
    followed: int = 0  # by a recording, one token later than the pass before: tokens alone sent
    recorded: int = 0  # recordings made
    lookaheads: int = 0  # passes begun before they were asked for
    heads: int = 0  # passes of which the first layers alone were begun
    dropped: int = 0  # passes begun that no step asked for
    planned_ahead: int = 0  # passes planned and begun while the device made the one before
    in_vain: int = 0  # rows of these that no run asked for
    moves: int = 0  # blocks moved in memory
    compiled: int = 0  # kernels compiled, or loaded from the cache on disk

    def __sub__(self, other: Self) -> Self:
        theirs = vars(other)
        return type(self)(**{name: n - theirs[name] for name, n in vars(self).items()})

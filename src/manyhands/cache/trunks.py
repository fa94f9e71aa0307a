"""Trunks: how views begin, walked once and remembered for the views to come.

Whenever a worker ends a step, all views of its team are made anew, and all of them begin with the same prompt
and the same long history. Walking that history block by block for every view would cost workers times steps
each time, so a team would become slower with every step that it has finished. The run of finished blocks with
which a view begins, its *trunk*, is kept together with the pieces that it lies in; the next view walks only
what it has beyond the longest trunk that it shares (`cache/routes.py::Walk`).

    one view      prompt  step 1  step 2  others' header  ...
    the next      prompt  step 1  step 2  step 3  others' header  ...
                  '-- shared: not walked --'

Blocks are held weakly, as everywhere in planning: a trunk keeps no keys in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from manyhands.cache.block import Block
from manyhands.cache.places import Strip
from manyhands.cache.view import Lanes, View

_MOST = 64  # trunks that begin with one block, as those of teams under one system prompt do


class Frozen(NamedTuple):
    """Neighbouring frozen blocks of a view that lie in one piece: `size` keys of `strip` from `low`."""

    strip: Strip
    low: int
    size: int


class Trunk(NamedTuple):
    """Finished blocks with which a view begins, and the pieces they lie in."""

    blocks: tuple[weakref.ref[Block], ...]
    pieces: tuple[Frozen, ...]
    ends: tuple[int, ...]  # of each block: keys of the view up to its end
    # The first of its blocks, so many, are those of this line of beginnings (`cache/view.py::Beginning`).
    line: object = None
    on_line: int = 0

    @classmethod
    def of(
        cls,
        view: View,
        blocks: Sequence[weakref.ref[Block]],
        pieces: Sequence[Frozen],
        ends: Sequence[int],
    ) -> Trunk:
        """The beginning of a view, as far as it was walked."""
        beginning = view.beginning
        line, size = (None, 0) if beginning is None else (beginning.line, len(beginning.blocks))
        return cls(tuple(blocks), tuple(pieces), tuple(ends), line, min(size, len(blocks)))

    def upto(self, count: int) -> Trunk:
        """The trunk of the first `count` blocks, for a walk to go on from: if they are fewer, of no line."""
        if count == len(self.blocks):
            return self
        num_keys = self.ends[count - 1] if count else 0
        kept: list[Frozen] = []
        for piece in self.pieces:
            if num_keys <= 0:
                break
            kept.append(piece._replace(size=min(piece.size, num_keys)))
            num_keys -= piece.size
        return Trunk(self.blocks[:count], tuple(kept), self.ends[:count])

    @property
    def has_moved(self) -> bool:
        """Whether a block of it was moved behind another one since."""
        return any(piece.strip.left for piece in self.pieces)


NOTHING = Trunk((), (), ())


class Trunks:
    """The trunks of all views that were walked lately."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Block, tuple[Trunk, ...]] = (
            weakref.WeakKeyDictionary()
        )

    def shared(self, view: View) -> Trunk:
        """The longest beginning of a view, of blocks that lie where they lay, that is known already.

        Of a view whose beginning goes on from that of another, as far as that one reached: nothing is compared.
        """
        beginning = view.beginning
        first = beginning.blocks[0] if beginning and beginning.blocks else view.rest[0]
        if not isinstance(first, Block) or not (known := self._known.get(first)):
            return NOTHING
        if beginning is not None:
            size = len(beginning.blocks)
            of_line = [trunk for trunk in known if trunk.line is beginning.line]
            if len(of_line) > 1:
                of_line.sort(key=lambda each: min(each.on_line, size), reverse=True)
            for trunk in of_line:
                begun = trunk.upto(min(trunk.on_line, size))
                if begun.blocks and not begun.has_moved:
                    return begun
        items = view.items
        kinds = list(map(type, items))
        in_row = items[: kinds.index(Lanes)] if Lanes in kinds else items
        blocks: tuple[weakref.ref[Any], ...] = tuple(map(weakref.ref, in_row))
        counts = [_num_shared(trunk.blocks, blocks) for trunk in known]
        longest = max(range(len(known)), key=counts.__getitem__)
        trunk = known[longest].upto(counts[longest])
        return NOTHING if trunk.has_moved else trunk

    def add(self, trunk: Trunk) -> None:
        """Remember it, in place of those that it goes on from and of those that are gone."""
        first = trunk.blocks[0]()
        assert first is not None, "the view that was walked holds it"
        others = [
            known
            for known in self._known.get(first, ())
            if known.blocks[-1]() is not None
            and known.blocks[:-1] != trunk.blocks[: len(known.blocks) - 1]
        ]
        self._known[first] = (trunk, *others[: _MOST - 1])

    def forget(self) -> None:
        """Blocks were evicted, and may lie elsewhere."""
        self._known.clear()


def _num_shared(blocks: Sequence[weakref.ref[Any]], others: Sequence[weakref.ref[Any]]) -> int:
    """How many of the first ones are the same. Halves are compared whole, which is one call each."""
    low, high = 0, min(len(blocks), len(others))
    if blocks[:high] == others[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if blocks[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle
    return low

"""The blocks in memory at one moment of a run, and the tokens still to be fed: for endings and joins.

A `Writing` is what was written: its blocks, and the tokens behind them that no row has fed yet. A `Scene`
is all of a run, as an ending reads it: blocks in order, and the rows that feed what is not fed yet. These
write to blocks of their own, the tails, so a run can be asked for its answer at any time and goes on as if
it had not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, View, blocks_of


@dataclass(frozen=True)
class Writing:
    """Text as it lies in memory, and the tokens behind it that no row has fed yet.

    `rows` write to blocks that stand among `items`, and have not been asked for either.
    """

    items: tuple[Item, ...]
    unfed: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()

    def tokens(self) -> tuple[int, ...]:
        """All of it as one ordinary sequence."""
        feeds = {row.view.own: row.feed for row in self.rows}
        blocks = blocks_of(self.items)
        return (*(t for b in blocks for t in (*b.tokens, *feeds.get(b, ()))), *self.unfed)

    def fed(self, before: tuple[Item, ...] = ()) -> tuple[tuple[Item, ...], list[Row]]:
        """Its blocks, a tail for the unfed tokens, and the rows: its own, and one that feeds these behind `before`."""
        if not self.unfed:
            return self.items, list(self.rows)
        items = (*self.items, Block("newest"))
        return items, [*self.rows, Row(View((*before, *items)), self.unfed)]


@dataclass(frozen=True, eq=False)
class Scene:
    """Where an ending reads: all blocks in order, and the rows that feed what is not fed yet.

    The rows write to blocks that stand among `items`: tails, or what the run would feed next.
    `said` are the blocks that are encoded where all text is encoded anew; None: all of `items`.
    """

    items: tuple[Item, ...]
    rows: tuple[Row, ...] = ()
    said: tuple[Block, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """All that stands there, what is not fed yet included."""
        fed = sum(block.num_tokens for block in blocks_of(self.items))
        return fed + sum(len(row.feed) for row in self.rows)

    def view(self, *last: Block) -> View:
        """Reads everything, then the blocks `last`, and writes to the last of them."""
        return View((*self.items, *last))

    def tokens(self) -> tuple[int, ...]:
        """All text as one ordinary sequence."""
        unfed = {row.view.own: row.feed for row in self.rows}
        said = blocks_of(self.items) if self.said is None else self.said
        return tuple(t for block in said for t in (*block.tokens, *unfed.get(block, ())))


def scene_of(trunk: Writing, others: Sequence[Writing] = (), opening: Sequence[Row] = ()) -> Scene:
    """The scene of `trunk`, and behind it of `others`, each of which has read the trunk alone.

    `opening` are rows that write to blocks of these writings and have not been asked for either.
    """
    ground, rows = trunk.fed()
    items = ground
    for other in others:
        more, tail = other.fed(ground)
        items, rows = items + more, rows + tail
    return Scene(items, (*opening, *rows))

"""Fronts: the desks that begin behind a copy of their team's marker.

Of a team each row reads the others' desks and, between them, one short block again and again: the marker. With a copy of
it on a desk's strip, in front of the desk, both are one piece to read. The copies are accounted for in
`cache/pages.py`. Here it is decided which block is a marker, which desks get a copy, and when copies are made:

    a desk is fed for the first time    it begins behind a copy, if one waits for it
    the marker is fed beside it         the desk begins behind room for a copy, which is filled once the marker is finished
    a plan that has the time            makes copies for the desks to come

Strategies do not say which block is a marker. It is known by the views of a step: it stands more than once in the view of a row
beside the desk's own, and there directly before the desk.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.cache.view import View

_LONGEST = 16  # tokens of a block that is copied
_AHEAD = 2  # copies that are made ahead: as many steps may end in one pass


class Fronts:
    """The markers of a planner's teams, and which desks have copies of them in front."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        # Markers of which desks have copies, and those for which desks have room; in the order in which they were met, for a
        # set of objects has that of their addresses, and copies would lie elsewhere in an equal run.
        self.markers: weakref.WeakKeyDictionary[Block, None] = weakref.WeakKeyDictionary()
        self._unwritten: weakref.WeakKeyDictionary[Block, None] = weakref.WeakKeyDictionary()

    def give(
        self,
        step: Step,
        growth: Mapping[Block, int],
        pending: Mapping[Block, int],
        *,
        has_time: bool,
    ) -> bool:
        """Have the desks that a step feeds for the first time, if nothing has read them, begin behind a copy or room for one.

        `growth` is by how much the step makes its blocks longer, `pending` what a pass under way adds before that. `has_time`:
        this plan may make a copy where none waits. True where copies were put into the room that is there for them: then
        this plan owes moves in any case, unless no room was left.
        """
        has_filled = bool(self._unwritten) and self._fill()
        has_time |= has_filled
        rows = step.rows
        for index in [at for at, row in enumerate(rows) if not row.view.own.tokens]:
            own = rows[index].view.own
            if self._pool.has_seen(own):
                continue
            before: Block | None = None
            for at in (index - 1, index + 1):
                if before is None and 0 <= at < len(rows):
                    before = _marker_before(own, rows[at].view)
            if before is None:
                continue
            size = before.num_tokens + pending.get(before, 0) + growth.get(before, 0)
            if not 0 < size <= _LONGEST:
                continue
            if not before.frozen:
                if before in growth:
                    self._unwritten[before] = None
                    self._pool.leave_room(own, before, size)
            else:
                self.markers[before] = None
                if has_time and not self._pool.num_fronts(before):
                    self._pool.make_front(before)
                self._pool.give_front(own, before)
        return has_filled

    def make(self) -> None:
        """Make copies for the desks to come."""
        for marker in list(self.markers):
            for _ in range(self._pool.num_fronts(marker), _AHEAD):
                self._pool.make_front(marker)

    def _fill(self) -> bool:
        """Copy markers that are finished to where desks have room for them; whether there was one."""
        finished = [marker for marker in self._unwritten if marker.frozen]
        for marker in finished:
            self._pool.fill_rooms(marker)
            self.markers[marker] = None
            self._unwritten.pop(marker, None)
        return bool(finished)


def _marker_before(desk: Block, view: View) -> Block | None:
    """The block that stands directly before a desk in another's view, if it stands there again; None without such a one."""
    # Behind a history, which may be long, and from the end on.
    blocks = view.blocks_from(view.num_begun)[::-1]
    if view.beside_others or desk not in blocks[:-1]:
        return None
    before = blocks[blocks.index(desk) + 1]
    return before if blocks.count(before) > 1 else None

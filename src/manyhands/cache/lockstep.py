"""Plain decoding: the same rows, one token each, again and again.

Between two such steps every integer of the plan changes by a constant (`Growth`). So the next plan is
made from the last one by a few additions, whatever the number of rows and pieces, and a copy of the plan
on a device is kept up to date by adding the same constants there (`Plan.lockstep`, `Plan.lockstep_index`).

Views and blocks are held weakly: a block that is not used any more is freed, whatever was planned last.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.cache.step import Step


class Lockstep:
    """The last plan, and what must be true for the next to follow from it."""

    def __init__(
        self,
        plan: Plan,
        step: Step,
        live: Iterable[Block],
        pool: PagePool,
        max_positions: int | None,
        pending: Mapping[Block, int] | None = None,
    ) -> None:
        """`pending`: the plan was made ahead, see `Planner.plan_ahead`. None: its feeds are promised."""
        assert plan.growth is not None, "only a plan that grows can be followed"
        ahead = pending or {}
        self.plan = replace(plan, lockstep=object())
        self.pool = pool
        self._growth = plan.growth
        self._views = [weakref.ref(row.view) for row in step.rows]
        self._strips = [pool.place(row.view.own).strip for row in step.rows]
        writers = {row.view.own for row in step.rows}
        owners = [row.view.own for row in step.rows]
        self._lengths = [b.num_tokens + ahead.get(b, 0) for b in owners]  # before the first pass
        self._others = [
            (weakref.ref(b), b.num_tokens + ahead.get(b, 0)) for b in live if b not in writers
        ]
        taken = [0 if pending is None else ahead.get(block, 0) + 1 for block in owners]
        left = min(
            pool.num_slots_left(strip) - size
            for strip, size in zip(self._strips, taken, strict=True)
        )
        self._last_index = min(_last_index(plan, max_positions), left)

    def follow(self, step: Step, pending: Mapping[Block, int] | None = None) -> Plan | None:
        """The plan of this step if it is the last one again, one token later; room is promised.

        None if anything is different, if a strip is out of pages, or at the end of the positions. With
        `pending` the plan is made ahead (`Planner.plan_ahead`), and nothing is promised.
        """
        if not self._is_next(step, pending or {}):
            return None
        if pending is None:
            self.pool.promise((row.view.own, 1) for row in step.rows)
        self.plan = self._advanced([row.feed[0] for row in step.rows])
        return self.plan

    @property
    def has_room(self) -> bool:
        """Whether there are positions for one token more each, and slots on the pages in use."""
        return self.plan.lockstep_index < self._last_index

    def _is_next(self, step: Step, pending: Mapping[Block, int]) -> bool:
        if not self.has_room or len(step.rows) != len(self._views):
            return False
        index = self.plan.lockstep_index + 1
        for row, known, length in zip(step.rows, self._views, self._lengths, strict=True):
            view = row.view
            if view is not known() or len(row.feed) != 1 or row.draft:
                return False
            if len(view.own.tokens) + pending.get(view.own, 0) != length + index:
                return False
        return all(
            (block := other()) is not None and block.num_tokens + pending.get(block, 0) == length
            for other, length in self._others
        )

    def _advanced(self, token_ids: list[int]) -> Plan:
        plan, growth, reads = self.plan, self._growth, self.plan.reads
        offsets = plan.offsets + 1
        return replace(
            plan,
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=plan.positions + growth.position,
            offsets=offsets,
            slots=self._slots(offsets),
            reads=replace(reads, base=reads.base + growth.base, high=reads.high + growth.high),
            lockstep_index=plan.lockstep_index + 1,
        )

    def _slots(self, offsets: Ints) -> Ints:
        """One further, except where a page has ended."""
        size = self.pool.page_size
        slots: Ints = self.plan.slots + 1
        for row in (offsets % size == 0).nonzero()[0]:
            slots[row] = self._strips[row].pages[int(offsets[row]) // size] * size
        return slots


def _last_index(plan: Plan, max_positions: int | None) -> int:
    """How often the plan can be followed before a row leaves the model's positions."""
    assert plan.growth is not None
    if max_positions is None:
        return 1 << 62
    return int(((max_positions - 1 - plan.positions) // plan.growth.position).min())

"""A plan that follows from the last one is the plan that would have been made from the views."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import ContextTooLong, InvalidRequest, OutOfMemory


class Twins:
    """Two planners over equal pools; the second forgets what it planned before every step."""

    def __init__(self, num_pages: int = 64, page_size: int = 4, reach: int | None = None) -> None:
        self.planner = Planner(PagePool(num_pages, page_size), reach)
        self.forgetful = Planner(PagePool(num_pages, page_size), reach)
        self.num_followed = 0

    def take(self, step: Step) -> Plan:
        self.forgetful._lockstep = None
        plan, made = self.planner.plan(step), self.forgetful.plan(step)
        self.num_followed += plan.lockstep_index > 0
        assert made.lockstep_index == 0
        assert_equal(plan, made)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        for planner in (self.planner, self.forgetful):
            planner.pool.keep()
        return plan


def assert_equal(plan: Plan, made: Plan) -> None:
    """The same integers, but for the names of pages: spares are handed out at other moments."""
    for name in ("token_ids", "row_indptr", "positions", "offsets"):
        assert np.array_equal(getattr(plan, name), getattr(made, name)), name
    for field in fields(plan.reads):
        if field.name != "pages":
            ours, theirs = getattr(plan.reads, field.name), getattr(made.reads, field.name)
            assert np.array_equal(ours, theirs), field.name
    size, reads = plan.page_size, plan.reads
    assert np.array_equal(plan.slots % size, made.slots % size)
    pairs = set(zip((plan.slots // size).tolist(), (made.slots // size).tolist(), strict=True))
    for strip, (ours, theirs) in enumerate(zip(reads.pages, made.reads.pages, strict=True)):
        high = reads.high[reads.strip_indptr[strip] : reads.strip_indptr[strip + 1]].max()
        used = -(-int(high) // size)
        pairs |= set(zip(ours[:used].tolist(), theirs[:used].tolist(), strict=True))
    assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)


def test_a_full_page_does_not_end_it() -> None:
    """Rows that fill their pages at different times are planned anew once a page, not once a row and page."""
    for spares, expected in ((True, range(1, 8)), (False, range(20, 99))):
        pool = PagePool(400, 4)
        if not spares:  # the control
            pool.add_spares = lambda strips: None  # type: ignore[method-assign]
        planner, views, num_planned = Planner(pool), [View([Block()]) for _ in range(4)], 0
        for index, view in enumerate(views):
            planner.plan(Step([Row(view, (1,) * (index + 1))]))
            view.own.tokens.extend([1] * (index + 1))
            pool.keep()
        for _ in range(24):
            num_planned += (
                planner.plan(Step([Row(view, (1,)) for view in views])).lockstep_index == 0
            )
            for view in views:
                view.own.tokens.append(1)
            pool.keep()
        assert num_planned in expected


def test_spares_are_the_first_to_go() -> None:
    """They count as free, and whoever needs the room gets it; then the plan is made anew."""
    pool = PagePool(20, 4)
    planner, view, other = Planner(pool), View([Block()]), Block()
    for _ in range(2):
        planner.plan(Step([Row(view, (1,))]))
        view.own.tokens.append(1)
        pool.keep()
    assert len(pool.place(view.own).strip.pages) == 2
    assert pool.num_free_pages == 19
    pool.reserve([(other, 19 * 4)])
    assert pool.num_free_pages == 0
    assert len(pool.place(view.own).strip.pages) == 1
    assert planner.plan(Step([Row(view, (1,))])).lockstep_index == 0


def team(num_workers: int) -> tuple[Block, list[View]]:
    prompt, desks = Block("prompt"), [Block() for _ in range(num_workers)]
    views = [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]
    return prompt, views


@pytest.mark.parametrize("seed", range(8))
def test_random_conversations(seed: int) -> None:
    rng, twins = random.Random(seed), Twins(num_pages=400)
    prompt, views = team(3)
    twins.take(Step([Row(View([prompt]), (7,) * 10)]))
    for _ in range(60):
        writers = views if rng.random() < 0.85 else rng.sample(views, 2)
        size = rng.choice([1, 1, 1, 1, 1, 3])
        twins.take(Step([Row(view, tuple(range(size))) for view in writers]))
        if rng.random() < 0.05:  # a desk is finished and a fresh one begins
            at = rng.randrange(3)
            prompt, own = views[at].own, Block()
            prompt.freeze()
            views[at] = View([*views[at].blocks, own])
    assert twins.num_followed > 5


def test_what_is_not_in_the_step_must_stay_as_it_is() -> None:
    twins = Twins()
    prompt, (alice, bob) = team(2)
    twins.take(Step([Row(View([prompt]), (1, 2, 3))]))
    for _ in range(2):
        twins.take(Step([Row(alice, (1,))]))
    followed = twins.num_followed
    bob.own.tokens.append(5)  # as if somebody else had written: Alice reads it
    for planner in (twins.planner, twins.forgetful):
        planner.pool.reserve([(bob.own, 1)])
    twins.take(Step([Row(alice, (1,))]))
    assert twins.num_followed == followed


def test_the_end_of_the_positions_is_still_seen() -> None:
    twins = Twins(reach=9)
    prompt, own = Block(), Block()
    view = View([prompt, own])
    twins.take(Step([Row(View([prompt]), (1, 2, 3))]))
    for _ in range(6):
        twins.take(Step([Row(view, (1,))]))
    assert twins.num_followed > 2
    with pytest.raises(ContextTooLong, match="10 tokens long"):
        twins.planner.plan(Step([Row(view, (1,))]))


def test_the_end_of_the_memory_is_still_seen() -> None:
    twins = Twins(num_pages=2, page_size=4)
    view = View([Block()])
    for _ in range(8):
        twins.take(Step([Row(view, (1,))]))
    with pytest.raises(OutOfMemory):
        twins.planner.plan(Step([Row(view, (1,))]))


def test_blocks_are_not_held() -> None:
    pool = PagePool(8, 4)
    planner = Planner(pool)
    view = View([Block()])
    for _ in range(3):
        planner.plan(Step([Row(view, (1,))]))
        view.own.tokens.append(1)
        pool.keep()
    del view
    assert pool.num_free_pages == 8


def test_a_frozen_block_is_not_written_to() -> None:
    planner = Planner(PagePool(8, 4))
    view = View([Block()])
    step = Step([Row(view, (1,))])
    planner.plan(step)
    view.own.tokens.append(1)
    view.own.freeze()
    with pytest.raises(InvalidRequest, match="frozen"):
        planner.plan(step)

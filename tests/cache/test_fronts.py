"""Copies of a team's marker: which desks begin behind one, what a row reads then, and what copies take of memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from manyhands.cache.block import Block
from manyhands.cache.layouts import combined
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Strip
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import OutOfMemory
from tests.cache.test_plan import Ledger, a_team, begun, num_reads, seated


@pytest.mark.parametrize("joins_ahead", [False, True])
def test_desks_have_copies_of_the_marker_in_front_of_them(joins_ahead: bool) -> None:
    """Each row reads the prompt, a header, one piece for each other desk, a marker with its own header, its own desk.

    Where moves wait for a plan that has the time, copies are made by it, for the desks that come after it.
    """
    ledger = Ledger(PagePool(400, 4))
    ledger.planner.joins_ahead = joins_ahead
    cast = a_team(5)
    views = begun(ledger, cast)
    least, apart = 2 + 4 + 1 + 1, 3
    plan = ledger.play(Step([Row(view, (3,)) for view in views]))
    assert num_reads(plan) == [least + apart * joins_ahead] * 5
    # A worker ends its step: its desk joins the history, and the next one has a copy in any case.
    own = Block("desk 2, the next step")
    desks = [own if desk is cast.desks[2] else desk for desk in cast.desks]
    history = (cast.desks[2].freeze(),)
    cast = replace(cast, history=history, desks=tuple(desks))
    views = [combined(cast, worker) for worker in range(5)]
    feeds = [(4, 4) if view.own is own else (3,) for view in views]
    for feed in (feeds, [(3,)] * 5, [(3,)] * 5):
        plan = ledger.play(Step([Row(view, each) for view, each in zip(views, feed, strict=True)]))
    pool = ledger.planner.pool
    assert pool.place(own).strip.front is not None
    of_one = [least + apart - (worker != 2) for worker in range(5)]
    assert num_reads(plan) == (of_one if joins_ahead else [least] * 5)
    assert pool.place(history[0]).strip is pool.place(cast.prompt).strip
    assert pool.num_fronts(cast.marker) == 2, "for the next desks"


@pytest.mark.parametrize("joins_ahead", [False, True])
def test_desks_of_the_first_step_have_room_for_a_copy(joins_ahead: bool) -> None:
    """All of a team is fed in one step. With the views behind it, its marker is finished and copied to each desk but one."""
    ledger = Ledger(PagePool(400, 4))
    ledger.planner.joins_ahead = joins_ahead
    pool, cast = ledger.planner.pool, a_team(5)
    texts = ((cast.prompt, 9), (cast.others_header, 3), (cast.own_header, 3), (cast.marker, 2))
    opening = [Row(View([block]), (1,) * size) for block, size in texts]
    plan = ledger.play(Step([*opening, *(Row(view, (2, 2)) for view in seated(cast))]))
    apart = 2 + 4 + 4 + 1 + 1  # prompt and header, desks and their markers, own header and desk
    assert num_reads(plan)[4:] == [apart] * 5
    assert [pool.place(desk).offset for desk in cast.desks] == [0, 2, 2, 2, 2]
    for block in (cast.prompt, cast.own_header, cast.marker):
        block.freeze()
    views = seated(cast)
    for _ in range(3):
        plan = ledger.play(Step([Row(view, (3,)) for view in views]))
    assert num_reads(plan) == [2 + 4 + 1 + 1] * 5
    assert pool.num_fronts(cast.marker) == 2, "for the next desks"
    # Views that were there before read the marker where it lies, as ever.
    history = (cast.desks[3].freeze(),)
    desks = (*cast.desks[:3], Block("desk 3, the next step"), cast.desks[4])
    for _ in range(3):
        views = seated(replace(cast, history=history, desks=desks))
        plan = ledger.play(Step([Row(view, (3,)) for view in views]))
    assert num_reads(plan) == [2 + 4 + 1 + 1] * 5
    assert pool.place(history[0]).strip is pool.place(cast.prompt).strip


def test_room_that_is_never_filled() -> None:
    """Of a marker that comes to be longer, of a desk that has left its strip, where pages are few or keys never moved."""
    for name in ("longer", "evicted", "few", "never moved", "failed"):
        pages = 8 if name == "few" else 400
        ledger = Ledger(PagePool(pages, 4, recycle=name != "never moved"))
        pool, cast = ledger.planner.pool, a_team(4)
        rows = [Row(View([cast.prompt]), (1,) * 9), Row(View([cast.marker]), (1, 1))]
        step = Step([*rows, *(Row(view, (2,)) for view in seated(cast))])
        if name == "failed":
            ledger.planner.plan(step)
            pool.take_back()
            assert [pool.place(desk).offset for desk in cast.desks] == [0] * 4
        ledger.play(step)
        if name == "longer":
            ledger.play(Step([Row(View([cast.marker]), (1,))]))
        if name == "evicted":
            for desk in cast.desks:
                gone: list[Strip] = []
                pool.evict([desk], gone)
                pool.bring_back(gone)
                for index, slot in enumerate(pool.slots(gone[0], 0, 1).tolist()):
                    ledger.whose[slot], ledger.offset[slot] = (desk, index), index
        cast.marker.freeze()
        plan = ledger.play(Step([Row(view, (3,)) for view in seated(cast)]))
        filled = [pool.place(desk).strip.front is not None for desk in cast.desks]
        assert filled == [False, name == "few", False, False]
        assert num_reads(plan) == [1 + 3 + 3 + 1 - (name == "few" and w > 1) for w in range(4)]


def test_no_copies_where_they_do_not_pay() -> None:
    """Two workers read the marker once each; where pages are few or keys never moved, memory is for other things."""
    for workers, pool, wanted in (
        (2, PagePool(400, 4), [False, False]),
        (5, PagePool(13, 16), [False, True, True, False, False]),  # as long as there are plenty
        (5, PagePool(400, 4, recycle=False), [False] * 5),
    ):
        ledger = Ledger(pool)
        cast = a_team(workers)
        begun(ledger, cast)
        assert [pool.place(desk).strip.front is not None for desk in cast.desks] == wanted


def test_copies_that_wait_are_free_pages() -> None:
    """Any other block may have them, and they go with their marker."""
    for has_marker in (True, False):
        ledger = Ledger(PagePool(64, 4))
        pool, cast = ledger.planner.pool, a_team(4)
        views = begun(ledger, cast)
        ledger.play(Step([Row(view, (3,)) for view in views]))
        assert pool.num_fronts(cast.marker) == 2
        num_free = pool.num_free_pages
        if not has_marker:
            del cast, views
            ledger.whose.clear()
            gc.collect()
            assert pool.num_free_pages == 64
            continue
        pool.reserve([(Block("large"), 4 * num_free)])
        assert pool.num_fronts(cast.marker) == 0
        ledger.play(Step([Row(view, (3,)) for view in views[:1]]))  # room for one token is left


def test_a_marker_that_stays_unfinished_is_not_copied() -> None:
    """Its strategy may write on. So no plan waits for it, and the room for its copies stays empty."""
    ledger = Ledger(PagePool(400, 4))
    cast = a_team(4)
    views = [combined(cast, worker) for worker in range(4)]
    rows = [Row(View([block]), (1, 1)) for block in (cast.prompt, cast.marker)]
    ledger.play(Step([*rows, *(Row(view, (2,)) for view in views)]))
    for token in range(3):
        plan = ledger.play(Step([Row(view, (3,)) for view in views]))
        assert num_reads(plan) == [1 + 3 + 3 + 1] * 4
        assert plan.lockstep_index == token, "it is followed"
    cast.marker.tokens.extend((1, 1))  # had a copy been made, it would be too short now
    assert not ledger.planner.pool._moves


def test_a_desk_that_comes_back_has_no_copy() -> None:
    """Its keys are written again on a strip of its own, and the marker is read where it lies."""
    ledger = Ledger(PagePool(400, 4))
    pool = ledger.planner.pool
    cast = a_team(4)
    views = begun(ledger, cast)
    ledger.play(Step([Row(view, (3,)) for view in views]))
    desk = cast.desks[2]
    assert pool.place(desk).strip.front is not None
    gone: list[Strip] = []
    pool.evict([desk], gone)
    pool.bring_back(gone)
    assert pool.place(desk).offset == 0
    for index, slot in enumerate(pool.slots(gone[0], 0, desk.num_tokens).tolist()):
        ledger.whose[slot], ledger.offset[slot] = (desk, index), index
    plan = ledger.play(Step([Row(view, (3,)) for view in views]))
    assert max(num_reads(plan)) == 2 + 3 + 1 + 1 + 1


def test_a_marker_that_lies_behind_another_block_is_read_from_its_copy_alone() -> None:
    """Its own keys are one piece with those in front of them. Behind the desk stands a block that could be moved elsewhere."""
    ledger = Ledger(PagePool(400, 4))
    pool, header, desk = ledger.planner.pool, Block("header"), Block("desk")
    names = ("prompt", "before", "marker", "one", "behind one", "alone")
    prompt, before, marker, one, behind, alone = finished = [Block(name) for name in names]
    for block in (*finished, header):
        ledger.play(Step([Row(View([block]), (1, 2, 3))]))
    for block in finished:
        block.freeze()
    for line in ([before, marker], [one, behind]):
        ledger.play(Step([Row(View([*line, Block()]), (4,))]))
    pool.make_front(marker)
    pool.give_front(desk, marker)
    begin = [prompt, header, before, marker, desk]
    ledger.play(Step([Row(View(begin), (5, 5))]))
    plan = ledger.play(Step([Row(View([*begin, one, alone, Block()]), (6, 6))]))
    assert pool.place(marker).offset == before.num_tokens
    assert pool.place(alone).offset == 0
    assert num_reads(plan) == [7], "the marker is no piece of its own"


def test_views_of_the_same_blocks_may_lead_over_different_strips() -> None:
    """Where each marker stands before a desk with a copy of it, a view does not lead over the marker's own strip."""
    ledger = Ledger(PagePool(400, 4))
    prompt, marker = Block("prompt"), Block("marker")
    for view in (View([prompt]), View([prompt, marker])):
        ledger.play(Step([Row(view, (1, 1))]))
        view.own.freeze()
    leaver, without, *others = (Block(name) for name in ("leaver", "a", "b", "c"))

    def views(desks: Sequence[Block]) -> list[View]:
        return [
            View(
                [
                    prompt,
                    *(block for desk in desks if desk is not own for block in (desk, marker)),
                    own,
                ]
            )
            for own in desks
        ]

    ledger.play(Step([Row(View([prompt, without]), (1,))]))  # it is read before it could get a copy
    for desks in ([leaver, others[0], without, others[1]], [others[0], without, others[1]]):
        ledger.play(Step([Row(view, (1,)) for view in views(desks)]))
    places = [ledger.planner.pool.place(desk) for desk in (without, *others)]
    assert [place.strip.front is not None for place in places] == [False, True, True]


def test_of_a_step_that_does_not_fit_no_copy_stays() -> None:
    """The run may be preempted now, and others may have all memory."""
    pool = PagePool(64, 4)
    ledger, cast = Ledger(pool), a_team(6)
    for view, size in ((View([cast.prompt]), 9), (View([cast.prompt, cast.marker]), 2)):
        ledger.play(Step([Row(view, (1,) * size)]))
        view.own.freeze()
    num_free = pool.num_free_pages
    views = [combined(cast, worker) for worker in range(6)]
    with pytest.raises(OutOfMemory):
        ledger.planner.plan(Step([Row(view, (2,) * 50) for view in views]))
    assert pool.num_free_pages == num_free
    assert [pool.place(desk).offset for desk in cast.desks] == [0] * 6
    pool.make_moves(ledger.move)  # owed for copies that are gone
    ledger.play(Step([Row(view, (2,) * 9) for view in views]))


def test_a_pass_that_is_begun_keeps_its_copies() -> None:
    """A step that finds no open promise takes nothing back: desks of the pass that was begun are empty until it is taken."""
    ledger = Ledger(PagePool(400, 4))
    pool, cast = ledger.planner.pool, a_team(5)
    views = begun(ledger, cast)
    own = Block("the next step")
    desks = [own if desk is cast.desks[2] else desk for desk in cast.desks]
    cast = replace(cast, history=(cast.desks[2].freeze(),), desks=tuple(desks))
    views = [combined(cast, worker) for worker in range(5)]
    step = Step([Row(view, (4,)) for view in views])
    ahead = ledger.planner.plan_ahead(step, {})
    assert ahead is not None
    generation = pool.generation
    pool.take_back()
    assert pool.generation == generation
    assert pool.place(own).strip.front is not None
    assert num_reads(ledger.play(step)) == num_reads(ahead)


def test_copies_of_many_teams_leave_room() -> None:
    """All that wait together take little of what is free, and go before a pass cannot be begun ahead."""
    pool = PagePool(100, 4)
    markers = [Block(f"marker {index}") for index in range(30)]
    for marker in markers:
        pool.reserve([(marker, 2)])
        marker.tokens.extend((1, 1))
        marker.freeze()
    for marker in markers:
        pool.make_front(marker)
    assert pool.num_free_pages == 70
    assert 0 < pool._num_waiting <= 70 / 8
    desk = Block("desk")
    pool.reserve([(desk, 4 * 50)])
    assert pool._num_waiting
    assert pool.lend([(pool.place(desk).strip, 4 * 10)])
    assert not pool._num_waiting, "half of twenty pages is ten"

"""Evicted blocks: their pages are free, their order is kept, and no row reads them."""

from __future__ import annotations

import gc

import pytest

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Strip
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest, OutOfMemory


def write(pool: PagePool, num_tokens: int, *, frozen: bool = False) -> Block:
    block = Block()
    pool.reserve([(block, num_tokens)])
    block.tokens.extend(range(num_tokens))
    return block.freeze() if frozen else block


def test_pages_go_and_come_back() -> None:
    pool = PagePool(8, 4)
    stays, goes = write(pool, 6), write(pool, 9)
    strips: list[Strip] = []
    pool.evict([goes], strips)
    assert pool.num_free_pages == 6
    assert pool.is_evicted(goes)
    assert not pool.is_evicted(stays)
    assert pool.num_pages_to_add(dict.fromkeys(strips, 0)) == 3
    pool.bring_back(strips)
    assert pool.num_free_pages == 3
    assert not pool.is_evicted(goes)
    pool.reserve([(goes, 3)])
    assert pool.num_free_pages == 3, "three tokens fit on the last page"


def test_neighbours_stay_together_without_the_gaps() -> None:
    pool = PagePool(16, 4)
    first, second, third = (write(pool, size, frozen=True) for size in (5, 6, 3))
    assert pool.join(second, first) is not None
    assert pool.join(third, second) is not None
    del second
    gc.collect()
    strips: list[Strip] = []
    pool.evict([third, first], strips)
    (strip,) = strips
    assert pool.num_free_pages == 16
    assert [pool.place(block).offset for block in (first, third)] == [0, 5]
    assert strip.num_tokens == 8
    pool.bring_back([strip])
    assert pool.num_free_pages == 14
    del first
    gc.collect()
    assert pool.num_free_pages == 14
    del third
    gc.collect()
    assert pool.num_free_pages == 16


def test_who_lies_behind_somebody_elses_block_leaves_it_there() -> None:
    pool = PagePool(8, 4)
    prefix, ours = write(pool, 6, frozen=True), write(pool, 7, frozen=True)
    assert pool.join(ours, prefix) is not None
    strips: list[Strip] = []
    pool.evict([ours], strips)
    assert pool.num_free_pages == 6
    assert pool.place(prefix).strip not in strips
    pool.bring_back(strips)
    assert pool.place(ours).offset == 0
    assert pool.num_free_pages == 4


def test_a_block_that_dies_while_evicted_needs_no_pages() -> None:
    pool = PagePool(8, 4)
    block = write(pool, 9)
    strips: list[Strip] = []
    pool.evict([block], strips)
    del block
    gc.collect()
    assert pool.num_pages_to_add(dict.fromkeys(strips, 0)) == 0
    pool.bring_back(strips)
    assert pool.num_free_pages == 8


def test_no_room_to_come_back() -> None:
    pool = PagePool(4, 4)
    goes = write(pool, 9)
    strips: list[Strip] = []
    pool.evict([goes], strips)
    stays = write(pool, 8)
    with pytest.raises(OutOfMemory, match="needs 3 pages"):
        pool.bring_back(strips)
    assert pool.is_evicted(goes)
    assert pool.num_free_pages == 2
    assert not pool.is_evicted(stays)


def test_no_row_reads_an_evicted_block() -> None:
    pool = PagePool(16, 4)
    planner = Planner(pool)
    prompt, own, other = Block("prompt"), Block(), Block()
    view = View([prompt, own])
    for step in ([Row(View([prompt]), (1, 2, 3))], [Row(view, (4,))], [Row(view, (5,))]):
        planner.plan(Step(step))
        for row in step:
            row.view.own.tokens.extend(row.feed)
    strips: list[Strip] = []
    pool.evict([prompt], strips)
    for reader in (view, View([prompt, other])):
        with pytest.raises(InvalidRequest, match="was preempted"):
            planner.plan(Step([Row(reader, (6,))]))
    pool.bring_back(strips)
    plan = planner.plan(Step([Row(view, (6,))]))
    pages = {int(page) for pages in plan.reads.pages for page in pages}
    assert set(pool.place(prompt).strip.pages) <= pages

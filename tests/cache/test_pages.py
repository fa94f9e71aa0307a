"""Pages are never lost, never used twice, and given back when their last block is gone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from manyhands.cache.block import Block
from manyhands.cache.pages import Move, PagePool
from manyhands.errors import OutOfMemory

NUM_PAGES, PAGE_SIZE = 12, 3


def state(pool: PagePool, blocks: list[Block]) -> object:
    """Everything that must not change when a method fails."""
    strips = [pool.place(block).strip for block in blocks]
    places = [
        (pool.place(block).offset, id(strip)) for block, strip in zip(blocks, strips, strict=True)
    ]
    lengths = [(list(strip.pages), strip.num_tokens, strip.num_blocks) for strip in strips]
    return pool.num_free_pages, places, lengths


class Pages(RuleBasedStateMachine):
    """Blocks come, grow, freeze, join, are divided and go, beside a memory that knows what lies where.

    Every token has a number of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES, PAGE_SIZE)
        self.blocks: list[Block] = []
        self.born = 0
        self.memory: dict[int, int] = {}  # slot: token
        self.num_tokens = 0

    @initialize()
    def begin(self) -> None:
        for _ in range(3):
            self.come()

    def pick(self, number: int) -> Block:
        return self.blocks[number % len(self.blocks)]

    @rule()
    def come(self) -> None:
        self.blocks.append(Block(f"block {self.born}"))
        self.born += 1
        self.pool.place(self.blocks[-1])

    @rule(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4))
    def grow(self, sizes: list[int]) -> None:
        writable = [block for block in self.blocks if not block.frozen]
        growth = list(zip(writable, sizes, strict=False))
        before = state(self.pool, self.blocks)
        try:
            self.pool.reserve(growth)
        except OutOfMemory:
            assert state(self.pool, self.blocks) == before
            return
        for block, size in growth:
            place = self.pool.place(block)
            start = place.offset + block.num_tokens
            slots = self.pool.slots(place.strip, start, start + size)
            tokens = range(self.num_tokens, self.num_tokens + size)
            self.memory.update(zip(slots.tolist(), tokens, strict=True))
            self.num_tokens += size
            block.tokens.extend(tokens)

    @rule(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4))
    def grow_in_vain(self, sizes: list[int]) -> None:
        writable = [block for block in self.blocks if not block.frozen]
        growth = list(zip(writable, sizes, strict=False))
        before = state(self.pool, self.blocks)
        try:
            self.pool.promise(growth)
        except OutOfMemory:
            pass
        else:
            for block, size in growth:
                block.tokens.extend(range(size))
        self.pool.take_back()
        assert state(self.pool, self.blocks) == before

    @precondition(lambda self: self.blocks)
    @rule(number=st.integers(0, 99))
    def freeze(self, number: int) -> None:
        self.pick(number).freeze()

    @rule(first=st.integers(0, 99), second=st.integers(0, 99))
    def join(self, first: int, second: int) -> None:
        frozen = [block for block in self.blocks if block.frozen]
        if len(frozen) < 2 or (first - second) % len(frozen) == 0:
            return
        block, before = frozen[first % len(frozen)], frozen[second % len(frozen)]
        old = state(self.pool, self.blocks)
        place = self.pool.place(before)
        offset = self.pool.place(block).offset
        move = self.pool.join(block, before)
        made: list[Move] = []
        self.pool.make_moves(made.extend)
        assert made == ([] if move is None else [move])
        if move is None:
            assert state(self.pool, self.blocks) == old
            return
        now = self.pool.place(block)
        assert (now.strip, now.offset) == (place.strip, place.offset + before.num_tokens)
        assert move.shift == now.offset - offset
        assert not set(move.sources.tolist()) & set(move.targets.tolist())
        moved = [self.memory[slot] for slot in move.sources.tolist()]
        self.memory.update(zip(move.targets.tolist(), moved, strict=True))

    @precondition(lambda self: self.blocks)
    @rule(number=st.integers(0, 99), at=st.integers(1, 99))
    def divide(self, number: int, at: int) -> None:
        block = self.pick(number)
        if not block.frozen or block.num_tokens < 2:
            return
        before = state(self.pool, self.blocks)
        head, tail = self.pool.divide(block, 1 + at % (block.num_tokens - 1))
        assert head.tokens + tail.tokens == block.tokens
        strips = {self.pool.place(each).strip for each in (head, tail, block)}
        assert len(strips) == 1
        (strip,) = strips
        strip.places, all_places = strip.places[:-2], strip.places  # nothing else has changed
        assert state(self.pool, self.blocks) == before
        strip.places = all_places
        self.blocks += [head, tail]

    @precondition(lambda self: self.blocks)
    @rule(number=st.integers(0, 99))
    def go(self, number: int) -> None:
        block = self.pick(number)
        strip = self.pool.place(block).strip
        self.blocks.remove(block)
        del block
        assert len(strip.pages) == -(-strip.num_tokens // PAGE_SIZE)

    @invariant()
    def every_token_lies_where_it_was_put(self) -> None:
        for block in self.blocks:
            place = self.pool.place(block)
            slots = self.pool.slots(place.strip, place.offset, place.offset + block.num_tokens)
            assert [self.memory[slot] for slot in slots.tolist()] == block.tokens

    @invariant()
    def no_page_is_held_behind_the_last_living_block(self) -> None:
        for strip in {self.pool.place(block).strip for block in self.blocks}:
            living = [b for b in self.blocks if self.pool.place(b).strip is strip]
            assert strip.num_blocks == len(living)
            end = max(self.pool.place(b).offset + b.num_tokens for b in living)
            assert strip.num_tokens == end
            assert len(strip.pages) == -(-end // PAGE_SIZE)

    @invariant()
    def every_page_is_free_or_on_one_strip(self) -> None:
        num_free = self.pool.num_free_pages  # dead blocks have left their strip by now
        strips = {self.pool.place(block).strip for block in self.blocks}
        used = [page for strip in strips for page in strip.pages]
        assert len(set(used)) == len(used)
        assert len(used) + num_free == NUM_PAGES
        assert not set(used) & set(self.pool._free)

    def teardown(self) -> None:
        self.blocks.clear()
        assert self.pool.num_free_pages == NUM_PAGES


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def grown(pool: PagePool, size: int, name: str = "") -> Block:
    block = Block(name)
    pool.reserve([(block, size)])
    block.tokens.extend([0] * size)
    return block


def test_slots_run_through_the_pages():
    pool = PagePool(6, 4)
    first, second = Block(), Block()
    pool.reserve([(first, 3)])
    pool.reserve([(second, 2)])
    pool.reserve([(first, 6)])  # pages 0, 2, 3
    assert pool.slots(pool.place(first).strip, 2, 9).tolist() == [2, 3, 8, 9, 10, 11, 12]
    assert pool.num_free_pages == 2
    assert pool.num_slots == 24


def test_out_of_memory_says_what_is_missing_and_changes_nothing():
    pool = PagePool(3, 4)
    small, large = grown(pool, 4), Block()
    before = state(pool, [small, large])
    with pytest.raises(OutOfMemory) as caught:
        pool.reserve([(small, 1), (large, 8)])
    assert str(caught.value) == ("this step needs 3 more pages of 4 tokens, and 2 of 3 are free")
    assert "memory_tokens" in caught.value.hint
    assert state(pool, [small, large]) == before
    pool.reserve([(small, 1), (large, 4)])


def test_what_a_failed_pass_had_is_free_for_others():
    pool = PagePool(4, 1)
    block, other = grown(pool, 1), Block()
    pool.promise([(block, 3)])
    block.tokens.extend([1, 2, 3])
    pool.take_back()
    assert block.num_tokens == 1
    assert pool.num_free_pages == 3
    pool.reserve([(block, 1), (other, 2)])
    assert pool.num_free_pages == 0


def test_what_cannot_join():
    pool = PagePool(8, 2)
    first, second, third = (grown(pool, 2).freeze() for _ in range(3))
    empty, live = Block().freeze(), grown(pool, 2)
    assert pool.join(empty, first) is None  # nothing to move
    assert pool.join(second, first) is not None
    assert pool.join(second, first) is None  # is there already
    assert pool.join(third, first) is None  # the first one no longer ends its strip
    assert pool.join(first, third) is None  # is not alone
    assert pool.join(third, second) is not None
    assert pool.place(third).offset == 4
    assert pool.place(live).offset == 0


def test_a_move_without_room_is_no_error():
    pool = PagePool(3, 2)
    first, second = grown(pool, 2).freeze(), grown(pool, 3).freeze()
    assert pool.num_free_pages == 0
    assert pool.join(second, first) is None
    assert pool.place(second).offset == 0


def test_a_strip_lives_as_long_as_one_of_its_blocks():
    pool = PagePool(8, 2)
    first, second = grown(pool, 4).freeze(), grown(pool, 4).freeze()
    pool.join(second, first)
    assert pool.num_free_pages == 4
    del first
    assert pool.num_free_pages == 4
    del second
    assert pool.num_free_pages == 8


def test_a_block_may_go_while_another_goes(monkeypatch: pytest.MonkeyPatch):
    """A garbage collection comes when it comes: here, between two steps of freeing."""
    pool = PagePool(8, 2)
    first, second = grown(pool, 4).freeze(), grown(pool, 4).freeze()
    pool.join(second, first)
    blocks = [first, second]
    del first, second
    free, places = pool._free, pool.place(blocks[0]).strip.places

    class Interrupted(list):
        def extend(self, pages):
            super().extend(pages)
            blocks.clear()

    pool._free = Interrupted(free)
    blocks.pop()
    assert pool.num_free_pages == 8
    assert not blocks
    assert not places
    assert sorted(pool._free) == list(range(8))


def test_both_halves_of_a_divided_block_are_its_keys_and_go_one_by_one():
    pool = PagePool(8, 2)
    block = grown(pool, 7, "all").freeze()
    head, tail = pool.divide(block, 3)
    assert (head.name, head.num_tokens, tail.num_tokens) == ("all", 3, 4)
    assert pool.place(head).strip is pool.place(tail).strip is pool.place(block).strip
    assert (pool.place(head).offset, pool.place(tail).offset) == (0, 3)
    more = grown(pool, 2).freeze()
    assert pool.join(more, head) is None, "something lies behind the head"
    assert pool.join(head, more) is None, "the head is not alone"
    del tail
    assert pool.num_free_pages == 3, "the whole block is still read"
    del block
    assert pool.num_free_pages == 5, "one page was the tail's alone"
    assert pool.join(more, head) is not None, "what follows the head may take the tail's place"
    assert pool.place(more).offset == 3
    del head, more
    assert pool.num_free_pages == 8


def test_a_half_can_be_divided_again():
    pool = PagePool(8, 2)
    block = grown(pool, 7).freeze()
    block.tokens[:] = range(7)
    head, tail = pool.divide(block, 3)
    middle, end = pool.divide(tail, 1)
    assert [b.tokens for b in (head, middle, end)] == [[0, 1, 2], [3], [4, 5, 6]]
    assert pool.place(end).offset == 4
    del block, tail, head, middle
    assert pool.num_free_pages == 4, "pages before a living block stay"
    del end
    assert pool.num_free_pages == 8


class Shelf:
    """Keeps blocks and lets one go at a time."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = list(blocks)
        self.asked: list[int] = []
        self.num_pages_in_use = 2

    def make_room(self, num_pages: int) -> None:
        self.asked.append(num_pages)
        self.blocks.pop()


def test_a_keeper_makes_room_for_a_step():
    pool = PagePool(4, 2)
    shelf = Shelf(grown(pool, 4), grown(pool, 3))
    pool.keepers.add(shelf)
    assert pool.num_pages_in_use_by_keepers == 2
    new = Block()
    pool.reserve([(new, 3)])
    assert shelf.asked == [2]
    with pytest.raises(OutOfMemory):
        pool.reserve([(new, 6)])  # the shelf cannot give enough
    assert (shelf.asked, pool.num_free_pages) == ([2, 3], 2)
    del shelf
    assert pool.num_pages_in_use_by_keepers == 0


@pytest.mark.parametrize(("recycle", "expected"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
def test_pages_are_used_again_or_not(recycle, expected):
    pool = PagePool(4, 2, recycle=recycle)
    pages = []
    for _ in range(3):
        block = grown(pool, 2)
        pages += pool.place(block).strip.pages
        del block
    assert pages == expected
    assert pool.num_free_pages == (4 if recycle else 1)


def test_slots_of_nothing():
    pool = PagePool(1, 2)
    assert pool.slots(pool.place(Block()).strip, 0, 0).dtype == np.int64


def test_places_of_many_are_those_of_each():
    """Of blocks that are met for the first time, too, and behind a change that was interrupted."""
    pool = PagePool(16, 4)
    known, fresh = [Block(), Block()], Block()
    before = [pool.place(block) for block in known]
    assert pool.places(known) == before
    found = pool.places([*known, fresh, known[0]])
    assert found == [*before, pool.place(fresh), before[0]]
    assert pool.places([]) == []
    pool._journal.keep(before[0], "offset")
    before[0].offset = 3
    assert [place.offset for place in pool.places(known)] == [0, 0]

"""Pages are never lost, never used twice, and given back when their last block is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import NOWHERE, Move, Strip
from manyhands.errors import InvalidRequest, OutOfMemory
from tests.covers import examples

NUM_PAGES, PAGE_SIZE = 12, 3
ROOMY = 60  # pages, of which some can be spared


def state(pool: PagePool, blocks: list[Block]) -> tuple[Any, ...]:
    """Everything that must not change when a method fails: free pages first. Spares may go."""
    strips = [pool.place(block).strip for block in blocks]
    places = [
        (pool.place(block).offset, id(strip)) for block, strip in zip(blocks, strips, strict=True)
    ]
    needed = [-(-strip.num_tokens // pool.page_size) for strip in strips]
    lengths = [
        (strip.pages[:size], strip.num_tokens, strip.num_blocks)
        for strip, size in zip(strips, needed, strict=True)
    ]
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


class PagesAndCopies(Pages):
    """The same with pages to spare: lent ones, copies in front of blocks, room for copies, blocks that go and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(ROOMY, PAGE_SIZE)
        self.lent: list[tuple[int, weakref.ref[Block], int]] = []  # generation, block, its room

    def make_moves(self) -> None:
        def make(moves: Sequence[Move]) -> None:
            old = dict(self.memory)  # at once, so in any order
            for move in moves:
                for source, target in zip(
                    move.sources.tolist(), move.targets.tolist(), strict=True
                ):
                    self.memory[target] = NOWHERE if source == NOWHERE else old[source]

        self.pool.make_moves(make)

    def finished(self, number: int) -> Block | None:
        blocks = [block for block in self.blocks if block.frozen and block.tokens]
        return blocks[number % len(blocks)] if blocks else None

    def growing(self, number: int) -> Block | None:
        blocks = [block for block in self.blocks if not block.frozen]
        return blocks[number % len(blocks)] if blocks else None

    @rule(sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4))
    def grow_in_vain(self, sizes: list[int]) -> None:
        """Blocks that are empty begin their strips again, all others lie as they lay."""
        growth = list(zip([b for b in self.blocks if not b.frozen], sizes, strict=False))
        kept = [block for block in self.blocks if block.tokens]
        num_free, *before = state(self.pool, kept)
        try:
            self.pool.promise(growth)
        except OutOfMemory:
            self.pool.take_fronts_back()
        else:
            for block, size in growth:
                block.tokens.extend(range(size))
            self.pool.take_back()
        now_free, *now = state(self.pool, kept)
        assert now == before
        assert now_free >= num_free
        if growth:
            self.check_that_nothing_is_held_for_empty_blocks()

    @rule(
        sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4),
        size=st.sampled_from([1, 8, ROOMY * PAGE_SIZE]),
    )
    def grow_in_parts_in_vain(self, sizes: list[int], size: int) -> None:
        """Some blocks are fed, then one behind room is to be, and memory does not suffice: of the whole step nothing remains."""
        growth = list(zip([b for b in self.blocks if not b.frozen], sizes, strict=False))
        if not growth:
            return
        kept = [block for block in self.blocks if block.tokens]
        num_free, *before = state(self.pool, kept)
        try:
            self.pool.promise(growth)
        except OutOfMemory:
            self.pool.take_fronts_back()
            return
        for block, number in growth:
            block.tokens.extend([NOWHERE] * number)
        behind = Block("behind room")
        if front := growth[0][0].num_tokens:
            self.pool.leave_room(behind, growth[0][0], front)
        try:
            self.pool.promise([(behind, size)])
        except OutOfMemory:
            self.pool.take_fronts_back()
        self.pool.take_back()
        self.make_moves()
        self.blocks.append(behind)
        now_free, *now = state(self.pool, kept)
        assert now == before
        assert now_free >= num_free
        self.check_that_nothing_is_held_for_empty_blocks()

    def check_that_nothing_is_held_for_empty_blocks(self) -> None:
        """Behind a step that failed."""
        for block in self.blocks:
            if not block.tokens:
                strip = self.pool.place(block).strip
                assert (strip.front, strip.awaited, strip.num_tokens) == (None, None, 0), block

    @rule(number=st.integers(0, 99))
    def spare(self, number: int) -> None:
        if (block := self.growing(number)) is not None:
            self.pool.add_spares([self.pool.place(block).strip])

    @rule(number=st.integers(0, 99), size=st.integers(1, 20))
    def lend(self, number: int, size: int) -> None:
        if (block := self.growing(number)) is None:
            return
        strip = self.pool.place(block).strip
        num_free = self.pool.num_free_pages
        if self.pool.lend([(strip, size)]):
            room = strip.num_tokens + size
            self.lent.append((self.pool.generation, weakref.ref(block), room))
        assert self.pool.num_free_pages == num_free, "nothing is promised"

    @rule(number=st.integers(0, 99))
    def copy(self, number: int) -> None:
        if (marker := self.finished(number)) is not None:
            num_free = self.pool.num_free_pages
            self.pool.make_front(marker)
            assert self.pool.num_free_pages == num_free, "copies that wait are free"
            self.make_moves()

    @rule(number=st.integers(0, 99))
    def come_behind_a_copy(self, number: int) -> None:
        if (marker := self.finished(number)) is not None:
            count = self.pool.num_fronts(marker)
            block = Block(f"block {self.born}")
            self.born += 1
            self.pool.give_front(block, marker)
            self.blocks.append(block)
            assert self.pool.num_fronts(marker) == max(0, count - 1)
            assert self.pool.place(block).offset == (marker.num_tokens if count else 0)

    @rule(number=st.integers(0, 99), more=st.integers(0, 2))
    def come_behind_room(self, number: int, more: int) -> None:
        """`more`: the other one is expected to grow by so much."""
        marker = self.growing(number)
        if marker is not None and (size := marker.num_tokens + more):
            block = Block(f"block {self.born}")
            self.born += 1
            self.pool.leave_room(block, marker, size)
            self.blocks.append(block)
            self.make_moves()
            assert self.pool.place(block).offset in (0, size)

    @rule(number=st.integers(0, 99))
    def fill(self, number: int) -> None:
        if (marker := self.finished(number)) is not None:
            self.pool.fill_rooms(marker)
            self.make_moves()
            strips = {self.pool.place(block).strip for block in self.blocks}
            awaited = [strip.awaited for strip in strips if strip.awaited]
            size = marker.num_tokens
            assert not any(each.block() is marker and each.size == size for each in awaited)

    @rule(number=st.integers(0, 99), size=st.integers(0, 8))
    def shorten(self, number: int, size: int) -> None:
        if (block := self.growing(number)) is not None:
            size = min(size, block.num_tokens)
            wanted = block.tokens[:size]
            self.pool.shorten(block, size)
            assert block.tokens == wanted

    @precondition(lambda self: self.blocks)
    @rule(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=3))
    def go_and_come_back(self, numbers: list[int]) -> None:
        """Keys are written anew, and what stood in front of blocks is not there any more."""
        blocks = list(dict.fromkeys(map(self.pick, numbers)))
        strips: list[Strip] = []
        self.pool.evict(blocks, strips)
        assert all(self.pool.is_evicted(block) for block in blocks if block.tokens)
        try:
            self.pool.bring_back(strips)
        except OutOfMemory:
            self.blocks = [block for block in self.blocks if block not in blocks]
            return
        assert {self.pool.place(block).strip for block in blocks} == set(strips)
        assert not any(strip.front or strip.awaited for strip in strips)
        for block in blocks:
            place = self.pool.place(block)
            slots = self.pool.slots(place.strip, place.offset, place.offset + block.num_tokens)
            self.memory.update(zip(slots.tolist(), block.tokens, strict=True))

    @precondition(lambda self: self.blocks)
    @rule(number=st.integers(0, 99))
    def go(self, number: int) -> None:
        self.blocks.remove(self.pick(number))

    @invariant()
    def in_front_stands_a_copy(self) -> None:
        for block in self.blocks:
            strip = self.pool.place(block).strip
            for front in filter(None, (strip.front, strip.awaited)):
                held = [self.memory[slot] for slot in self.pool.slots(strip, 0, front.size)]
                marker = front.block()
                if front is strip.awaited:
                    assert set(held) == {NOWHERE}
                elif marker is not None:
                    assert held == marker.tokens

    @invariant()
    def what_is_lent_stays_as_long_as_nothing_is_stale(self) -> None:
        for generation, reference, room in self.lent:
            block = reference()
            if generation != self.pool.generation or block is None or block.frozen:
                continue
            assert len(self.pool.place(block).strip.pages) * PAGE_SIZE >= room

    @invariant()
    def no_page_is_held_behind_the_last_living_block(self) -> None:
        for strip in {self.pool.place(block).strip for block in self.blocks}:
            living = [b for b in self.blocks if self.pool.place(b).strip is strip]
            assert strip.num_blocks == len(living)
            end = max(self.pool.place(b).offset + b.num_tokens for b in living)
            assert strip.num_tokens == end
            if strip not in self.pool._spares:
                assert len(strip.pages) == -(-end // PAGE_SIZE)

    @invariant()
    def every_page_is_free_or_on_one_strip(self) -> None:
        num_free = self.pool.num_free_pages
        strips = {self.pool.place(block).strip for block in self.blocks}
        copied = [place for place in self.pool._fronts if place.fronts]
        assert set(copied) <= {self.pool.place(block) for block in self.blocks}
        waiting = {strip for place in copied for strip in place.fronts}
        held = [page for strip in strips | waiting for page in strip.pages]
        assert sorted([*held, *self.pool._free]) == list(range(ROOMY))
        assert num_free == ROOMY - sum(-(-strip.num_tokens // PAGE_SIZE) for strip in strips)

    def teardown(self) -> None:
        self.blocks.clear()
        assert self.pool.num_free_pages == ROOMY


TestPages = Pages.TestCase
TestPages.settings = settings(
    max_examples=examples(60, of=120), stateful_step_count=40, deadline=None
)


def test_nothing_is_joined_behind_an_empty_block() -> None:
    """Its room for a copy goes back with a step that fails, and what lay behind it would go, too."""
    pool = PagePool(ROOMY, PAGE_SIZE)
    marker, desk, text = Block("marker"), Block("desk"), Block("text")
    pool.reserve([(marker, 1), (text, 1)])
    marker.tokens.append(1)
    text.tokens.append(2)
    pool.leave_room(desk, marker, 1)
    for block in (desk, text):
        block.freeze()
    before = pool.place(text)
    assert pool.join(text, desk) is None
    other = Block("other")
    pool.promise([(other, 1)])
    other.tokens.append(3)
    pool.take_back()
    assert pool.place(text) is before
    assert len(before.strip.pages) == 1


def behind_room(pool: PagePool, size: int) -> Block:
    """A block of so many tokens behind room for a copy of a marker that is not written."""
    block = Block("desk")
    pool.leave_room(block, Block("marker"), 1)
    pool.reserve([(block, size)])
    block.tokens.extend([0] * size)
    assert pool.place(block).offset == 1
    return block


def fail_a_step(pool: PagePool) -> None:
    """Of another block, which is new."""
    pool.promise([(Block("other"), 1)])
    pool.take_back()


def test_of_a_desk_that_is_shortened_to_nothing_no_room_is_held_behind_a_failure() -> None:
    """Whatever was given a front meanwhile: its tokens were fed by an earlier part of a step that failed."""
    for has_another in (False, True):
        pool = PagePool(ROOMY, PAGE_SIZE)
        first, second = behind_room(pool, 1), Block("second")
        if has_another:
            pool.leave_room(second, first, 1)
        pool.shorten(first, 0)
        fail_a_step(pool)
        assert pool.place(first).offset == 0
        assert pool.num_free_pages == ROOMY


def test_a_failure_before_leaves_what_stands_in_front_of_tokens_until_these_are_gone() -> None:
    """Each failure looks at all that have something in front, however long they were at the one before."""
    pool = PagePool(ROOMY, PAGE_SIZE)
    desk = behind_room(pool, 1)
    fail_a_step(pool)
    assert pool.place(desk).offset == 1
    pool.shorten(desk, 0)
    fail_a_step(pool)
    assert pool.place(desk).offset == 0
    assert pool.num_free_pages == ROOMY


@pytest.mark.parametrize("then", ["room is left for another", "memory does not suffice"])
def test_of_a_step_in_parts_that_fails_no_room_is_held(then: str) -> None:
    """The first part has been fed. While the second is planned, the desk has tokens that go with the promise."""
    pool = PagePool(ROOMY, PAGE_SIZE)
    desk, another = behind_room(pool, 0), Block("another")
    pool.promise([(desk, 2)])
    desk.tokens.extend([1, 2])
    if then == "room is left for another":
        pool.leave_room(another, desk, 2)
    else:
        with pytest.raises(OutOfMemory):
            pool.promise([(another, ROOMY * PAGE_SIZE)])
        pool.take_fronts_back()
    pool.take_back()
    assert not desk.tokens
    assert pool.place(desk).offset == 0
    assert pool.num_free_pages == ROOMY


def test_what_needs_no_look_any_more_is_forgotten() -> None:
    """Else each failure looks at every desk that ever had room in front: those that are finished, evicted or given back."""
    pool = PagePool(ROOMY, PAGE_SIZE)
    written, evicted, empty = (behind_room(pool, size) for size in (1, 1, 0))
    written.freeze()
    pool.evict([evicted], [])
    assert list(pool._fronted) == [written, evicted, empty]
    fail_a_step(pool)
    assert not pool._fronted


def test_tokens_that_were_taken_away_by_hand_leave_no_room_behind_a_failure() -> None:
    pool = PagePool(ROOMY, PAGE_SIZE)
    desk = behind_room(pool, 4)
    fail_a_step(pool)
    desk.tokens[:] = []
    fail_a_step(pool)
    assert pool.place(desk).offset == 0
    assert pool.num_free_pages == ROOMY


def test_what_lies_behind_an_empty_block_stays_with_the_room_in_front() -> None:
    """The block was emptied by hand when another lay behind it."""
    pool = PagePool(ROOMY, PAGE_SIZE)
    desk, text = behind_room(pool, 2).freeze(), grown(pool, 2).freeze()
    assert pool.join(text, desk) is not None
    desk.tokens[:] = []
    fail_a_step(pool)
    place = pool.place(text)
    assert (place.offset, place.strip.num_tokens, len(place.strip.pages)) == (3, 5, 2)
    del desk, text
    assert pool.num_free_pages == ROOMY


TestPagesAndCopies = PagesAndCopies.TestCase
TestPagesAndCopies.settings = settings(
    max_examples=examples(40, of=70), stateful_step_count=50, deadline=None
)


def grown(pool: PagePool, size: int, name: str = "") -> Block:
    block = Block(name)
    pool.reserve([(block, size)])
    block.tokens.extend([0] * size)
    return block


def test_slots_run_through_the_pages() -> None:
    pool = PagePool(6, 4)
    first, second = Block(), Block()
    pool.reserve([(first, 3)])
    pool.reserve([(second, 2)])
    pool.reserve([(first, 6)])  # pages 0, 2, 3
    assert pool.slots(pool.place(first).strip, 2, 9).tolist() == [2, 3, 8, 9, 10, 11, 12]
    assert pool.num_free_pages == 2
    assert pool.num_slots == 24


def test_slots_of_any_part_are_those_of_the_whole() -> None:
    pool = PagePool(6, 4)
    first, second = Block(), Block()
    for block, size in ((first, 3), (second, 2), (first, 9)):
        pool.reserve([(block, size)])
    strip = pool.place(first).strip
    whole = [strip.pages[at // 4] * 4 + at % 4 for at in range(12)]
    assert whole != sorted(range(12)), "pages of another block were meant to lie between"
    for start in range(13):
        for stop in range(start, 13):
            slots = pool.slots(strip, start, stop)
            assert slots.tolist() == whole[start:stop], (start, stop)
            assert slots.dtype == np.int64


def test_out_of_memory_says_what_is_missing_and_changes_nothing() -> None:
    pool = PagePool(3, 4)
    small, large = grown(pool, 4), Block()
    before = state(pool, [small, large])
    with pytest.raises(OutOfMemory) as caught:
        pool.reserve([(small, 1), (large, 8)])
    assert str(caught.value) == ("this step needs 3 more pages of 4 tokens, and 2 of 3 are free")
    assert "memory_tokens" in caught.value.hint
    assert state(pool, [small, large]) == before
    pool.reserve([(small, 1), (large, 4)])


def test_what_a_failed_pass_had_is_free_for_others() -> None:
    pool = PagePool(4, 1)
    block, other = grown(pool, 1), Block()
    pool.promise([(block, 3)])
    block.tokens.extend([1, 2, 3])
    pool.take_back()
    assert block.num_tokens == 1
    assert pool.num_free_pages == 3
    pool.reserve([(block, 1), (other, 2)])
    assert pool.num_free_pages == 0


def test_what_cannot_join() -> None:
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


def test_a_move_without_room_is_no_error() -> None:
    pool = PagePool(3, 2)
    first, second = grown(pool, 2).freeze(), grown(pool, 3).freeze()
    assert pool.num_free_pages == 0
    assert pool.join(second, first) is None
    assert pool.place(second).offset == 0


def test_a_strip_lives_as_long_as_one_of_its_blocks() -> None:
    pool = PagePool(8, 2)
    first, second = grown(pool, 4).freeze(), grown(pool, 4).freeze()
    pool.join(second, first)
    assert pool.num_free_pages == 4
    del first
    assert pool.num_free_pages == 4
    del second
    assert pool.num_free_pages == 8


def test_a_block_may_go_while_another_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection comes when it comes: here, between two steps of freeing."""
    pool = PagePool(8, 2)
    first, second = grown(pool, 4).freeze(), grown(pool, 4).freeze()
    pool.join(second, first)
    blocks = [first, second]
    del first, second
    free, places = pool._free, pool.place(blocks[0]).strip.places

    class Interrupted(list[int]):
        def extend(self, pages: Iterable[int]) -> None:
            super().extend(pages)
            blocks.clear()

    pool._free = Interrupted(free)
    blocks.pop()
    assert pool.num_free_pages == 8
    assert not blocks
    assert not places
    assert sorted(pool._free) == list(range(8))


def test_both_halves_of_a_divided_block_are_its_keys_and_go_one_by_one() -> None:
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


def test_a_half_can_be_divided_again() -> None:
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
        self.num_pages_idle = 0

    def idle_blocks(self) -> list[Block]:
        return self.blocks

    def idle(self, blocks: Iterable[Block]) -> list[Block]:
        return [block for block in blocks if block in self.blocks]

    def passed(self, blocks: Iterable[Block]) -> list[Block]:
        return []

    def make_room(self, num_pages: int) -> None:
        self.asked.append(num_pages)
        del self.blocks[: -(-num_pages // 2)]
        self.num_pages_idle = 2 * len(self.blocks)

    def keeps(self, block: Block) -> bool:
        return block in self.blocks

    def let_go(self) -> bool:
        raise NotImplementedError


def test_a_keeper_makes_room_for_a_step() -> None:
    pool = PagePool(4, 2)
    shelf = Shelf(grown(pool, 4), grown(pool, 3))
    pool.keepers[shelf] = None
    assert pool.num_pages_in_use_by_keepers == 2
    new = Block()
    pool.reserve([(new, 3)])
    assert shelf.asked == [2]
    with pytest.raises(OutOfMemory):
        pool.reserve([(new, 6)])  # the shelf cannot give enough
    assert (shelf.asked, pool.num_free_pages) == ([2], 0), "it lets nothing go in vain"
    del shelf
    assert pool.num_pages_in_use_by_keepers == 0


def with_kept(*, idle: bool) -> tuple[PagePool, Shelf, Block, Block, Block]:
    """A full pool of 40 pages: two of them frozen, three blocks have 6; blocks that are kept, for nobody if `idle`, have 34."""
    pool = PagePool(40, 2)
    first, second, live = grown(pool, 3).freeze(), grown(pool, 3).freeze(), grown(pool, 4)
    shelf = Shelf(*(grown(pool, 4) for _ in range(17)))
    shelf.num_pages_idle = 34 if idle else 0
    pool.keepers[shelf] = None
    assert pool.num_free_pages == 0
    return pool, shelf, first, second, live


AHEAD: dict[str, Callable[[PagePool, Block, Block, Block], bool]] = {
    "lend": lambda pool, first, second, live: pool.lend([(pool.place(live).strip, 4)]),
    "add spares": lambda pool, first, second, live: bool(
        pool.add_spares([pool.place(live).strip]) or pool._spares
    ),
    "make front": lambda pool, first, second, live: bool(
        pool.make_front(first) or pool.num_fronts(first)
    ),
    "leave room": lambda pool, first, second, live: bool(
        pool.leave_room(new := Block(), live, 4) or pool.place(new).offset
    ),
    "join": lambda pool, first, second, live: pool.join(second, first) is not None,
}


@pytest.mark.parametrize("name", AHEAD)
def test_pages_that_are_kept_for_nobody_are_as_good_as_free(name: str) -> None:
    """Memory that has served for a while is full of them: whatever is done ahead, or to be faster, would be done no more."""
    for idle in (True, False):
        pool, shelf, first, second, live = with_kept(idle=idle)
        assert AHEAD[name](pool, first, second, live) is idle
        assert len(shelf.asked) == idle
        assert len(shelf.blocks) == 17 - idle, "no more go than are needed"


def test_kept_pages_stay_where_all_of_them_would_not_be_enough() -> None:
    pool, shelf, *others, live = with_kept(idle=True)
    strip = pool.place(live).strip
    assert not pool.lend([(strip, 2 * 18)]), "more than half of what can be had"
    assert not shelf.asked
    assert pool.lend([(strip, 2 * 17)])
    assert (len(strip.pages), len(shelf.blocks), len(others)) == (2 + 17, 8, 2)


@pytest.mark.parametrize(("recycle", "expected"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
def test_pages_are_used_again_or_not(recycle: bool, expected: list[int]) -> None:
    pool = PagePool(4, 2, recycle=recycle)
    pages = []
    for _ in range(3):
        block = grown(pool, 2)
        pages += pool.place(block).strip.pages
        del block
    assert pages == expected
    assert pool.num_free_pages == (4 if recycle else 1)


def test_slots_of_nothing() -> None:
    pool = PagePool(1, 2)
    assert pool.slots(pool.place(Block()).strip, 0, 0).dtype == np.int64


def test_places_of_many_are_those_of_each() -> None:
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


def test_what_was_not_filled_here_is_noticed_behind_others_too() -> None:
    """Of a block that lies behind something, only what is behind that counts."""
    pool = PagePool(80, 2)
    marker, desk = grown(pool, 2).freeze(), Block("desk")
    pool.make_front(marker)
    pool.give_front(desk, marker)
    desk.tokens.append(7)
    with pytest.raises(InvalidRequest, match="'desk' holds 1 token, and this engine was fed 0"):
        pool.promise([(desk, 1)])


def test_a_block_that_died_behind_a_copy_is_nothing_to_take_back() -> None:
    pool = PagePool(80, 2)
    marker, *desks = grown(pool, 2).freeze(), Block(), Block()
    for desk in desks:
        pool.make_front(marker)
        pool.give_front(desk, marker)
    del desk
    desks.pop()
    pool.take_fronts_back()
    assert pool.place(desks[0]).offset == 0
    assert pool.num_free_pages == 79


def test_of_a_marker_that_was_evicted_no_copy_is_made() -> None:
    """There are no keys of it to be copied. Its copies that were made before are true."""
    pool = PagePool(80, 2)
    marker, first, second = grown(pool, 2), Block(), Block()
    pool.leave_room(first, marker, 2)
    pool.make_front(marker.freeze())
    pool.make_moves(lambda moves: None)
    pool.evict([marker], [])
    pool.make_front(marker)
    pool.fill_rooms(marker)
    assert pool.num_fronts(marker) == 1
    assert pool.place(first).strip.front is None
    assert not pool._moves
    pool.give_front(second, marker)
    assert pool.place(second).offset == 2


def test_a_block_that_is_kept_holds_no_pages_that_were_given_ahead() -> None:
    """Else whatever is kept for hours has some, and they are counted over and over."""
    pool = PagePool(40, 2)
    written, live = grown(pool, 4), grown(pool, 3)
    strip = pool.place(written).strip
    assert pool.lend([(strip, 3)])
    assert (len(strip.pages), len(pool._free)) == (4, 34)
    generation = pool.generation
    pool.grows_no_more(written.freeze())
    assert (len(strip.pages), len(pool._free)) == (2, 36)
    assert pool.generation == generation, "what was planned stays true"
    pool.grows_no_more(written)
    assert len(pool._free) == 36
    assert pool.lend([(pool.place(live).strip, 3)])
    assert list(pool._spares) == [pool.place(live).strip]


def test_strips_that_have_used_what_they_were_lent_are_forgotten() -> None:
    pool = PagePool(40, 2)
    blocks = [grown(pool, 2) for _ in range(5)]
    for block in blocks:
        assert pool.lend([(pool.place(block).strip, 2)])
        pool.reserve([(block, 2)])
        assert len(pool._spares) <= 1
    assert len(pool._free) == 40 - 2 * 5


def test_all_blocks_share_what_is_called_when_they_die() -> None:
    """A function of its own for each would be one object more that a collection of garbage walks over."""
    pool, blocks = PagePool(ROOMY, PAGE_SIZE), [Block(f"{number}") for number in range(9)]
    pool.reserve((block, 1) for block in blocks)
    assert len({id(reference.__callback__) for reference in pool._places}) == 1
    del blocks
    assert pool.num_free_pages == ROOMY

"""Where tokens lie: pages, strips, and the moving of finished blocks next to each other.

Keys and values live in a pool of slots, cut into pages of `page_size` slots. A Strip is a list of
pages with one ruler: slot j of a strip belongs to index j, and its key is rotated by j. A fresh block
gets a strip of its own. Many small finished blocks would make many small strips, so a frozen block
that is read directly after the end of another strip is moved there (compaction):

    before   strip A |prompt........|        strip B |step 1..|      B's ruler starts at 0
    after    strip A |prompt........step 1..|                        step 1 now lies at offset 14

The block does not notice: only its Place changes, and its keys are rotated once by the difference of
the offsets. The other way round, a finished block can be split where it lies, and no key moves at all:

    one strip |a system prompt, question 1|      then |a system prompt|, question 1|

Pages behind the last living block of a strip are freed as soon as nobody references what lay there.
Blocks can also be evicted while they live (`evict`): they keep their order and their rulers, and lose
their pages until `bring_back` gives them new ones. Whoever asks for that writes their keys again.
Whoever keeps blocks that nobody needs just now (`cache/prefixes.py`) is a Keeper: asked for room, it
lets some of them go.

This file only does the accounting; the tensors are moved by `model/memory.py`, told by the plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from manyhands.cache.block import Block
from manyhands.errors import OutOfMemory

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Strip:
    """Pages with one ruler. `places` of living blocks are on it; `left` once its block moved away."""

    pages: list[int] = field(default_factory=list)
    num_tokens: int = 0
    places: list[Place] = field(default_factory=list)
    left: bool = False

    @property
    def num_blocks(self) -> int:
        """How many living blocks lie here."""
        return len(self.places)


@dataclass(eq=False)
class Place:
    """Where a block lies: its index 0 is index `offset` of the strip.

    `size` is known of a block that shares its strip with others: it is frozen.
    """

    strip: Strip
    offset: int = 0
    size: int = 0


@dataclass(frozen=True)
class Move:
    """Copy these slots; rotate the keys forward by `turn`, the difference of the two offsets."""

    sources: Ints
    targets: Ints
    turn: int


class Keeper(Protocol):
    """Keeps blocks for later. What is in use of them counts as promised, like a reservation."""

    @property
    def num_pages_in_use(self) -> int:
        """At most so many pages hold kept blocks that somebody reads just now."""

    def make_room(self, num_pages: int) -> None:
        """Let blocks go that nobody uses, until so many pages were freed or none is left."""

    def keeps(self, block: Block) -> bool:
        """Whether `block` is kept for others too."""


class PagePool:
    """A fixed number of pages and who lies on them. All methods are exact or change nothing.

    With `recycle=False` a freed page is not used again: a replay needs every key that ever was.
    """

    def __init__(self, num_pages: int, page_size: int = 16, *, recycle: bool = True) -> None:
        assert min(num_pages, page_size) > 0, (num_pages, page_size)
        self.recycle = recycle
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: low pages are used first
        self._places: weakref.WeakKeyDictionary[Block, Place] = weakref.WeakKeyDictionary()
        self.keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()
        self._leaving: list[Place] = []  # of blocks that are gone, until their pages are freed
        self._is_freeing = False
        self.num_evictions = 0  # whenever it grows, places that were looked up are stale

    @property
    def num_free_pages(self) -> int:
        """Pages that nobody lies on."""
        return len(self._free)

    @property
    def num_pages_in_use_by_keepers(self) -> int:
        """Pages that are promised to nobody in particular, and in use."""
        return sum(keeper.num_pages_in_use for keeper in self.keepers)

    @property
    def num_slots(self) -> int:
        """Tokens that fit in all pages together."""
        return self.num_pages * self.page_size

    def place(self, block: Block) -> Place:
        """Where `block` lies; a block seen for the first time gets a strip of its own."""
        found = self._places.get(block)
        if found is None:
            found = Place(Strip())
            self._put(block, found)
        return found

    def _put(self, block: Block, place: Place) -> None:
        place.strip.places.append(place)
        self._places[block] = place
        weakref.finalize(block, self._leave, place).atexit = False

    def reserve(self, growth: Iterable[tuple[Block, int]]) -> None:
        """Make room for each block to grow by so many tokens; OutOfMemory if not all of it fits."""
        asked = [(self.place(block).strip, num_tokens) for block, num_tokens in growth]
        num_pages = sum(self._pages_to_add(strip, num_tokens) for strip, num_tokens in asked)
        if not self.make_room(num_pages):
            raise OutOfMemory(
                f"this step needs {num_pages} more pages of {self.page_size} tokens, and "
                f"{self.num_free_pages} of {self.num_pages} are free",
                hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
            )
        for strip, num_tokens in asked:
            self._grow(strip, num_tokens)

    def make_room(self, num_pages: int) -> bool:
        """Have so many pages free, with the help of the keepers; False if that is not enough."""
        for keeper in list(self.keepers) if num_pages > self.num_free_pages else ():
            keeper.make_room(num_pages - self.num_free_pages)
        return num_pages <= self.num_free_pages

    def undo(self, growth: Iterable[tuple[Block, int]]) -> None:
        """Take back what `reserve` promised, after a pass that failed: its pages are free again."""
        for block, num_tokens in growth:
            strip = self.place(block).strip
            strip.num_tokens -= num_tokens
            self._free.extend(reversed(self._cut(strip, strip.num_tokens)))

    def join(self, block: Block, before: Block) -> Move | None:
        """Move frozen `block` onto the strip of `before`, directly behind it, if that is possible.

        It is when `before` ends its strip, `block` lies alone on its own, and the pages suffice.
        """
        here, there = self.place(block), self.place(before)
        end = there.offset + before.num_tokens
        size = block.num_tokens
        alone = here.strip.num_blocks == 1 and here.strip.num_tokens == size
        if here.strip is there.strip or not alone or end != there.strip.num_tokens or size == 0:
            return None
        if self._pages_to_add(there.strip, size) > self.num_free_pages:
            return None
        sources = self.slots(here.strip, here.offset, here.offset + size)
        self._grow(there.strip, size)
        move = Move(sources, self.slots(there.strip, end, end + size), end - here.offset)
        here.strip.left = True
        self._leave(here)
        here.strip, here.offset, here.size = there.strip, end, size
        there.size = before.num_tokens
        there.strip.places.append(here)
        return move

    def split(self, block: Block, at: int) -> tuple[Block, Block]:
        """Two frozen blocks with the tokens of frozen `block` before and from index `at`.

        They lie where it lies, so their keys are its keys. `block` itself stays as it is, for as long
        as somebody reads it.
        """
        assert block.frozen, block
        assert 0 < at < block.num_tokens, (at, block)
        place = self.place(block)
        place.size = block.num_tokens
        head, tail = Block(block.name), Block(block.name)
        for half, low, high in ((head, 0, at), (tail, at, block.num_tokens)):
            half.tokens.extend(block.tokens[low:high])
            self._put(half.freeze(), Place(place.strip, place.offset + low, high - low))
        return head, tail

    def evict(self, blocks: Iterable[Block]) -> list[Strip]:
        """Free the pages of these blocks; the strips, without pages, on which they wait for new ones.

        What lay together stays together, without the gaps of what is gone. `bring_back` gives the
        strips pages; their keys are then to be written anew.
        """
        together: dict[Strip, list[tuple[Place, int]]] = {}
        for block in blocks:
            place = self.place(block)
            together.setdefault(place.strip, []).append((place, block.num_tokens))
        strips = []
        for places in together.values():
            strips.append(Strip())
            for place, size in sorted(places, key=lambda each: each[0].offset):
                self._leave(place)
                place.strip, place.offset, place.size = strips[-1], strips[-1].num_tokens, size
                strips[-1].places.append(place)
                strips[-1].num_tokens += size
        self.num_evictions += bool(strips)
        return strips

    def bring_back(self, strips: Iterable[Strip]) -> None:
        """Give strips that were evicted pages again; OutOfMemory if not all of them fit."""
        growth = dict.fromkeys(strips, 0)
        num_pages = self.num_pages_to_add(growth)
        if not self.make_room(num_pages):
            raise OutOfMemory(
                f"a preempted run needs {num_pages} pages of {self.page_size} tokens, and "
                f"{self.num_free_pages} of {self.num_pages} are free",
                hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
            )
        for strip in growth:
            self._grow(strip, 0)

    def num_pages_to_add(self, growth: Mapping[Strip, int]) -> int:
        """Pages that strips need to grow by so many tokens; an evicted one needs all of its pages."""
        return sum(self._pages_to_add(strip, size) for strip, size in growth.items())

    def is_evicted(self, block: Block) -> bool:
        """Whether the block was evicted, so that its keys are not in memory."""
        return self._pages_to_add(self.place(block).strip, 0) > 0

    def is_kept(self, block: Block) -> bool:
        """Whether a keeper has the block for others too."""
        return any(keeper.keeps(block) for keeper in self.keepers)

    def slots(self, strip: Strip, start: int, stop: int) -> Ints:
        """Slots of the strip's indices start..stop: pages[j // page_size] * page_size + j % page_size."""
        index = np.arange(start, stop, dtype=np.int64)
        pages = np.asarray(strip.pages, dtype=np.int64)
        return pages[index // self.page_size] * self.page_size + index % self.page_size

    def _pages_to_add(self, strip: Strip, num_tokens: int) -> int:
        return -(-(strip.num_tokens + num_tokens) // self.page_size) - len(strip.pages)

    def _grow(self, strip: Strip, num_tokens: int) -> None:
        for _ in range(self._pages_to_add(strip, num_tokens)):
            strip.pages.append(self._free.pop())
        strip.num_tokens += num_tokens

    def _leave(self, place: Place) -> None:
        """Nobody references a block any more: free its pages.

        A garbage collection may find further blocks at any point of this; they come after.
        """
        self._leaving.append(place)
        if self._is_freeing:
            return
        self._is_freeing = True
        try:
            while self._leaving:
                self._free_behind_others(self._leaving.pop())
        finally:
            self._is_freeing = False

    def _free_behind_others(self, place: Place) -> None:
        """Take the place off its strip; free the pages behind the last one that is left."""
        strip = place.strip
        strip.places.remove(place)
        end = max((other.offset + other.size for other in strip.places), default=0)
        if end and not self.recycle:
            return
        pages = self._cut(strip, end)
        if self.recycle:
            self._free.extend(reversed(pages))
        strip.num_tokens = end

    def _cut(self, strip: Strip, num_tokens: int) -> list[int]:
        """Take the pages behind so many tokens off a strip."""
        num_pages = -(-num_tokens // self.page_size)
        pages = strip.pages[num_pages:]
        del strip.pages[num_pages:]
        return pages

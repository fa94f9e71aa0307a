"""Where tokens lie: pages, strips, and the moving of finished blocks next to each other.

Keys and values live in a pool of slots, cut into pages of `page_size` slots. A Strip is a list of
pages with one ruler: slot j of a strip belongs to index j, and its key is rotated by j. A fresh block
gets a strip of its own. Many small finished blocks would make many small strips, so a frozen block
that is read directly after the end of another strip is moved there (compaction):

    before   strip A |prompt........|        strip B |step 1..|      B's ruler starts at 0
    after    strip A |prompt........step 1..|                        step 1 now lies at offset 14

The block does not notice: only its Place changes, and its keys are rotated once by the difference of
the offsets. Pages are freed when the last block on a strip is no longer referenced by anybody.

This file only does the accounting; the tensors are moved by `model/memory.py`, told by the plan.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from manyhands.cache.block import Block
from manyhands.errors import OutOfMemory

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Strip:
    """Pages with one ruler. `num_blocks` living blocks lie on it; `left` once its block moved away."""

    pages: list[int] = field(default_factory=list)
    num_tokens: int = 0
    num_blocks: int = 0
    left: bool = False


@dataclass(eq=False)
class Place:
    """Where a block lies: its index 0 is index `offset` of the strip."""

    strip: Strip
    offset: int = 0


@dataclass(frozen=True)
class Move:
    """Copy these slots; rotate the keys forward by `turn`, the difference of the two offsets."""

    sources: Ints
    targets: Ints
    turn: int


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

    @property
    def num_free_pages(self) -> int:
        """Pages that nobody lies on."""
        return len(self._free)

    @property
    def num_slots(self) -> int:
        """Tokens that fit in all pages together."""
        return self.num_pages * self.page_size

    def place(self, block: Block) -> Place:
        """Where `block` lies; a block seen for the first time gets a strip of its own."""
        found = self._places.get(block)
        if found is None:
            found = Place(Strip(num_blocks=1))
            self._places[block] = found
            weakref.finalize(block, self._release, found).atexit = False
        return found

    def reserve(self, growth: Iterable[tuple[Block, int]]) -> None:
        """Make room for each block to grow by so many tokens; OutOfMemory if not all of it fits."""
        asked = [(self.place(block).strip, num_tokens) for block, num_tokens in growth]
        num_pages = sum(self._pages_to_add(strip, num_tokens) for strip, num_tokens in asked)
        if num_pages > self.num_free_pages:
            raise OutOfMemory(
                f"this step needs {num_pages} more pages of {self.page_size} tokens, and "
                f"{self.num_free_pages} of {self.num_pages} are free",
                hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
            )
        for strip, num_tokens in asked:
            self._grow(strip, num_tokens)

    def undo(self, growth: Iterable[tuple[Block, int]]) -> None:
        """Take back what `reserve` promised, after a pass that failed. Pages stay with their strip."""
        for block, num_tokens in growth:
            self.place(block).strip.num_tokens -= num_tokens

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
        self._leave(here.strip)
        here.strip, here.offset = there.strip, end
        there.strip.num_blocks += 1
        return move

    def slots(self, strip: Strip, start: int, stop: int) -> Ints:
        """Slots of the strip's indices start..stop: pages[j // page_size] * page_size + j % page_size."""
        index = np.arange(start, stop, dtype=np.int64)
        pages = np.asarray(strip.pages, dtype=np.int64)
        return pages[index // self.page_size] * self.page_size + index % self.page_size

    def _pages_to_add(self, strip: Strip, num_tokens: int) -> int:
        # A strip may have pages to spare (see `undo`); they are its own and make up for nobody's lack.
        return max(0, -(-(strip.num_tokens + num_tokens) // self.page_size) - len(strip.pages))

    def _grow(self, strip: Strip, num_tokens: int) -> None:
        for _ in range(self._pages_to_add(strip, num_tokens)):
            strip.pages.append(self._free.pop())
        strip.num_tokens += num_tokens

    def _leave(self, strip: Strip) -> None:
        strip.num_blocks -= 1
        if strip.num_blocks == 0:
            if self.recycle:
                self._free.extend(reversed(strip.pages))
            strip.pages.clear()

    def _release(self, place: Place) -> None:
        self._leave(place.strip)

"""The pages: which are free and which strips have the others, and the moving of finished blocks next to each other.

Keys and values live in a pool of slots, cut into pages of `page_size` slots. A Strip is a list of
pages with one ruler (`cache/places.py`): slot j of a strip belongs to index j, and its key is rotated by j. A fresh block
gets a strip of its own. Many small finished blocks would make many small strips, so a frozen block
that is read directly after the end of another strip is moved there (compaction):

    before   strip A |prompt........|        strip B |step 1..|      B's ruler starts at 0
    after    strip A |prompt........step 1..|                        step 1 now lies at offset 14

The block does not notice: only its Place changes, and its keys are rotated once by the difference of
the offsets. The other way round, a finished block can be divided where it lies, and no key moves at all:

    one strip |a system prompt, question 1|      then |a system prompt|, question 1|

Pages behind the last living block of a strip are freed once nothing references what lay there.
Blocks can also be evicted while they live (`evict`): they keep their order and their rulers, and lose
their pages until `bring_back` gives them new ones; their keys are then written again. A Keeper
(`cache/prefixes.py`) holds blocks for later: asked for room, it lets some of them go. Its pages that no run reads count
as free for whatever needs pages: memory that has served for a while is full of them.

Strips that grow a token a pass are given an empty page ahead of time while pages are plenty (`add_spares`),
so that a full page does not end plain decoding (`cache/lockstep.py`). Spares count as free: whoever needs
room gets them first.

A short block that stands in front of many others, such as a team's marker, may have copies (*fronts*): one in front of each of
these, on its strip, so that both are one piece to read. Copies are made ahead, on pages of their own that count as free,
and are there when a block is new (`make_front`, `give_front`; `cache/fronts.py` decides when). A copy belongs to the strip:

    strip |marker|desk...|      read by a row that reads marker and desk        from 0 on
                                by a row that reads the desk behind a header    from 4 on

A block that is new before the marker is written gets room for a copy (`leave_room`), which is filled later
(`fill_rooms`). Until then the room holds zeros: kernels load whole tiles, and weigh what a row does not read with nothing.

An interrupt may strike between any two lines, and the accounting stays true. Every change is
complete or has not happened (`cache/journal.py`). Room that a step reserves is a promise until the step has
succeeded:

    reserve    room for the feeds; the lengths of their blocks are noted
    keep       the pass succeeded and the feeds have joined their blocks; this one store decides it,
               for `chosen` too: tokens that are there before it are lost neither with the feeds nor alone
    take_back  it did not: blocks have the tokens they had, and the pages behind them are free

This file only does the accounting; the tensors are moved by `model/memory.py`. Moves wait in a queue
until they have been made (`make_moves`), whatever becomes of the step that found them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.journal import Journal
from manyhands.cache.places import NOWHERE, Front, Ints, Move, Place, Strip, num_apart
from manyhands.cache.states import StateBook
from manyhands.errors import InvalidRequest, OutOfMemory, counted

_PLENTY = 8  # spares take at most this part of the pages that can be had: one of so many


class Keeper(Protocol):
    """Keeps blocks for later. Kept blocks in use count as promised, like a reservation."""

    @property
    def num_pages_in_use(self) -> int:
        """At most so many pages hold kept blocks that some run reads just now."""

    @property
    def num_pages_idle(self) -> int:
        """So many pages at least would be free if all blocks went that no run reads; those that were evicted count too."""

    def idle_blocks(self) -> Iterable[Block]:
        """All kept blocks that could be let go."""

    def idle(self, blocks: Iterable[Block]) -> Iterable[Block]:
        """Of these blocks the kept ones that could be let go."""

    def passed(self, blocks: Iterable[Block]) -> Iterable[Block]:
        """Of these blocks the kept ones that some run reads, and from whose end none goes on; those first that others are least likely to
        ask for.
        """

    def make_room(self, num_pages: int) -> None:
        """Let unused blocks go, until so many pages were freed or none is left."""

    def keeps(self, block: Block) -> bool:
        """Whether `block` is kept for others too."""

    def let_go(self) -> bool:
        """Let one unused block go; False if there is none."""


class PagePool:
    """A fixed number of pages and what lies on them. All methods are exact or change nothing.

    With `recycle=False` a freed page is not used again: a replay needs every key that ever was.
    """

    def __init__(
        self, num_pages: int, page_size: int = 16, *, recycle: bool = True, num_states: int = 0
    ) -> None:
        """`num_states`: slots for states of texts, for a network that keeps some; 0: it keeps none."""
        assert min(num_pages, page_size) > 0, (num_pages, page_size)
        self.states: StateBook | None = None
        if num_states:
            self.states = StateBook(num_states, self._let_go, self._idle, self._passed)
        self.recycle = recycle
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: low pages are used first
        self._places: dict[weakref.ref[Block], Place] = {}
        # In the order in which they came, which is that in which they are asked for room.
        self.keepers: weakref.WeakKeyDictionary[Keeper, None] = weakref.WeakKeyDictionary()
        self._gone: list[weakref.ref[Block]] = []  # blocks that died, until their pages are freed
        self._has_gone = self._gone.append  # one for all blocks: collections walk over each
        self._moves: list[Move] = []  # owed: found by `join`, not made yet
        self._spares: dict[Strip, None] = {}  # strips with an empty page
        self._promises: dict[Block, int] = {}  # growing blocks: their lengths before the step
        self._fronts: dict[Place, None] = {}  # of blocks with copies that are made ahead
        # Blocks given a front or room for one, with tokens or without: a step that fails may take all tokens off again.
        self._fronted: weakref.WeakKeyDictionary[Block, None] = weakref.WeakKeyDictionary()
        # Tokens that the newest step chose, stored before `keep`; a step that is taken back has none.
        self.chosen: tuple[int, ...] | None = None
        self._journal = Journal()
        self.num_joined = 0  # blocks that were moved behind another one
        self.generation = 0  # whenever it grows, places and lengths that were looked up are stale

    @property
    def num_free_pages(self) -> int:
        """Pages on which nothing lies, spares included."""
        self._collect()
        spares = sum(map(self._num_spare_pages, self._spares))
        return len(self._free) + spares + self._num_waiting

    @property
    def said_to_be_free(self) -> str:
        """How many pages are free, in words; and how many are not that keepers hold for nobody."""
        idle = self._num_pages_of(self._idle_blocks())
        kept = f", and {idle} more hold what is kept for later" if idle else ""
        return f"{self.num_free_pages} of {self.num_pages} are free{kept}"

    @property
    def num_bare_pages(self) -> int:
        """Free pages that are neither spares nor hold a copy which waits."""
        self._collect()
        return len(self._free)

    @property
    def _num_waiting(self) -> int:
        """Pages of copies that no block has been given."""
        return sum([len(strip.pages) for place in self._fronts for strip in place.fronts])

    @property
    def num_pages_in_use_by_keepers(self) -> int:
        """Pages in use that are promised to no one run."""
        return sum(keeper.num_pages_in_use for keeper in self.keepers)

    @property
    def num_slots(self) -> int:
        """Tokens that fit in all pages together."""
        return self.num_pages * self.page_size

    def place(self, block: Block) -> Place:
        """Where `block` lies; a block seen for the first time gets a strip of its own."""
        if self._journal.notes:
            self._journal.take_back()  # changes that an interrupt has left
        found = self._places.get(weakref.ref(block))
        if found is None:
            found = Place(Strip())
            self._put(block, found)
        return found

    def places(self, blocks: Sequence[Block]) -> list[Place]:
        """The places of many blocks, each as `place` gives it."""
        if self._journal.notes:
            self._journal.take_back()
        found = list(map(self._places.get, map(weakref.ref, blocks)))
        return [place or self.place(block) for place, block in zip(found, blocks, strict=True)]

    def check_filled(self, block: Block, place: Place) -> None:
        """Raise InvalidRequest if the block has tokens that were never fed here, so that there are no keys of them."""
        num_here = place.strip.num_tokens - place.offset
        if len(block.tokens) > num_here:
            raise InvalidRequest(
                f"the block {block.name!r} holds {counted(len(block.tokens), 'token')}, and this engine was fed "
                f"{num_here} of them",
                hint="Fill a block by rows of the engine that reads it: not by hand, nor by another engine.",
            )

    def has_seen(self, block: Block) -> bool:
        """Whether the block has a place."""
        return weakref.ref(block) in self._places

    def _put(self, block: Block, place: Place, fronts: list[Strip] | None = None) -> None:
        """Give a block its place; its strip is the last of `fronts`, if there are any."""
        with self._journal as journal:
            if fronts is not None:
                journal.keep_tail(fronts, len(fronts) - 1)
                fronts.pop()
            self._lay(block, place)

    def reserve(self, growth: Iterable[tuple[Block, int]]) -> None:
        """Make room for each block to grow by so many tokens; OutOfMemory if not all of it fits."""
        growth = list(growth)
        places = self.places([block for block, _ in growth])
        self._grow_all(self._with_room(growth, places))

    def promise(
        self, growth: Iterable[tuple[Block, int]], places: Sequence[Place] | None = None
    ) -> None:
        """`reserve` for a step: open until `keep` or `take_back`. `places` of the blocks, where they are known.

        Raises InvalidRequest for blocks that were not filled here.
        """
        if self._journal.notes:
            self._journal.take_back()  # as `place` does: what is looked at here may be half changed
        growth = list(growth)
        places = places or self.places([block for block, _ in growth])
        lengths: dict[Block, int] = {}
        for (block, _), place in zip(growth, places, strict=True):
            lengths[block] = length = len(block.tokens)
            if place.offset + length > place.strip.num_tokens:
                self.check_filled(block, place)
        asked = self._with_room(growth, places)
        # Noted before anything grows: taking back what was not given does nothing.
        self._promises = lengths | self._promises
        self._grow_all(asked)

    def _with_room(
        self, growth: Sequence[tuple[Block, int]], places: Sequence[Place]
    ) -> list[tuple[Strip, int]]:
        """The strips that shall grow, and by how much; there are pages for all of them."""
        asked = [
            (place.strip, num_tokens) for place, (_, num_tokens) in zip(places, growth, strict=True)
        ]
        num_pages = self._pages_for(asked)
        if num_pages > len(self._free) and self._spares:
            # Some spares may be these strips' own.
            self._take_spares_back()
            num_pages = self._pages_for(asked)
        if not self.make_room(num_pages):
            raise OutOfMemory(
                f"this step needs {counted(num_pages, 'more page')} of {self.page_size} tokens, and {self.said_to_be_free}",
                hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
            )
        return asked

    def _pages_for(self, asked: Sequence[tuple[Strip, int]]) -> int:
        num_pages, size = 0, self.page_size
        for strip, num_tokens in asked:
            if strip.num_tokens + num_tokens > len(strip.pages) * size:
                num_pages += self._pages_to_add(strip, num_tokens)
        return num_pages

    def _grow_all(self, asked: Sequence[tuple[Strip, int]]) -> None:
        size = self.page_size
        with self._journal as journal:
            journal.keep_each("num_tokens", [strip for strip, _ in asked])
            for strip, num_tokens in asked:
                grown = strip.num_tokens + num_tokens
                if grown > len(strip.pages) * size:
                    self._add_pages(strip, self._pages_to_add(strip, num_tokens))
                strip.num_tokens = grown

    def keep(self) -> None:
        """The step has succeeded: its feeds have joined their blocks, and the promise is fulfilled."""
        self._promises = {}

    def take_back(self) -> None:
        """The step has failed: blocks have the tokens they had before it, and its pages are free.

        Does nothing where no promise is open. Interrupted, it can be called again.
        """
        if not self._promises:
            return
        self.chosen = None
        self.generation += 1
        for block, size in self._promises.items():
            del block.tokens[size:]
            place = self.place(block)
            with self._journal:
                self._shrink(place.strip, place.offset + size)
        self._promises = {}
        self.take_fronts_back()

    def take_fronts_back(self) -> None:
        """Pages of fronts are free again where the block behind is empty, still or again: a run that waits holds none for it."""
        self._collect()
        for block in reversed(list(self._fronted)):
            place = self.place(block)
            if not block.tokens:
                self._take_front_back(place)
            has_front = place.strip.front is not None or place.strip.awaited is not None
            if not has_front or (block.frozen and block.tokens):
                self._fronted.pop(block, None)

    def _take_front_back(self, place: Place) -> None:
        """Have an empty block that lies alone begin its strip."""
        if place.strip.front is None and place.strip.awaited is None:
            return
        if place.strip.num_blocks > 1:
            return
        with self._journal as journal:
            journal.keep(self, "generation")
            journal.keep(place, "offset")
            journal.keep(place.strip, "front", "awaited")
            self._shrink(place.strip, 0)
            place.strip.front, place.strip.awaited, place.offset = None, None, 0
            self.generation += 1

    def shorten(self, block: Block, size: int) -> None:
        """Take all tokens behind the first `size` off a block that may still grow, evicted or not, and free their pages."""
        place = self.place(block)
        with self._journal as journal:
            journal.keep(self, "generation")
            self.generation += 1
            journal.keep_tail(block.tokens, size)
            journal.keep(place, "size")
            del block.tokens[size:]
            place.size = min(place.size, size)
            self._shrink(place.strip, place.offset + size)

    def make_room(self, num_pages: int) -> bool:
        """Have so many pages free: no spares, then with the help of the keepers. False if it cannot be: these let nothing go then."""
        self._collect()
        if num_pages > len(self._free):
            self._take_spares_back()
        if not self.could_have(num_pages):
            return False
        for keeper in list(self.keepers) if num_pages > len(self._free) else ():
            keeper.make_room(num_pages - self.num_free_pages)
        self._collect()
        return num_pages <= len(self._free)

    def could_have(self, num_pages: int) -> bool:
        """Whether `make_room` could have so many pages free. Nothing is let go to find out.

        Where keepers are nearly empty all that they could let go is looked at, so it is not to be asked in every pass.
        """
        self._collect()
        missing = num_pages - self.num_free_pages
        if missing <= 0 or missing <= sum([each.num_pages_idle for each in self.keepers]):
            return True
        return missing <= self._num_pages_of(self._idle_blocks())

    def _idle_blocks(self) -> Iterable[Block]:
        """All blocks that keepers could let go."""
        return chain.from_iterable([each.idle_blocks() for each in self.keepers])

    def _idle(self, blocks: Collection[Block]) -> Iterable[Block]:
        """Of these blocks those that keepers could let go."""
        return chain.from_iterable([each.idle(blocks) for each in self.keepers])

    def _passed(self, blocks: Collection[Block]) -> Iterable[Block]:
        """Of these blocks those that are kept, and that runs only pass."""
        return chain.from_iterable([each.passed(blocks) for each in self.keepers])

    def _num_pages_of(self, blocks: Iterable[Block]) -> int:
        """Pages that would be free if these blocks went, unless a view still reads some of them."""
        gone: dict[Strip, set[Place]] = {}
        for block in blocks:
            if (place := self._places.get(weakref.ref(block))) is not None:
                gone.setdefault(place.strip, set()).add(place)
        num_pages = 0
        for strip, places in gone.items():
            if self.has_gone(strip):
                continue
            left = [other.offset + other.size for other in strip.places if other not in places]
            num_pages += self._num_pages_on(strip.num_tokens)
            num_pages -= self._num_pages_on(max(left, default=0))
        return num_pages

    def _num_pages_on(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _can_be_had(self, num_pages: int) -> bool:
        """Whether so many pages are free, or held by keepers for nobody."""
        missing = num_pages - len(self._free)
        return missing <= 0 or missing <= sum([each.num_pages_idle for each in self.keepers])

    def _have(self, num_pages: int, *, of: int = 1) -> bool:
        """Have so many pages free, with the help of the keepers. False if they are more than one of `of` parts of what can be had."""
        if not self._can_be_had(num_pages * of):
            return False
        for keeper in list(self.keepers) if num_pages > len(self._free) else ():
            keeper.make_room(num_pages - len(self._free))
            self._collect()
        return num_pages <= len(self._free)

    def add_spares(self, strips: Sequence[Strip]) -> None:
        """Give an empty page to each strip that has none, if that takes little of what can be had."""
        if not self.recycle:
            return
        self._collect()
        wanted = [strip for strip in strips if self.num_slots_left(strip) < self.page_size]
        if not self._have(len(wanted), of=_PLENTY):
            return
        with self._journal as journal:
            journal.keep(self, "_spares")
            for strip in wanted:
                self._add_pages(strip, 1)
            mine = dict.fromkeys((*self._spares, *wanted))
            self._spares = {strip: None for strip in mine if self._num_spare_pages(strip)}

    def lend(self, growth: Sequence[tuple[Strip, int]]) -> bool:
        """Have pages for these strips to grow by so many tokens, as spares: nothing is promised to them.

        They stay while `generation` does. False, and nothing is lent, where that would take half of what can be had.
        """
        self._collect()
        wanted = [
            (strip, num_pages)
            for strip, size in growth
            if self.num_slots_left(strip) < size and (num_pages := self._pages_to_add(strip, size))
        ]
        if not wanted:
            return True
        if not self.recycle:
            return False
        num_pages = sum(size for _, size in wanted)
        if not self._have(num_pages, of=2):
            with self._journal:
                self._drop_waiting()
            if not self._have(num_pages, of=2):
                return False
        with self._journal as journal:
            journal.keep(self, "_spares")
            for strip, size in wanted:
                self._add_pages(strip, size)
            mine = dict.fromkeys((*self._spares, *(strip for strip, _ in wanted)))
            self._spares = {strip: None for strip in mine if self._num_spare_pages(strip)}
        return True

    def grows_no_more(self, block: Block) -> None:
        """A frozen block is to be kept: pages that its strip was given ahead are free.

        Else all that is ever kept would hold some. The step that goes on has room for it alone, so plans stay true.
        """
        assert block.frozen, block
        self._collect()
        strip = self.place(block).strip
        if strip not in self._spares:
            return
        with self._journal as journal:
            journal.keep(self, "_spares")
            self._shrink(strip, strip.num_tokens)
            self._spares = {other: None for other in self._spares if other is not strip}

    def _take_spares_back(self) -> None:
        with self._journal as journal:
            journal.keep(self, "generation", "_spares")
            self.generation += bool(self._spares)
            for strip in self._spares:
                self._shrink(strip, strip.num_tokens)
            self._spares = {}
            self._drop_waiting()

    def _num_spare_pages(self, strip: Strip) -> int:
        return len(strip.pages) - -(-strip.num_tokens // self.page_size)

    def can_join(self, block: Block, before: Block) -> bool:
        """Whether `join` would move the block."""
        here, there = self.places((block, before))
        end = there.offset + before.num_tokens
        size = block.num_tokens
        in_front = here.strip.front or here.strip.awaited
        front = in_front.size if in_front else 0
        alone = here.strip.num_blocks == 1 and here.strip.num_tokens == front + size
        if here.strip is there.strip or not alone or end != there.strip.num_tokens:
            return False
        if not size or not before.num_tokens:
            return False
        return self._can_be_had(self._pages_to_add(there.strip, size))

    def join(self, block: Block, before: Block) -> Move | None:
        """Move frozen `block` onto the strip of `before`, directly behind it, if that is possible.

        It is when `before` ends its strip, `block` lies alone on its own, neither is empty, and the pages suffice. (The room
        in front of an empty block goes back with a step that fails, if nothing is behind it.)
        The move is owed from then on.
        """
        self._collect()
        if not self.can_join(block, before):
            return None
        here, there = self.place(block), self.place(before)
        end = there.offset + before.num_tokens
        size = block.num_tokens
        num_pages = self._pages_to_add(there.strip, size)
        if not self._have(num_pages):
            return None
        left = here.strip
        sources = self.slots(left, here.offset, here.offset + size)
        with self._journal as journal:
            journal.keep_tail(self._moves, len(self._moves))
            journal.keep(here, "strip", "offset", "size")
            journal.keep(there, "size")
            journal.keep(left, "left")
            journal.keep(self, "num_joined")
            journal.keep_tail(there.strip.places, len(there.strip.places))
            journal.keep(there.strip, "num_tokens")
            self._add_pages(there.strip, num_pages)
            there.strip.num_tokens += size
            move = Move(sources, self.slots(there.strip, end, end + size), end - here.offset)
            self._leave(here)
            here.strip, here.offset, here.size = there.strip, end, size
            there.size = before.num_tokens
            there.strip.places.append(here)
            self._moves.append(move)
            left.left = True
            self.num_joined += 1
        return move

    def follow(self, block: Block, before: Block) -> None:
        """Let an empty block, seen for the first time, begin directly behind frozen `before`, on its strip.

        Where something lies there already, the block gets a strip of its own.
        """
        assert before.frozen, before
        assert not block.tokens, block
        self._collect()
        there = self.place(before)
        end = there.offset + before.num_tokens
        if end == there.strip.num_tokens and not self.is_evicted(before):
            there.size = before.num_tokens
            self._put(block, Place(there.strip, end))

    def make_front(self, other: Block) -> None:
        """Copy frozen `other` to a strip of its own, on which another block may follow. The move is owed from then on.

        Nothing is done where that would take much of what can be had, and where keys are never moved.
        """
        assert other.frozen, other
        assert other.tokens, other
        self._collect()
        place, size = self.place(other), other.num_tokens
        num_pages = -(-size // self.page_size)
        if not self._can_spare(num_pages) or self.is_evicted(other):
            return
        strip = Strip(front=Front(weakref.ref(other), size))
        with self._journal as journal:
            self._add_pages(strip, num_pages)
            strip.num_tokens = size
            sources = self.slots(place.strip, place.offset, place.offset + size)
            move = Move(sources, self.slots(strip, 0, size), -place.offset)
            journal.keep_tail(self._moves, len(self._moves))
            self._moves.append(move)
            journal.keep_tail(place.fronts, len(place.fronts))
            place.fronts.append(strip)
            journal.keep(self, "_fronts")
            self._fronts = {known: None for known in (*self._fronts, place) if known.fronts}

    def _can_spare(self, num_pages: int) -> bool:
        """Whether keys may be moved at all, and so many pages, which are free then, are little of what can be had."""
        is_little = self.recycle and self._can_be_had(_PLENTY * (num_pages + self._num_waiting))
        return is_little and self._have(num_pages)

    def num_fronts(self, other: Block) -> int:
        """Copies of a block that are made and not given to another one yet."""
        return len(self.place(other).fronts)

    def give_front(self, block: Block, other: Block) -> None:
        """Let an empty block, seen for the first time, begin behind a copy of `other`, if one is made."""
        assert not block.tokens, block
        assert not self.has_seen(block), block
        self._collect()
        fronts = self.place(other).fronts
        if fronts:
            self._fronted[block] = None  # first, so that it can be taken back
            self._put(block, Place(fronts[-1], other.num_tokens), fronts)

    def leave_room(self, block: Block, other: Block, size: int) -> None:
        """Let an empty block, seen for the first time, begin behind room for a copy of `other`, which is to have `size` tokens.

        Nothing is done where `make_front` would do nothing. A move that clears the room is owed from then on.
        """
        assert not block.tokens, block
        assert not self.has_seen(block), block
        self._collect()
        rooms = self.place(other).rooms
        num_pages = -(-size // self.page_size)
        if not self._can_spare(num_pages):
            return
        self._fronted[block] = None  # first, so that it can be taken back
        strip = Strip(num_tokens=size, awaited=Front(weakref.ref(other), size))
        with self._journal as journal:
            self._add_pages(strip, num_pages)
            slots = self.slots(strip, 0, size)
            journal.keep_tail(self._moves, len(self._moves))
            self._moves.append(Move(np.full_like(slots, NOWHERE), slots, 0))
            journal.keep_tail(rooms, len(rooms))
            rooms.append(strip)
            self._lay(block, Place(strip, size))

    def fill_rooms(self, other: Block) -> None:
        """Copy frozen `other` to wherever room was left for it. Moves are owed from then on."""
        assert other.frozen, other
        self._collect()
        place, size = self.place(other), other.num_tokens
        rooms = [] if self.is_evicted(other) else list(place.rooms)
        with self._journal as journal:
            journal.keep_tail(self._moves, len(self._moves))
            journal.keep_tail(place.rooms)
            for strip in rooms:
                # Blocks that were evicted or moved lie elsewhere.
                if strip.awaited is None or strip.awaited.size != size or not strip.places:
                    continue
                journal.keep(strip, "front", "awaited")
                sources = self.slots(place.strip, place.offset, place.offset + size)
                self._moves.append(Move(sources, self.slots(strip, 0, size), -place.offset))
                strip.front, strip.awaited = strip.awaited, None
            place.rooms.clear()

    def make_moves(self, make: Callable[[Sequence[Move]], None]) -> None:
        """Have all owed moves made, the oldest first, as many at once as do not meet.

        What fails stays owed: to repeat it is harmless.
        """
        while self._moves:
            count = num_apart(self._moves)
            make(self._moves[:count])
            del self._moves[:count]

    def divide(self, block: Block, at: int) -> tuple[Block, Block]:
        """Two frozen blocks with the tokens of frozen `block` before and from index `at`.

        They lie where it lies, so their keys are its keys. `block` itself stays as it is, for as long
        as some view reads it.
        """
        assert block.frozen, block
        assert 0 < at < block.num_tokens, (at, block)
        place = self.place(block)
        place.size = block.num_tokens
        head, tail = Block(block.name), Block(block.name)
        for half, low, high in ((head, 0, at), (tail, at, block.num_tokens)):
            half.tokens.extend(block.tokens[low:high])
            self._put(half.freeze(), Place(place.strip, place.offset + low, high - low))
        if self.states is not None:
            self.states.divided(block, tail)
        return head, tail

    def evict(self, blocks: Iterable[Block], strips: list[Strip]) -> None:
        """Free the pages of these blocks, and their states; `strips` becomes the list on which they wait for new ones.

        Blocks that lay together stay together, without the gaps of those that are gone. `bring_back` gives the
        strips pages; their keys are then to be written anew. An interrupt finds both changed or neither.
        """
        together: dict[Strip, list[tuple[Place, int]]] = {}
        blocks = list(blocks)
        for block in blocks:
            place = self.place(block)
            together.setdefault(place.strip, []).append((place, block.num_tokens))
        with self._journal as journal:
            journal.keep(self, "generation")
            journal.keep_tail(strips)
            self.generation += bool(together)
            if self.states is not None:
                self.states.evict(blocks, journal)
            strips.clear()
            for places in together.values():
                strips.append(Strip())
                for place, size in sorted(places, key=lambda each: each[0].offset):
                    journal.keep(place, "strip", "offset", "size")
                    self._leave(place)
                    place.strip, place.offset, place.size = strips[-1], strips[-1].num_tokens, size
                    strips[-1].places.append(place)
                    strips[-1].num_tokens += size

    def bring_back(self, strips: Iterable[Strip]) -> None:
        """Give strips that were evicted pages again; OutOfMemory if not all of them fit."""
        growth = dict.fromkeys(strips, 0)
        num_pages = self.num_pages_to_add(growth)
        if not self.make_room(num_pages):
            raise OutOfMemory(
                f"a preempted run needs {counted(num_pages, 'page')} of {self.page_size} tokens, and {self.said_to_be_free}",
                hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
            )
        self._grow_all(list(growth.items()))

    def num_pages_to_add(self, growth: Mapping[Strip, int]) -> int:
        """Pages that strips need to grow by so many tokens; an evicted one needs all of its pages."""
        self._collect()
        return sum(self._pages_to_add(strip, size) for strip, size in growth.items())

    def is_evicted(self, block: Block) -> bool:
        """Whether the block was evicted, so that its keys are not in memory."""
        return self.has_gone(self.place(block).strip)

    def has_gone(self, strip: Strip) -> bool:
        """Whether the blocks of a strip were evicted."""
        return strip.num_tokens > len(strip.pages) * self.page_size

    def before_step(self, block: Block) -> int:
        """How many tokens the block had before the step that goes on; without one, how many it has."""
        return self._promises.get(block, block.num_tokens)

    def _let_go(self) -> bool:
        """Have a keeper let one unused block go; False if none has any."""
        return any(keeper.let_go() for keeper in list(self.keepers))

    def is_kept(self, block: Block) -> bool:
        """Whether a keeper has the block for others too."""
        return any(keeper.keeps(block) for keeper in self.keepers)

    def slots(self, strip: Strip, start: int, stop: int) -> Ints:
        """Slots of the strip's indices start..stop: pages[j // page_size] * page_size + j % page_size."""
        size = self.page_size
        first, last = start // size, (stop - 1) // size
        if first == last:  # as most of what is moved lies
            shift = (strip.pages[first] - first) * size
            return np.arange(start + shift, stop + shift, dtype=np.int64)
        index = np.arange(start, stop, dtype=np.int64)
        # A history has many pages, of which few are asked for.
        pages = np.array(strip.pages[first : last + 1], dtype=np.int64)
        return pages[index // size - first] * size + index % size

    def num_slots_left(self, strip: Strip) -> int:
        """By how many tokens the strip can grow without another page."""
        return len(strip.pages) * self.page_size - strip.num_tokens

    def _pages_to_add(self, strip: Strip, num_tokens: int) -> int:
        return max(0, -(-(strip.num_tokens + num_tokens) // self.page_size) - len(strip.pages))

    # Inside a change only, so that it can be taken back:

    def _lay(self, block: Block, place: Place) -> None:
        """Give a block its place."""
        # The callback is no Python code: nothing can interrupt it, and no death goes unnoticed.
        reference = weakref.ref(block, self._has_gone)
        self._journal.keep_tail(place.strip.places, len(place.strip.places))
        place.strip.places.append(place)
        self._journal.keep_item(self._places, reference)
        self._places[reference] = place

    def _add_pages(self, strip: Strip, num_pages: int) -> None:
        self._journal.keep_tail(strip.pages, len(strip.pages))
        self._journal.keep_tail(self._free, len(self._free) - num_pages)
        for _ in range(num_pages):
            strip.pages.append(self._free.pop())

    def _shrink(self, strip: Strip, num_tokens: int, *, recycle: bool = True) -> None:
        """Take the pages behind so many tokens off a strip."""
        num_pages = -(-num_tokens // self.page_size)
        self._journal.keep(strip, "num_tokens")
        self._journal.keep_tail(strip.pages, num_pages)
        self._journal.keep_tail(self._free, len(self._free))
        pages = strip.pages[num_pages:]
        del strip.pages[num_pages:]
        if recycle:
            self._free.extend(reversed(pages))
        strip.num_tokens = num_tokens

    def _leave(self, place: Place) -> None:
        """Take the place off its strip; free the pages behind the last one that is left."""
        strip = place.strip
        self._journal.keep_tail(strip.places)
        strip.places.remove(place)
        end = max((other.offset + other.size for other in strip.places), default=0)
        if self.recycle or not end:
            self._shrink(strip, end, recycle=self.recycle)

    def _drop_waiting(self) -> None:
        """Free the pages of all copies that no block has been given."""
        self._journal.keep(self, "_fronts")
        for place in self._fronts:
            self._drop_fronts(place)
        self._fronts = {}

    def _drop_fronts(self, place: Place) -> None:
        """Free the pages of the copies that wait of one block, which lies at `place`; it stays in `_fronts`."""
        for strip in place.fronts:
            self._shrink(strip, 0)
        self._journal.keep_tail(place.fronts)
        place.fronts.clear()

    def _collect(self) -> None:
        """Free the pages of blocks that are gone."""
        self._journal.take_back()
        while self._gone:
            reference = self._gone[0]  # deaths meanwhile are added behind it
            with self._journal as journal:
                if reference in self._places:
                    place = self._places[reference]
                    self._leave(place)
                    if place.fronts:
                        self._drop_fronts(place)
                    journal.keep_item(self._places, reference)
                    del self._places[reference]
            del self._gone[0]

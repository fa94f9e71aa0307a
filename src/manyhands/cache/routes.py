"""Routes: the pieces in which the keys of a view lie, in the order in which it reads them.

A view is walked once, block by block, and its route is remembered with it (`cache/planner.py`). On that walk a frozen block is moved
behind the frozen one in front of it, where that can be done now (compaction), and neighbours that lie in one piece become one:

    view     prompt  step 1  step 2  header  desk A  marker  desk B
    route    [prompt step 1  step 2] [header] [desk A] [marker desk B]

The last piece is a desk that begins behind a copy of the marker (`cache/fronts.py`), so both are read as one. A block that may still
grow is a piece of its own, `Live`; finished ones lie in a `Frozen` one. Around lanes stand marks, since what follows a lane does not
begin where it ends.

When a worker ends its step all views of its team are new, and most of each is what others have met before: a `Walk` is that of the
views of one step, and looks up what they have in common once. The history with which they begin is not walked at all
(`cache/trunks.py`), and a view that differs from the last one only in which block stands where is made of its route.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import compress, count, pairwise
from operator import is_not
from typing import Any, NamedTuple

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints, Place, Strip
from manyhands.cache.trunks import NOTHING, Frozen, Trunk, Trunks
from manyhands.cache.view import Item, Lanes, View
from manyhands.errors import InvalidRequest


class Live(NamedTuple):
    """A block that may still grow, and how many keys are read with it that stand in front of it on its strip."""

    block: Block
    place: Place
    strip: Strip
    front: int = 0


Point = tuple[int, int]  # a position of a view, and how it grows


class LaneMark(Enum):
    """Where lanes begin and end in a route (see `cache/view.py::Lanes`)."""

    FORK = auto()  # the first lane begins here
    LANE = auto()  # the next one begins where the first one did
    JOIN = auto()  # the next block begins behind the longest lane

    def behind(self, here: Point, forks: list[tuple[Point, Point]]) -> Point:
        """`here` behind this mark. Of every fork that is open, `forks` has the point and the longest lane's end."""
        if self is LaneMark.FORK:
            forks.append((here, here))
            return here
        fork, longest = forks.pop()
        longest = max(longest, here)
        if self is LaneMark.JOIN:
            return longest
        forks.append((fork, longest))
        return fork


Piece = Frozen | Live
Route = tuple[Piece | LaneMark, ...]


class Read(NamedTuple):
    """The strips that a route leads over, by their numbers; the blocks of it that may grow, and their ids."""

    strips: dict[int, Strip]
    blocks: frozenset[Block]
    live: frozenset[int]

    @classmethod
    def of(cls, route: Route) -> Read:
        """Looked up piece by piece."""
        pieces = [piece for piece in route if not isinstance(piece, LaneMark)]
        strips = {piece.strip.number: piece.strip for piece in pieces}
        blocks = frozenset(piece.block for piece in pieces if isinstance(piece, Live))
        return cls(strips, blocks, frozenset(map(id, blocks)))


class Walked(NamedTuple):
    """A view that was walked, while so many blocks had been moved, and what came of it."""

    view: View
    route: Route
    is_waiting: bool  # a block of it is to be moved, in a plan that has the time
    num_marks: int  # of the route; 0 without lanes
    read: Read
    num_joined: int
    # Without lanes: where in the route each block that may grow is read; -1: more than once.
    stands: dict[Block, int]


class Walk:
    """The walk along the views of one step: views of a team meet the same blocks."""

    def __init__(self, pool: PagePool, trunks: Trunks, *, is_joining: bool) -> None:
        """`is_joining`: blocks that can be moved behind others are; else they wait."""
        self._pool, self._trunks = pool, trunks
        self._is_joining = is_joining
        self._pieces: dict[Block, Piece] = {}  # of the blocks that were met
        # The view that was walked last, and its trunk.
        self._view: View | None = None
        self._trunk: Trunk = NOTHING
        # The same for all views with the same blocks behind this trunk, in any order, as long as nothing is moved, and with
        # the same strips: where a copy is read the strip of the marker itself may not be.
        self._read: dict[tuple[frozenset[Block], frozenset[int], int], Read] = {}
        self._read_behind: Trunk = NOTHING
        self._last: Walked | None = None  # the last view, if others can be made of it
        self._fronted: dict[Block, Live] = {}  # blocks with what stands in front of them

    def along(self, view: View) -> Walked:
        """The route of a view, and what is read on it. Raises InvalidRequest where keys of it are gone, or never were in this memory.

        It may move blocks that another view reads, which has to be walked again then (`have_moved`).
        """
        num_joined = self._pool.num_joined
        if (walked := self._like_the_last(view, num_joined)) is None:
            route, is_waiting = self._step_by_step(view)
            num_marks = 0
            if view.has_lanes:
                num_marks = sum(isinstance(piece, LaneMark) for piece in route)
                read = Read.of(route)
            else:
                if self._read_behind is not self._trunk:
                    self._read, self._read_behind = {}, self._trunk
                strips = frozenset(p.strip.number for p in route if isinstance(p, Frozen))
                behind = frozenset(view.blocks[len(self._trunk.blocks) :])
                key = behind, strips, self._pool.num_joined
                read = self._read.get(key) or Read.of(route)
                if num_joined == self._pool.num_joined:  # nothing was moved on the way
                    self._read[key] = read
            walked = Walked(
                view, route, is_waiting, num_marks, read, self._pool.num_joined, _stands(route)
            )
        # A block that was moved on the way is read where it lies now, unless it stands in the view twice.
        is_right = num_joined == self._pool.num_joined or not have_moved(walked.read.strips)
        self._last = walked if not walked.num_marks and is_right else None
        return walked

    def _like_the_last(self, view: View, num_joined: int) -> Walked | None:
        """The view as `Walked`, if it is the last one with blocks that may grow in places where others did.

        So are the views of a team: each worker's own desk stands last.
        """
        last, blocks = self._last, view.blocks
        if last is None or last.num_joined != num_joined or len(blocks) != len(last.view.blocks):
            return None
        if view.has_lanes:
            return None
        first = len(self._trunk.blocks)
        if not view.begins_like(last.view, first):
            return None
        differing = where_they_differ(blocks, before := last.view.blocks, first)
        pieces: list[Any] = list(last.route)
        stands = last.stands.copy()
        for at in differing:
            stands.pop(before[at], None)
        for at in differing:
            block, stand = blocks[at], last.stands.get(before[at], -1)
            new = self._pieces.get(block)
            if not isinstance(new, Live) or stand < 0 or block in stands:  # it may be read twice
                return None
            # With a copy where the other one has none, or the other way round, there is another piece.
            has_front = at > 0 and _copied(new) is blocks[at - 1]
            if has_front != bool(pieces[stand].front):
                return None
            pieces[stand] = self._with_front(new) if has_front else new
            stands[block] = stand
        route, read = tuple(pieces), last.read
        if {blocks[at] for at in differing} != {before[at] for at in differing}:
            read = Read.of(route)
        return Walked(view, route, last.is_waiting, 0, read, num_joined, stands)

    def _step_by_step(self, view: View) -> tuple[Route, bool]:
        """Walk a view block by block: compact frozen neighbours, fuse those that lie in one piece.

        What it shares with a view that was walked before is not walked again (`cache/trunks.py`). Also whether a
        block is left to be moved later.
        """
        trunk, size = self._trunk, len(self._trunk.blocks)
        is_alike = self._view is not None and size > 0 and view.begins_like(self._view, size)
        if not is_alike or trunk.has_moved:
            trunk = self._trunks.shared(view)
        blocks: list[weakref.ref[Block]] = []  # behind the trunk
        ends: list[int] = []
        end = trunk.ends[-1] if trunk.ends else 0
        pieces: list[Piece | LaneMark] = list(trunk.pieces)
        previous = trunk.blocks[-1]() if trunk.blocks else None
        begins = len(pieces)  # how many pieces the trunk takes; it ends with the first other piece
        is_waiting = False
        has_lanes = view.has_lanes
        first = len(trunk.blocks)
        rest: Iterable[Block | LaneMark] = view.blocks_from(first)
        if has_lanes:
            rest = _marked(view.items[first:])
        for index, block in enumerate(rest, start=first):
            if isinstance(block, LaneMark):
                pieces.append(block)
                previous = None
                continue
            piece = self._pieces.get(block) or self._met(block)
            if isinstance(piece, Live):
                if not has_lanes and (known := self._known_pieces(view.blocks[index:])):
                    pieces += known
                    break
                if not has_lanes and len(pieces) > begins:
                    fronted = self._behind_copy(view.blocks[index - 1], piece)
                    if fronted is not None:
                        in_front = pieces.pop()
                        assert isinstance(in_front, Frozen), "it is frozen"
                        if in_front.size > fronted.front:
                            pieces.append(in_front._replace(size=in_front.size - fronted.front))
                        piece = fronted
                pieces.append(piece)
                previous = None
                continue
            if previous is not None and len(piece.strip.places) == 1:
                if not self._is_joining:
                    is_waiting |= self._pool.can_join(block, previous)
                elif self._pool.join(block, previous) is not None:
                    piece = self._met(block)
                    assert isinstance(piece, Frozen), "it is frozen"
            # A trunk ends before a block that is still to be moved.
            is_behind = begins == len(pieces) and not is_waiting
            last = pieces[-1] if pieces else None
            if isinstance(last, Frozen) and _touch(last, piece):
                pieces[-1] = last._replace(size=last.size + piece.size)
            else:
                pieces.append(piece)
            if is_behind:
                begins = len(pieces)
                blocks.append(weakref.ref(block))
                ends.append(end := end + piece.size)
            previous = block
        if blocks:
            finished = _finished(pieces[:begins])
            trunk = Trunk.of(view, (*trunk.blocks, *blocks), finished, (*trunk.ends, *ends))
            self._trunks.add(trunk)
        self._trunk, self._view = trunk, view
        return tuple(pieces), is_waiting

    def _known_pieces(self, blocks: Sequence[Block]) -> list[Piece] | None:
        """The pieces of these blocks; None if one of them may have to be moved. That is rare: most are desks, which grow."""
        pieces: list[Any] = list(map(self._pieces.get, blocks))
        if not all(pieces):
            pieces = [
                piece or self._pieces.get(block) or self._met(block)
                for piece, block in zip(pieces, blocks, strict=True)
            ]
        kinds = list(map(type, pieces))
        frozen = [at for at, kind in enumerate(kinds) if kind is Frozen]
        behind = [at for last, at in pairwise(frozen) if at == last + 1]
        if any(len(pieces[at].strip.places) == 1 for at in behind):
            return None
        fronts = [
            at
            for at, kind in enumerate(kinds)
            if kind is Live and at and pieces[at].strip.front is not None
        ]
        taken = -1  # the piece in front of the last one: its keys are read from the copy
        for index in sorted((*behind, *fronts), reverse=True):
            last, piece = pieces[index - 1], pieces[index]
            if kinds[index] is Live:
                fronted = self._behind_copy(blocks[index - 1], piece)
                if fronted is not None:
                    pieces[index - 1 : index + 1] = [fronted]
                    taken = index - 1
            elif index != taken and _touch(last, piece):
                pieces[index - 1 : index + 1] = [last._replace(size=last.size + piece.size)]
        return pieces

    def _behind_copy(self, before: Block, live: Live) -> Live | None:
        """`live` with the copy of `before` in front of it on its strip; None where there is none."""
        return self._with_front(live) if _copied(live) is before else None

    def _with_front(self, live: Live) -> Live:
        """The block with what stands in front of it: one object for all views."""
        if (found := self._fronted.get(live.block)) is None:
            assert live.strip.front is not None, "it was looked at"
            found = self._fronted[live.block] = live._replace(front=live.strip.front.size)
        return found

    def _met(self, block: Block) -> Piece:
        """Look up where a block lies."""
        place = readable_place(self._pool, block)
        if block.frozen and block.tokens:
            self._pieces[block] = piece = Frozen(place.strip, place.offset, block.num_tokens)
            return piece
        self._pieces[block] = live = Live(block, place, place.strip)
        return live


def readable_place(pool: PagePool, block: Block) -> Place:
    """Where a block lies that shall be read. Raises InvalidRequest where its keys are gone, or never were in this memory."""
    place = pool.place(block)
    pool.check_filled(block, place)
    if pool.has_gone(place.strip):
        raise InvalidRequest(
            f"the block {block.name!r} is read, and the run that wrote it was preempted",
            hint="Let runs share what they both read through the engine's prefixes.",
        )
    return place


def have_moved(strips: Mapping[int, Strip]) -> bool:
    """Whether a block of one of these strips, which a route leads over, was moved behind another one since."""
    return True in [strip.left for strip in strips.values()]


def starts_of(route: Route, size: Ints, grows: Ints) -> list[list[int]]:
    """Where the pieces of a route with lanes begin, and how that grows; sizes without those of marks."""
    here: Point = (0, 0)
    forks: list[tuple[Point, Point]] = []
    found: list[Point] = []
    pieces = iter(zip(size.tolist(), grows.tolist(), strict=True))
    for piece in route:
        if isinstance(piece, LaneMark):
            here = piece.behind(here, forks)
            continue
        found.append(here)
        length, growth = next(pieces)
        here = here[0] + length, here[1] + growth
    return [list(column) for column in zip(*found, strict=True)]


def where_they_differ(one: Sequence[object], other: Sequence[object], first: int) -> list[int]:
    """The indices from `first` on at which two sequences of one length have different objects."""
    return [*compress(count(first), map(is_not, one[first:], other[first:]))]


def copied_by(place: Place, numbers: Mapping[Block | None, int]) -> tuple[int, int]:
    """The number of the block of which a copy stands in front of one that lies here, and its tokens; -1 without."""
    front = place.strip.front
    if front is None or place.offset != front.size:
        return -1, 0
    return numbers.get(front.block(), -1), front.size


def _copied(live: Live) -> Block | None:
    """The block of which a copy stands directly in front of this one."""
    front = live.strip.front
    return front.block() if front is not None and live.place.offset == front.size else None


def _stands(route: Route) -> dict[Block, int]:
    """Where in a route each block that may grow is read; -1: more than once."""
    found: dict[Block, int] = {}
    for index, piece in enumerate(route):
        if isinstance(piece, Live):
            found[piece.block] = -1 if piece.block in found else index
    return found


def _touch(one: Frozen, other: Frozen) -> bool:
    """Whether the other one begins where the one ends."""
    return one.strip is other.strip and one.low + one.size == other.low


def _finished(pieces: Iterable[Piece | LaneMark]) -> tuple[Frozen, ...]:
    return tuple(piece for piece in pieces if isinstance(piece, Frozen))


def _marked(items: Sequence[Item]) -> Iterator[Block | LaneMark]:
    """The blocks of a view, with marks around lanes."""
    for item in items:
        if isinstance(item, Lanes):
            for index, lane in enumerate(item.lanes):
                yield LaneMark.LANE if index else LaneMark.FORK
                yield from _marked(lane)
            if item.lanes:
                yield LaneMark.JOIN
        else:
            yield item

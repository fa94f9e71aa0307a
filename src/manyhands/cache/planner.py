"""From steps to plans: what each row of a pass reads, from which position on, and room for what it is fed.

Where the keys of a view lie is walked once and kept as its route (`cache/routes.py`): its frozen neighbours, moved together by
compaction, are one piece. After that the work of a step is proportional to rows times pieces, and where the same rows go on
token by token, less: the next plan is the last one, one token later (`cache/lockstep.py`).

When a worker ends its step, all views of its team are new, and the device waits until they are planned. So what
rows have in common is looked up once for all of them, lists are laid out for all rows at a time, and what can wait is
left to the next plan that is made while the device works (`Planner.joins_ahead`): compaction, and the routes of views that
one matrix serves as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count, pairwise
from typing import Any, NamedTuple

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.fronts import Fronts
from manyhands.cache.lockstep import Lockstep
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints, Place, Strip
from manyhands.cache.plan import Growth, PageTables, Plan, Reads
from manyhands.cache.routes import (
    LaneMark,
    Piece,
    Route,
    Walk,
    copied_by,
    have_moved,
    readable_place,
    starts_of,
    where_they_differ,
)
from manyhands.cache.step import Step
from manyhands.cache.trunks import Frozen, Trunks
from manyhands.cache.view import View
from manyhands.errors import ContextTooLong, OutOfMemory, counted
from manyhands.native import build as native_build
from manyhands.native import compiled as native

_NO_READS: Ints = np.empty((0, 6), dtype=np.int64)


@dataclass(eq=False, slots=True)
class _Reader:
    """How one view is read: its route, and what its row read in plan number `at`.

    While the blocks that grow do so by one token a pass, that grows by a constant, and is not made anew.
    """

    generation: int  # of the pool, when it was made
    route: Route
    place: Place  # of its own block
    is_waiting: bool  # a block of it is to be moved, in a plan that has the time
    num_marks: int  # of the route
    # As a `Read` has them; views of a team share theirs.
    strips: dict[int, Strip]
    blocks: frozenset[Block]
    live: frozenset[int]
    table: Ints = field(default_factory=lambda: _NO_READS)  # see TABLE
    length: int = 0  # of the view, with what was fed
    growth: int = 0  # of that, a pass
    still: tuple[tuple[Block, int], ...] = ()  # of these the ones that did not, with their lengths
    at: int = 0
    took_part: int = 0  # number of the last plan that was made with it
    joined: int = -1  # how many blocks had been moved when it was last looked at
    is_known: bool = False

    def is_regular(self, irregular: set[int], pending: Mapping[Block, int]) -> bool:
        """Whether its blocks grow as they did in the last plan, or stay as they were."""
        if not self.live.isdisjoint(irregular):
            return False
        still = self.still
        return all(len(block.tokens) + pending.get(block, 0) == size for block, size in still)

    def length_in(self, number: int) -> int:
        """Of the view in plan `number`, if its reads there follow from those it has."""
        return self.length + (number - self.at) * self.growth


# The columns of a reader's table.
TABLE = ("strip", "base", "low", "high", "growth of base", "growth of high")


class _Laid(NamedTuple):
    """The reads of all rows of a plan, and the strips that they read."""

    table: Ints  # [reads of all rows, TABLE], row by row
    num_reads: Ints  # [R]
    ages: Ints  # [R]: how often each row has grown since
    growth: Ints  # [R]: of views, a pass
    strips: Mapping[int, Strip]  # by their numbers; all that are read, at least
    places: Sequence[Place]  # [R]: of the rows' own blocks


class Planner:
    """Makes plans of steps, and keeps the frozen history of every view in as few pieces as it can.

    Work per step is proportional to rows times pieces, not to the length of the history: a view is
    prepared once, and its frozen neighbours, moved together by compaction, count as one piece. A row whose
    blocks have grown by a token since the last plan costs next to nothing (`_Reader`).
    """

    def __init__(self, pool: PagePool, max_positions: int | None = None) -> None:
        native_build.module()  # compiled now rather than in the first pass
        self.pool = pool
        self.max_positions = max_positions
        self._key = object()  # of the notes of views, each of which is its reader
        self._trunks = Trunks()
        self.fronts = Fronts(pool)
        self._lockstep: Lockstep | None = None
        self._generation = pool.generation
        self._number = 0  # of the last plan, those that were followed included
        self._after: dict[int, int] = {}  # ids of the blocks that it fed: their lengths behind it
        # While a plan is made ahead: what the pass before it is about to add to its blocks.
        self._pending: Mapping[Block, int] = {}
        # Whether compaction waits for a plan that is made ahead, while the device works; for the next one at most.
        self.joins_ahead = False
        self._has_waiting = False  # of the last plan: blocks that could have been moved
        self._is_joining = True

    def plan_ahead(self, step: Step, pending: Mapping[Block, int]) -> Plan | None:
        """The plan of a step behind a pass whose feeds have not joined their blocks: `pending` are their sizes.

        Room for the feeds is lent (`PagePool.lend`), not promised: the plan holds while the pool's `generation`
        stays, and whatever has become of it then, the blocks are as they were. None where room is
        scarce. Moves may be owed, as by `plan`. Raises ContextTooLong.
        """
        self._pending = pending
        try:
            return self._plan(step, pending)
        finally:
            self._pending = {}

    def plan(self, step: Step) -> Plan:
        """Reserve room for all feeds and say what is read.

        Keys that are read may have been moved: `PagePool.moves` are to be made before the plan is run. Raises
        before anything has been reserved: ContextTooLong beyond the model's positions, OutOfMemory when the
        pages do not suffice. Interrupted anywhere else, it leaves room that `PagePool.take_back` takes back.
        """
        self._pending = {}  # an interrupt may have left it
        plan = self._plan(step, None)
        assert plan is not None, "a plan that is not made ahead is made or raises"
        return plan

    def _plan(self, step: Step, pending: Mapping[Block, int] | None) -> Plan | None:
        owners = [row.view.own for row in step.rows]
        for own in owners:
            if own.frozen:  # since the row was made
                own.check_writable()  # raises
        if self._generation != self.pool.generation:
            self._forget()
        before = self._number
        if self._lockstep is not None:
            if (plan := self._lockstep.follow(step, pending)) is not None:
                return plan
            followed = self._lockstep.plan.lockstep_index
            self._number += followed
            self._after = {block: size + followed for block, size in self._after.items()}
            self._lockstep = None
        self._is_joining = pending is not None or self._has_waiting or not self.joins_ahead
        self._has_waiting = False
        sizes = [len(row.feed) + len(row.draft) for row in step.rows]
        growth = dict(zip(owners, sizes, strict=True))
        to_come = self._pending
        if self.fronts.give(step, growth, to_come, has_time=self._is_joining):
            self._is_joining = True
        after = {
            id(block): len(block.tokens) + to_come.get(block, 0) + size
            for block, size in growth.items()
        }
        is_plain = set(growth.values()) == {1}  # decoding, perhaps for a while
        # The device waits, and views may be new: then their readers are made by the plan behind.
        is_awaited = pending is None and not self._is_joining and not is_plain
        if is_awaited and (laid := self._laid_alike(step, growth)) is not None:
            self._after = {}  # interrupted, nothing is taken to be regular
            self._number += 1
            self._promise(step, laid.places)
            plan = self._assemble(step, laid)
            self._after = after
            return plan
        readers = self._prepare_all(step)
        if self._is_joining:
            self.fronts.make()
        irregular = self._irregular(growth, after)
        self._after = {}  # interrupted, nothing is taken to be regular
        self._number += 1
        if pending is not None:
            spare = self.pool.page_size if is_plain else 0
            strips = [reader.place.strip for reader in readers]
            needed = [pending.get(block, 0) + size for block, size in growth.items()]
            if not self.pool.lend(_sizes_to_lend(self.pool, strips, needed, spare)):
                return None
        if anew := self._not_going_on(readers, step, before, irregular):
            self._read_all(anew, growth)
        for reader in readers:
            reader.took_part = self._number
        laid = self._laid(readers)
        if pending is None:
            self._promise(step, laid.places)
        if is_plain:
            self.pool.add_spares([place.strip for place in laid.places])
        plan = self._assemble(step, laid)
        self._after = after
        if plan.growth is not None and plan.num_tokens == plan.num_rows:
            live = set().union(*(reader.blocks for reader in readers))
            self._lockstep = Lockstep(plan, step, live, self.pool, self.max_positions, pending)
            return self._lockstep.plan
        return plan

    def _promise(self, step: Step, places: Sequence[Place]) -> None:
        """Reserve room for all feeds, behind the rows' own blocks in these places."""
        try:
            self.pool.promise([(row.view.own, len(row.feed)) for row in step.rows], places)
        except OutOfMemory:
            self.pool.take_fronts_back()  # or runs that wait now would hold pages for empty desks
            if step.num_pages_at_least(self.pool.page_size) <= self.pool.num_pages:
                raise
        else:
            return
        # No page of others would help. Said out here, for the error above holds the blocks of all rows.
        self._check_memory(step)

    @property
    def can_look_ahead(self) -> bool:
        """Whether the rows of the last plan could be fed one token more each, without another page."""
        return self._lockstep is not None and self._lockstep.has_room

    def _forget(self) -> None:
        """Blocks were evicted and may lie elsewhere now, or the last step was taken back."""
        self._trunks.forget()
        self._lockstep = None
        self._after = {}
        self._generation = self.pool.generation

    def _length(self, block: Block) -> int:
        """Its tokens, and those that are pending."""
        return block.num_tokens + self._pending.get(block, 0)

    def _irregular(self, growth: Mapping[Block, int], after: Mapping[int, int]) -> set[int]:
        """Ids of blocks that grow now, or did in the last plan, and not by one token from one to the other.

        `after`: by ids, in the order of `growth`, the lengths behind this plan. An id may be that of a block that is gone: no
        view that was read before has the new one.
        """
        before = self._after
        regular = {
            each
            for (each, length), size in zip(after.items(), growth.values(), strict=True)
            if size == 1 and before.get(each) == length - 1
        }
        return (before.keys() | after.keys()) - regular

    def _not_going_on(
        self, readers: Sequence[_Reader], step: Step, before: int, irregular: set[int]
    ) -> list[tuple[_Reader, View]]:
        """The readers of a step, with their views, whose reads in this plan do not follow from those that they have.

        Plan `before` was made last. Views of a team have the same blocks, and are looked at once.
        """
        number, most = self._number, self.max_positions
        # By the ids of a team's blocks and of their lengths.
        known: dict[tuple[int, int], bool] = {}
        found: list[tuple[_Reader, View]] = []
        for reader, row in zip(readers, step.rows, strict=True):
            if reader.is_known and reader.took_part == before:
                key = id(reader.live), id(reader.still)
                if (is_regular := known.get(key)) is None:
                    is_regular = known[key] = reader.is_regular(irregular, self._pending)
                if is_regular and (most is None or reader.length_in(number) <= most):
                    continue
            found.append((reader, row.view))
        return found

    def _read_all(self, rows: Sequence[tuple[_Reader, View]], growth: Mapping[Block, int]) -> None:
        """The reads of these rows in this plan. Raises ContextTooLong, and InvalidRequest for blocks that were not filled here.

        Rows of a team read the same pieces: where a piece lies is looked up once, and each row has an index into that.
        """
        known: dict[int, int] = {}  # ids of pieces: where they stand in `lying`
        lying: list[tuple[int, int, int, int]] = []  # strip, offset, tokens, whether it grows
        at: list[int] = []
        before: Sequence[Any] = ()  # the pieces of the row before, and where they stand
        stood: list[int] = []
        for reader, _ in rows:
            reader.is_known = False
            pieces: Sequence[Any] = reader.route
            if reader.num_marks:
                pieces = [piece for piece in reader.route if not isinstance(piece, LaneMark)]
            stands = stood.copy() if len(pieces) == len(before) else [-1] * len(pieces)
            others = before if len(pieces) == len(before) else pieces[:0]
            new: Iterable[int] = range(len(pieces))
            if others:
                new = where_they_differ(pieces, others, 0)
            for index in new:
                piece = pieces[index]
                if (place := known.get(id(piece))) is None:
                    place = known[id(piece)] = len(lying)
                    lying.append(self._lies(piece, growth))
                stands[index] = place
            at += stands
            before, stood = pieces, stands
        counts = [len(reader.route) - reader.num_marks for reader, _ in rows]
        ends = list(accumulate(counts))
        columns = np.array(lying, dtype=np.int64).T[:, at]  # [4, pieces of all rows]
        sizes = columns[2:]  # tokens, and how they grow
        starts = sizes.cumsum(axis=1)
        starts -= sizes
        firsts = np.array([0, *ends[:-1]])
        starts -= starts[:, firsts].repeat(counts, axis=1)
        for (reader, _), end, num_pieces in zip(rows, ends, counts, strict=True):
            if reader.num_marks:
                own = slice(end - num_pieces, end)
                starts[:, own] = starts_of(reader.route, *sizes[:, own])
        table = np.empty((len(TABLE), len(at)), dtype=np.int64)
        number, low, size, grows = columns
        table[0], table[1], table[2], table[3] = number, starts[0] - low, low, low + size
        table[4], table[5] = starts[1], grows
        last = np.array(ends) - 1
        lengths, growths = (starts[:, last] + sizes[:, last]).tolist()
        is_read = size > 0
        table, kept = table.T[is_read], is_read.cumsum()[last].tolist()
        first = 0
        still: dict[int, tuple[tuple[Block, int], ...]] = {}  # by the ids of sets of blocks
        for (reader, view), length, grown, end in zip(rows, lengths, growths, kept, strict=True):
            self._check_length(view, length)
            reader.table, first = table[first:end], end
            reader.length, reader.growth = length, grown
            if id(reader.blocks) not in still:
                still[id(reader.blocks)] = tuple(
                    (block, self._length(block)) for block in reader.blocks - growth.keys()
                )
            reader.still = still[id(reader.blocks)]
            reader.at = self._number
            # behind lanes that grow, another one may become the longest
            beside = view.beside_others
            reader.is_known = not beside or growth.keys().isdisjoint(beside)

    def _lies(self, piece: Piece, growth: Mapping[Block, int]) -> tuple[int, int, int, int]:
        """Where a piece lies: strip, offset, tokens, whether it grows. Raises InvalidRequest for a block that was not filled here."""
        if isinstance(piece, Frozen):
            return piece.strip.number, piece.low, piece.size, 0
        block, place, _, front = piece
        if place.offset + block.num_tokens > place.strip.num_tokens:
            readable_place(self.pool, block)  # raises: it was filled by hand since the walk
        size = front + self._length(block) + growth.get(block, 0)
        return place.strip.number, place.offset - front, size, int(block in growth)

    def check_whole(self, step: Step) -> None:
        """Raise for a step that cannot be fed to its end, before part of it is fed.

        ContextTooLong for a row whose own feed does not fit, OutOfMemory for more tokens than all of the memory holds.
        """
        for row in step.rows:
            self._check_length(row.view, row.view.num_tokens + len(row.feed))
        self._check_memory(step)

    def _check_memory(self, step: Step) -> None:
        """Raise OutOfMemory for more tokens than all of the memory holds."""
        pool = self.pool
        if (least := step.num_pages_at_least(pool.page_size)) > pool.num_pages:
            raise OutOfMemory(
                f"this step needs {counted(least, 'page')} of {counted(pool.page_size, 'token')} for what its rows read and write, "
                f"and the memory has {pool.num_pages}",
                hint=f"Give the engine {least * pool.page_size} memory_tokens or more, or feed less.",
            )

    def _check_length(self, view: View, num_tokens: int) -> None:
        if self.max_positions is not None and num_tokens > self.max_positions:
            raise ContextTooLong(
                f"the view of the block {view.own.name!r} would be {num_tokens} tokens long; "
                f"the model reaches {self.max_positions}",
                hint="Use a shorter problem, a smaller budget, or fewer workers.",
            )

    def _prepare_all(self, step: Step) -> list[_Reader]:
        """Have a route for every view. Preparing one may move blocks that another one reads, so look
        again until all are up to date; each move joins two strips for good, so this ends.
        """
        views = [row.view for row in step.rows]
        walk = Walk(self.pool, self._trunks, is_joining=self._is_joining)
        key, generation = self._key, self._generation
        found: list[_Reader | None] = [view.notes.get(key) for view in views]
        found = [
            reader if reader is not None and reader.generation == generation else None
            for reader in found
        ]
        while True:
            num_joined = self.pool.num_joined
            moved: dict[int, bool] = {}  # by the ids of their strips, which views of a team share
            for index, reader in enumerate(found):
                is_due = reader is not None and reader.is_waiting and self._is_joining
                if reader is not None and reader.joined == num_joined and not is_due:
                    continue
                if reader is not None and id(reader.strips) not in moved:
                    moved[id(reader.strips)] = have_moved(reader.strips)
                if reader is None or is_due or moved[id(reader.strips)]:
                    view = views[index]
                    walked = walk.along(view)
                    self._has_waiting |= walked.is_waiting
                    view.notes[key] = found[index] = reader = _Reader(
                        generation,
                        walked.route,
                        self.pool.place(view.own),
                        walked.is_waiting,
                        walked.num_marks,
                        *walked.read,
                    )
                reader.joined = num_joined
            if num_joined == self.pool.num_joined:
                return [reader for reader in found if reader is not None]

    def _known_reader(self, view: View) -> _Reader | None:
        reader: _Reader | None = view.notes.get(self._key)
        return reader if reader is not None and reader.generation == self._generation else None

    def _laid(self, readers: Sequence[_Reader]) -> _Laid:
        """The reads of these readers in this plan."""
        number = self._number
        tables = [reader.table for reader in readers]
        told = [
            [*map(len, tables)],
            [number - reader.at for reader in readers],
            [reader.growth for reader in readers],
        ]
        num_reads, ages, growth = np.array(told, dtype=np.int64)
        strips: dict[int, Strip] = {}
        for each in {id(reader.strips): reader.strips for reader in readers}.values():
            strips.update(each)
        return _Laid(
            np.concatenate(tables),
            num_reads,
            ages,
            growth,
            strips,
            [reader.place for reader in readers],
        )

    def _laid_alike(self, step: Step, growth: Mapping[Block, int]) -> _Laid | None:
        """The reads of rows whose views are new and alike, as a team's are; None for others. Raises ContextTooLong.

        Such views begin with the same finished blocks. Behind these they have as many blocks each, the same ones but for some
        places at which each has one that may grow. So what is known of the beginning is not walked, and the rest is one matrix:
        of every row and block where it lies. Blocks of which nothing is read there, since a copy is read or since they are one piece
        with those in front of them, have no length.
        """
        views = [row.view for row in step.rows]
        view, num_rows = views[0], len(views)
        if num_rows < 2 or self._known_reader(view) is not None:
            return None
        beginning, size = view.beginning, len(view.rest)
        if [v for v in views if v.beginning is not beginning or len(v.rest) != size or v.has_lanes]:
            return None
        trunk = self._trunks.shared(view)
        if beginning is not None:
            trunk = trunk.upto(min(len(trunk.blocks), len(beginning.blocks)))
        elif not all(v.begins_like(view, len(trunk.blocks)) for v in views):
            return None
        if not trunk.blocks:
            return None
        # Blocks from the last one of the trunk on, by their numbers: [R, blocks].
        finished, first = [*trunk.pieces], len(trunk.blocks) - 1
        rows: list[tuple[Any, ...]]
        if beginning is None:
            rows = [v.blocks[first:] for v in views]
        else:
            head: tuple[Any, ...] = beginning.blocks[first:]
            rows = [head + v.rest for v in views]
        of_rows, blocks = native.numbered(rows)
        numbers = dict(zip(blocks, count(), strict=False))
        places = self.pool.places(blocks)
        strips = {piece.strip.number: piece.strip for piece in finished}
        lies: list[int] = []
        are_live: list[bool] = []
        has_gone, growing = self.pool.has_gone, growth.get
        for block, place in zip(blocks, places, strict=True):
            strip, size = place.strip, len(block.tokens)
            if place.offset + size > strip.num_tokens or has_gone(strip):
                readable_place(self.pool, block)  # raises
            strips[strip.number] = strip
            are_live.append(is_live := not (block.frozen and size))
            copied = copied_by(place, numbers) if is_live and strip.front else (-1, 0)
            grows = growing(block, 0)
            lies += (strip.number, place.offset, size + grows, int(grows > 0), *copied)
        one_row = of_rows[0].tolist()
        # Columns of finished blocks, the last one first; column 0 is read with the trunk.
        still = [at for at, number in enumerate(one_row) if not are_live[number]][::-1]
        fused, is_waiting = [], False
        for at, before in pairwise(still):
            if before != at - 1:
                continue
            one, other = one_row[before], one_row[at]
            if len(places[other].strip.places) == 1:
                is_waiting |= self.pool.can_join(blocks[other], blocks[one])
            end = places[one].offset + blocks[one].num_tokens
            if places[one].strip is places[other].strip and end == places[other].offset:
                fused.append(at)
        # Fused columns that go on from the trunk itself, one behind the other.
        of_trunk = [at for column, at in enumerate(reversed(fused), 1) if at == column]
        if of_trunk:
            size = finished[-1].size + sum([blocks[one_row[at]].num_tokens for at in of_trunk])
            finished[-1] = finished[-1]._replace(size=size)
        begun = [number for piece in finished for number in self._lies(piece, growth)]
        table = native.team(of_rows, lies, are_live, fused, begun)
        if table is None:
            return None
        self._has_waiting |= is_waiting
        lengths = table.lengths.tolist()
        if self.max_positions is not None and max(lengths) > self.max_positions:
            for each, num_tokens in zip(views, lengths, strict=True):
                self._check_length(each, num_tokens)
        return _Laid(
            table.reads,
            table.num_reads,
            np.zeros(num_rows, dtype=np.int64),
            table.growth,
            strips,
            [places[number] for number in of_rows[:, -1].tolist()],
        )

    def _assemble(self, step: Step, laid: _Laid) -> Plan:
        """Lay the lists out as arrays. Room has been reserved: strips have their final pages."""
        feeds, drafts = [row.feed for row in step.rows], [row.draft for row in step.rows]
        has_drafts = any(drafts)
        if has_drafts:
            feeds = [(*feed, *draft) for feed, draft in zip(feeds, drafts, strict=True)]
        token_ids = np.array([*chain.from_iterable(feeds)], dtype=np.int64)
        fed = np.array(list(map(len, feeds)), dtype=np.int64)
        lists = native.lists(laid.table, laid.num_reads, laid.ages, fed, len(token_ids))
        page_size = self.pool.page_size
        pages, indptr, slots = native.pages(
            [laid.strips[name].pages for name in lists.names.tolist()],
            lists.own,
            lists.row_indptr,
            lists.offsets,
            page_size,
        )
        beside = [*chain.from_iterable([row.view.beside_others for row in step.rows])]
        is_linear = not beside or {row.view.own for row in step.rows}.isdisjoint(beside)
        return Plan(
            token_ids=token_ids,
            row_indptr=lists.row_indptr,
            positions=lists.positions,
            offsets=lists.offsets,
            slots=slots,
            reads=Reads(
                row=lists.row,
                base=lists.base,
                low=lists.low,
                high=lists.high,
                strip_indptr=lists.strip_indptr,
                pages=PageTables(pages, indptr),
            ),
            page_size=page_size,
            own_strip=lists.own,
            growth=Growth(laid.growth, lists.base_growth, lists.high_growth) if is_linear else None,
            num_drafted=np.array(list(map(len, drafts)), dtype=np.int64) if has_drafts else None,
        )


def _sizes_to_lend(
    pool: PagePool, strips: Sequence[Strip], sizes: Sequence[int], spare: int
) -> list[tuple[Strip, int]]:
    """The room that strips still need: with some to spare, so that the next plans can follow."""
    return [
        (strip, size + spare)
        for strip, size in zip(strips, sizes, strict=True)
        if pool.num_slots_left(strip) < size
    ]

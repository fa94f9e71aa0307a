"""A Plan: the integers of one forward pass. Which rows read which keys, at which angle, how many.

    T  new tokens, packed over rows      R  rows      n  reads (one row meeting one stretch of a strip)

Everything follows from the lengths of blocks (Hogwild! Inference, section 3.4). Row r meets read n
with its strip's ruler shifted to `base[n]`: key j of the strip stands at position base[n] + j of the
view. So for a query at view position p

    the query is rotated by    p - base[n]                    (the key already is, by j)
    key j is visible iff       low[n] <= j < high[n]  and  j <= p - base[n]
    within a sliding window    (p - base[n]) - j < window     (a distance in the view)

Only on the row's own block does `j <= p - base` cut anything: it is the causal mask. No mask is stored.

Reads are sorted by strip: all rows that read a strip stand together, and attention loads its keys
once for all of them. That grouping is the whole of Hydragen's speed-up, at any depth of sharing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import Ints, Move, PagePool, Place, Strip
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import ContextTooLong


@dataclass(frozen=True, eq=False)
class Reads:
    """Who reads what. All arrays [n], sorted by strip."""

    row: Ints  # the row that reads
    base: (
        Ints  # view position of the strip's index 0 (negative if the block lies far into its strip)
    )
    low: Ints  # first index read
    high: Ints  # one past the last index read
    strip_indptr: Ints  # [strips + 1]: reads strip_indptr[s] .. strip_indptr[s + 1] are of strip s
    pages: tuple[Ints, ...]  # per strip, its page table


@dataclass(frozen=True, eq=False)
class Plan:
    """One forward pass in integers."""

    token_ids: Ints  # [T]
    row_indptr: Ints  # [R + 1]: tokens row_indptr[r] .. row_indptr[r + 1] are the feed of row r
    positions: Ints  # [T]: position in the row's view
    angles: Ints  # [T]: index on the own strip; the new key is rotated by it
    slots: Ints  # [T]: where the new key and value are written
    reads: Reads
    page_size: int
    moves: tuple[Move, ...] = ()  # done before anything is written, in this order

    @property
    def num_tokens(self) -> int:
        """T, the tokens fed by all rows."""
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        """R, the rows of the step."""
        return len(self.row_indptr) - 1

    @property
    def last(self) -> Ints:
        """[R]: packed index of each row's last token, whose logits choose the next one."""
        return self.row_indptr[1:] - 1

    @property
    def num_keys_read(self) -> int:
        """Keys that all reads name, before the causal cut: what would be loaded with nothing shared."""
        return int((self.reads.high - self.reads.low).sum())

    @property
    def num_keys_loaded(self) -> int:
        """Keys loaded when each strip is loaded once for all rows that read it."""
        bounds = zip(self.reads.strip_indptr[:-1], self.reads.strip_indptr[1:], strict=True)
        return sum(int(self.reads.high[a:b].max() - self.reads.low[a:b].min()) for a, b in bounds)


class _Read(NamedTuple):
    strip: Strip
    row: int
    base: int
    low: int
    high: int


class _Stretch(NamedTuple):
    """Neighbouring frozen blocks of a view that lie in one piece: `size` keys of `strip` from `low`."""

    strip: Strip
    low: int
    size: int


class _Live(NamedTuple):
    """A block that may still grow."""

    block: Block
    place: Place


_Route = tuple[_Stretch | _Live, ...]


class Planner:
    """Turns steps into plans, and keeps the frozen history of every view in as few pieces as it can.

    Work per step is proportional to rows times pieces, not to the length of the history: a view is
    prepared once, and its frozen neighbours, moved together by compaction, count as one piece.
    """

    def __init__(self, pool: PagePool, max_positions: int | None = None) -> None:
        self.pool = pool
        self.max_positions = max_positions
        self._routes: weakref.WeakKeyDictionary[View, _Route] = weakref.WeakKeyDictionary()
        self._moves: list[Move] = []

    def plan(self, step: Step) -> Plan:
        """Reserve room for all feeds and say what is read. Raises before anything has changed:
        ContextTooLong beyond the model's positions, OutOfMemory when the pages do not suffice.
        """
        for row in step.rows:
            row.view.own.check_writable()  # it may have been frozen since the row was made
        growth = {row.view.own: len(row.feed) for row in step.rows}
        self._prepare_all(step)
        reads: list[_Read] = []
        own_bases = [
            self._read_row(index, row, growth, reads) for index, row in enumerate(step.rows)
        ]
        self.pool.reserve(growth.items())
        moves, self._moves = tuple(self._moves), []
        return self._assemble(step, own_bases, reads, moves)

    def _read_row(self, index: int, row: Row, growth: dict[Block, int], reads: list[_Read]) -> int:
        """Append the row's reads; return the base of its own block."""
        start = base = 0
        for piece in self._routes[row.view]:
            if isinstance(piece, _Stretch):
                strip, low, size = piece
            else:
                strip, low = piece.place.strip, piece.place.offset
                size = piece.block.num_tokens + growth.get(piece.block, 0)
            base = start - low
            if size:
                reads.append(_Read(strip, index, base, low, low + size))
            start += size
        if self.max_positions is not None and start > self.max_positions:
            raise ContextTooLong(
                f"the view of {row.view.own!r} would be {start} tokens long; "
                f"the model reaches {self.max_positions}",
                hint="Use a shorter problem, a smaller budget, or fewer workers.",
            )
        return base

    def _prepare_all(self, step: Step) -> None:
        """Have a route for every view. Preparing one may move blocks that another one reads, so look
        again until all are up to date; each move joins two strips for good, so this ends.
        """
        stale = [row.view for row in step.rows if self._is_stale(row.view)]
        while stale:
            for view in stale:
                self._routes[view] = self._prepare(view)
            stale = [row.view for row in step.rows if self._is_stale(row.view)]

    def _is_stale(self, view: View) -> bool:
        route = self._routes.get(view)
        return route is None or any(isinstance(p, _Stretch) and p.strip.left for p in route)

    def _prepare(self, view: View) -> _Route:
        """Walk the view once: compact frozen neighbours, fuse those that lie in one piece."""
        pieces: list[_Stretch | _Live] = []
        previous: Block | None = None
        for block in view.blocks:
            if not block.frozen or not block.num_tokens:
                pieces.append(_Live(block, self.pool.place(block)))
                previous = None
                continue
            if previous is not None and (move := self.pool.join(block, previous)) is not None:
                self._moves.append(move)
            place = self.pool.place(block)
            last = pieces[-1] if pieces else None
            if (
                isinstance(last, _Stretch)
                and last.strip is place.strip
                and last.low + last.size == place.offset
            ):
                pieces[-1] = last._replace(size=last.size + block.num_tokens)
            else:
                pieces.append(_Stretch(place.strip, place.offset, block.num_tokens))
            previous = block
        return tuple(pieces)

    def _assemble(
        self, step: Step, own_bases: Sequence[int], reads: list[_Read], moves: tuple[Move, ...]
    ) -> Plan:
        """Lay the lists out as arrays. Room has been reserved: strips have their final pages."""
        sizes = np.array([len(row.feed) for row in step.rows], dtype=np.int64)
        row_indptr = np.concatenate(([0], np.cumsum(sizes)))
        places = [self.pool.place(row.view.own) for row in step.rows]
        first = np.array(
            [
                place.offset + row.view.own.num_tokens
                for place, row in zip(places, step.rows, strict=True)
            ],
            dtype=np.int64,
        )
        within = np.arange(row_indptr[-1]) - np.repeat(row_indptr[:-1], sizes)
        angles = np.repeat(first, sizes) + within
        page_size = self.pool.page_size
        slots = np.concatenate(
            [
                self.pool.slots(place.strip, int(start), int(start + size))
                for place, start, size in zip(places, first, sizes, strict=True)
            ]
        )
        return Plan(
            token_ids=np.array([token for row in step.rows for token in row.feed], dtype=np.int64),
            row_indptr=row_indptr,
            positions=np.repeat(np.array(own_bases, dtype=np.int64), sizes) + angles,
            angles=angles,
            slots=slots,
            reads=sort_reads(reads),
            page_size=page_size,
            moves=moves,
        )


def sort_reads(reads: Sequence[_Read]) -> Reads:
    """Group reads by strip, strips in the order they first appear, reads in the order they came."""
    groups: dict[Strip, list[_Read]] = {}
    for read in reads:
        groups.setdefault(read.strip, []).append(read)
    ordered = [read for group in groups.values() for read in group]
    table = np.array([read[1:] for read in ordered], dtype=np.int64).reshape(-1, 4)
    return Reads(
        row=table[:, 0],
        base=table[:, 1],
        low=table[:, 2],
        high=table[:, 3],
        strip_indptr=np.concatenate(([0], np.cumsum([len(g) for g in groups.values()]))).astype(
            np.int64
        ),
        pages=tuple(np.asarray(strip.pages, dtype=np.int64) for strip in groups),
    )

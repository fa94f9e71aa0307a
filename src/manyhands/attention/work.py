"""A plan cut into items of like size: the work list of the kernels.

An item is one tile of entries that read the same stretch of a strip (`Entries.stretches`), times one split of its keys, times one
key/value head (the launch's second dimension). Each item loads its keys once for all its entries and all the query heads of
the group (Hydragen, section 3.2), so it runs on matrix units also where every row has a single new token.

Stretches with many readers get large tiles, limited by arithmetic; stretches with few get small ones, limited by the reading of
keys; both are in flight at the same time. Splits even the work out: a long stretch is cut so that all processors have some of
it.

Each entry leaves one partial result per split. The partials of a token stand one behind the other, so
merging needs no list of them.

    E  entries      T  new tokens      I  items      r  query heads per key/value head
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyhands.attention.entries import Entries
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.native import compiled as native
from manyhands.native.plain import ITEM_FIELDS, ranges

Bools = NDArray[np.bool_]
_HARDLY_MORE = 1.05  # of the keys that the largest small tiles would load
_HARDLY_LATER = 1.1  # than when processors would be done that share evenly
# Sizes of splits that are tried where programs are few: between these shares, in steps of so small a part, or whole pieces.
_LEAST_SHARE, _MOST_SHARES, _STEPS_OF_A_SHARE, _MOST_PIECES = 0.97, 2.5, 8, 5
ALIGNED = (
    4  # integers: kernels are compiled anew for arrays that begin at no multiple of sixteen bytes
)
# Of small tiles that have a launch of their own where they are few, for long walks (launches.py).
WALKING_ROWS = 32


class Occupancy(IntEnum):
    """Programs of small tiles that a processor holds: few, some, or enough to hide each other's waiting."""

    FEW, SOME, MANY = range(3)


class Cutting(NamedTuple):
    """For which kernels a plan is cut; without one, the plan's own best are found.

    A recording that shall serve many plans has one of its own.
    """

    small_rows: int
    large_rows: int  # 0: all tiles are small ones
    occupancy: Occupancy
    is_specialised: bool = False  # whether large tiles are specialised


@dataclass(frozen=True)
class Tiling:
    """How work is cut for one device and one shape of layer."""

    group: int  # r
    num_kv_heads: int
    num_processors: int
    key_tile: int = 64  # keys per iteration of the inner loop; splits are multiples of it
    large_rows: int = 128  # rows (entries times r) of a large tile
    specialised_rows: int = 0  # of a specialised tile, if there is a kernel for them
    few_rows: int = 0  # of one whose second group of warps has few, if there is a kernel for it
    # Pairs of a row and a key that it sees, per processor, from which on a specialised tile pays
    specialised_work: int = 1 << 18
    specialised_reads: int = 1 << 18  # the same where it spares a second reading of the keys
    plain_reads: int = 1 << 16  # the same for an ordinary tile of as many rows
    latent_rows: int = 0  # of a specialised tile of latents, if there is a kernel for it; all tiles have as many then
    narrow_rows: int = 0  # of a narrower specialised tile, if there is a kernel for it
    narrow_keys: int = 16384  # keys of a stretch, from which on it pays
    narrow_beside: int = 480  # keys that each other stretch counts for beside its own
    least_rows: int = 16  # of a small tile
    between_rows: int = 0  # of one between two powers of two, if there is a kernel for it; that serves both of these, too
    most_small_rows: int = 64  # stretches with more rows get large tiles
    long_keys: int = 0  # and those with more than half as many, if they have so many keys; 0: none
    long_walk: int = 2048  # keys of a small tile on average, from which on many launch as some
    least_split: int = 128
    splits_per_processor: float = 2.0  # of small tiles, over all stretches and heads
    splits_of_many: float = 8.0  # the same where programs are many
    long_of_many: int = 512  # keys, of a split of many that is long
    most_of_many: float = 16.0  # splits a processor, while so many leave none longer
    long_splits_of_many: float = 12.0  # and where some are longer all the same
    keys_to_begin: int = 75  # that a processor would read while one more program begins and ends
    keys_to_merge: int = 14  # while one more partial is merged
    keys_to_wait: int = 150  # and, once, where not all programs begin at once
    share_alone: float = 0.55  # of what a processor can read, that one program reads alone
    wide_rows: int = 128  # of a large tile, from which on a processor holds one program at a time
    wide_to_begin: int = 256  # keys, of such a program
    short_stretch: int = 2048  # keys of the longest, up to which few small tiles launch as some
    few: int = 4  # programs of small tiles per processor, see `Occupancy`
    many: int = 8
    many_beside: int = 7  # where they begin beside large ones
    can_begin_beside: bool = False  # whether they can, see `begin_beside`
    least_left: int = 0  # tokens, from which on a pass leaves outputs of most at once, see `Work.leaving`; 0: none does
    halved_rows: int = 0  # of ordinary tiles alone whose partials have 16 bits (kernels/merge.py), at least; 0: none have

    def small_sizes(self, least: int, most: int, *, are_few: bool) -> list[int]:
        """The rows that small tiles can have between two powers of two, these included. Ascending."""
        powers = [1 << bit for bit in range((least - 1).bit_length(), most.bit_length())]
        has_between = are_few and least < self.between_rows < most
        return sorted([*powers, *([self.between_rows] if has_between else [])])

    def small_size(self, rows: int) -> int:
        """The rows of the smallest small tile, of few, that holds so many."""
        power = power_of_two(rows)
        return next(size for size in self.small_sizes(1, power, are_few=True) if size >= rows)


@dataclass(frozen=True, eq=False)
class Work:
    """The work list of a plan. Items are [I, ITEM_FIELDS]."""

    small_rows: int
    large_rows: int
    occupancy: Occupancy
    small: Ints
    large: Ints
    entries: Entries
    entry_partial: Ints  # [E]: where the partials of an entry begin
    partial_indptr: Ints  # [T + 1]: where those of a token do
    pages: Ints  # the page tables of all strips, one behind the other
    key_page: Ints  # [T]: first page of the strip that the token's key is written to
    is_specialised: bool = False  # whether large tiles are specialised
    in_turns: bool = False  # whether programs that take specialised ones in turns share them evenly
    first_merged: int = 0  # tokens [first_merged, end_merged) have partials, and all others leave outputs at once ...
    end_merged: int = 0  # ... 0: all tokens have partials

    def leaving(self, tiling: Tiling) -> Work:
        """The work with outputs left at once of all tokens in front of those with several partials, and behind.

        Only the last token of a long prompt reads a second strip; merging would write and read all others once more. The list stays
        as it is where large tiles are not those of prompts, or less than half of the tokens would leave outputs. Entries of tokens
        that do have a partial of -1.
        """
        num_tokens = len(self.partial_indptr) - 1
        kind = tiling.specialised_rows or tiling.large_rows, tiling.specialised_rows > 0
        if not 0 < tiling.least_left <= num_tokens or self.most_partials == 1:
            return self
        if not len(self.large) or (self.large_rows, self.is_specialised) != kind:
            return self
        is_of_large = np.zeros(len(self.entries.token), dtype=np.bool_)
        is_of_large[ranges(self.large[:, 0], self.large[:, 1])] = True
        # As kernels of small tiles leave partials alone, their tokens count as having several.
        has_several = np.diff(self.partial_indptr) != 1
        has_several[self.entries.token[~is_of_large]] = True
        merged = has_several.nonzero()[0]
        first = int(merged[0]) // ALIGNED * ALIGNED
        end = int(merged[-1]) + 1
        if 2 * (end - first) > num_tokens:
            return self
        before, behind = int(self.partial_indptr[first]), int(self.partial_indptr[end])
        indptr = self.partial_indptr.clip(before, behind) - before
        token = self.entries.token
        is_merged = (token >= first) & (token < end)
        return replace(
            self,
            entry_partial=np.where(is_merged, self.entry_partial - before, -1),
            partial_indptr=indptr,
            first_merged=first,
            end_merged=end,
        )

    @property
    def num_partials(self) -> int:
        """Partials of all tokens."""
        return int(self.partial_indptr[-1])

    @property
    def most_partials(self) -> int:
        """Partials of the token that has most."""
        return int(np.diff(self.partial_indptr).max())


class Stretches(NamedTuple):
    """All that a plan is cut from, for whatever kernels: its entries, and where those of each stretch stand."""

    entries: Entries
    indptr: Ints  # [stretches + 1], in entries
    strip: Ints  # [stretches]

    @classmethod
    def of(cls, plan: Plan, tiling: Tiling) -> Stretches:
        """Entries of this plan, and the stretches that they make."""
        entries = Entries.of(plan)
        return cls(entries, *entries.stretches(tiling.key_tile))

    def are_small(self, tiling: Tiling) -> bool:
        """Whether a plan that is cut for given kernels, large ones among them, has small tiles alone."""
        return bool(_are_small(*self.sizes(tiling), tiling).all())

    def small_rows(self, tiling: Tiling) -> int:
        """Rows of the small tiles that the plan wants, if all tiles are small."""
        return _small_rows(*self.sizes(tiling), tiling)

    def large_tiles(self, tiling: Tiling) -> tuple[int, bool]:
        """Rows of the large tiles that the plan wants, 0 if it wants none, and whether they are specialised.

        What `cut` finds where no kernels are given, for a tenth of its time.
        """
        rows, keys = self.sizes(tiling)
        is_small, is_narrow = _apart(rows, keys, tiling, is_free=True, may_walk=True)
        if is_small.all():
            return 0, False
        if is_narrow:
            return tiling.narrow_rows, True
        pairs = _pairs(self.entries, self.indptr[:-1])
        return _large_rows(rows[~is_small], pairs[~is_small], tiling)

    def sizes(self, tiling: Tiling) -> tuple[Ints, Ints]:
        """Rows and keys of each stretch."""
        entries = self.entries
        held, keys = native.sizes(entries.low, entries.high, entries.offset, self.indptr)
        return held * tiling.group, keys


def cut(
    plan: Plan, tiling: Tiling, wanted: Cutting | None = None, stretches: Stretches | None = None
) -> Work:
    """The work list of a plan, for the kernels that are best for it or for those that are `wanted`.

    `stretches`: of this plan, where they are known.
    """
    entries, indptr, strip_of = stretches = stretches or Stretches.of(plan, tiling)
    first_page = plan.reads.pages.indptr
    if wanted is not None and not wanted.large_rows:  # nothing is left to be decided
        small_ones, large_ones = np.arange(len(strip_of)), _NONE
    else:
        rows, keys = stretches.sizes(tiling)
        may_walk = wanted is None or wanted.is_specialised
        is_small, is_narrow = _apart(rows, keys, tiling, is_free=wanted is None, may_walk=may_walk)
        small_ones, large_ones = is_small.nonzero()[0], (~is_small).nonzero()[0]
    if wanted is None:
        small_rows = _small_rows(rows[is_small], keys[is_small], tiling)
        pairs = _pairs(entries, indptr[:-1])
        large_rows, is_specialised = _large_rows(rows[~is_small], pairs[~is_small], tiling)
        if is_narrow:
            large_rows, is_specialised = tiling.narrow_rows, True
    else:
        small_rows, large_rows = wanted.small_rows, wanted.large_rows or tiling.group
        is_specialised = wanted.is_specialised
    small = _Tiles(entries, indptr, small_ones, small_rows // tiling.group, tiling)
    large = _Tiles(entries, indptr, large_ones, large_rows // tiling.group, tiling)
    of_entries = np.empty(len(entries.token), dtype=np.int64)  # splits
    lists = []
    in_turns = False
    if wanted is None and begin_beside(small_rows, large_rows, len(large.first), tiling):
        tiling = replace(tiling, many=tiling.many_beside)
    found = occupancy_of(len(small.first), tiling) if wanted is None else wanted.occupancy
    for tiles in (small, large):
        if not len(tiles.first):
            lists.append(np.empty((0, ITEM_FIELDS), dtype=np.int64))
            continue
        if tiles is large:
            size = _large_split(tiles, tiling, _to_begin(large_rows, is_specialised, tiling))
        else:
            size = _small_split(tiles, found, tiling)
        splits, num_items = native.num_splits(tiles.num_keys, size, tiling.key_tile)
        lists.append(
            native.items(tiles.all, splits, num_items, size, strip_of, first_page, of_entries)
        )
        if tiles is large and is_specialised:
            in_turns = _in_turns(tiles, splits, size, tiling)
    entry_partial, partial_indptr = native.partials(entries.token, of_entries, plan.num_tokens)
    own = np.zeros(plan.num_rows, dtype=np.int64) if plan.own_strip is None else plan.own_strip
    return Work(
        small_rows=small_rows,
        large_rows=large_rows,
        occupancy=_reading(lists[0], small, small_rows, tiling)
        if wanted is None
        else wanted.occupancy,
        small=lists[0],
        large=lists[1],
        entries=entries,
        entry_partial=entry_partial,
        partial_indptr=partial_indptr,
        pages=plan.reads.pages.joined,
        key_page=first_page[own].repeat(plan.row_indptr[1:] - plan.row_indptr[:-1]),
        is_specialised=is_specialised,
        in_turns=in_turns,
    )


_NONE: Ints = np.empty(0, dtype=np.int64)
_NO_TILES: Ints = np.empty((5, 0), dtype=np.int64)


class _Tiles:
    """Runs of entries of one stretch of a strip, and the keys they see between them."""

    def __init__(
        self, entries: Entries, indptr: Ints, stretches: Ints, most: int, tiling: Tiling
    ) -> None:
        """Tiles of at most `most` entries over these stretches of strips, whose entries begin at `indptr`."""
        seen = entries.low, entries.high, entries.offset
        # [5, I]: stretch, first entry, number of entries, first key, at the border of a key tile, and keys
        self.all = _NO_TILES
        if len(stretches):
            self.all = native.tiles(*seen, indptr, stretches, most, tiling.key_tile)
        self.first, self.num_keys = self.all[1], self.all[4]


def _pairs(entries: Entries, at: Ints) -> Ints:
    """Pairs of an entry and a key that it sees, of the runs of entries that begin at `at`."""
    pairs: Ints = np.add.reduceat(np.minimum(entries.high, entries.offset + 1) - entries.low, at)
    return pairs


def _apart(
    rows: Ints, keys: Ints, tiling: Tiling, *, is_free: bool, may_walk: bool
) -> tuple[Bools, bool]:
    """Which stretches get small tiles; and whether all get narrow specialised ones, if they may (`may_walk`)."""
    is_narrow = may_walk and _is_walk(rows, keys, tiling)
    is_small = _are_small(rows, keys, tiling, is_free=is_free)
    if is_narrow:
        is_small[:] = False
    return is_small, is_narrow


def _are_small(rows: Ints, keys: Ints, tiling: Tiling, *, is_free: bool = False) -> Bools:
    """Which stretches, of so many rows and keys, get small tiles. `is_free`: their size is the plan's own."""
    if tiling.latent_rows:  # all tiles are alike
        return np.ones(len(rows), dtype=np.bool_)
    most = tiling.most_small_rows
    if min(rows.tolist(), default=0) > most and max(keys.tolist()) > tiling.key_tile:
        return np.zeros(len(rows), dtype=np.bool_)  # as of a team, whose rows all read the same
    # Small tiles are all alike, and where most stretches have few readers, and are many, their tiles should not grow for
    # what these share: so deep trees take 0.57 to 0.71 of the time.
    least = 1 if tiling.group == 1 else tiling.least_rows
    is_free = is_free and occupancy_of(len(rows), tiling) is Occupancy.MANY
    if (tiling.group == 1 or is_free) and 2 * np.count_nonzero(rows <= least) > len(rows):
        most = tiling.least_rows
    are_small: Bools = rows <= most
    if tiling.long_keys:
        # Small tiles for some of these beside large ones for others would be a second launch.
        is_half = 2 * rows <= tiling.most_small_rows
        if (keys[~is_half] >= tiling.long_keys).any():
            are_small &= is_half
    # A stretch as short as one iteration of the inner loop may as well be loaded several times.
    if (are_small | (keys <= tiling.key_tile)).all():
        are_small[:] = True
    return are_small


def _is_walk(rows: Ints, keys: Ints, tiling: Tiling) -> bool:
    """Whether all stretches get narrow specialised tiles: the widest fills more than half of one, and most keys are of long ones."""
    is_long = keys >= tiling.narrow_keys
    others = keys[~is_long].sum() + tiling.narrow_beside * np.count_nonzero(~is_long)
    fits = tiling.narrow_rows // 2 < rows.max(initial=0) <= tiling.narrow_rows
    return bool(fits and keys[is_long].sum() > others)


def _small_rows(rows: Ints, keys: Ints, tiling: Tiling) -> int:
    """Rows of small tiles: as few as load hardly more keys than the most would.

    Few rows make small programs, of which more run at once. A stretch with more is loaded several times.
    Lone rows, where they are many and their stretches short, have a kernel of their own (kernels/lone.py).
    """
    is_lone = tiling.group == 1 and rows.max(initial=0) == 1
    are_many = occupancy_of(len(rows), tiling) is Occupancy.MANY
    if is_lone and are_many and keys.mean() <= tiling.key_tile:
        return 1
    least = power_of_two(max(tiling.least_rows, tiling.group))
    most = max(least, tiling.most_small_rows)

    is_few = occupancy_of(len(rows), tiling) is Occupancy.FEW
    sizes = tiling.small_sizes(least, most, are_few=is_few)
    enough = _HARDLY_MORE * loaded(rows, keys, most, tiling)
    return next((size for size in sizes if loaded(rows, keys, size, tiling) <= enough), most)


def loaded(rows: Ints, keys: Ints, size: int, tiling: Tiling) -> int:
    """Keys that tiles of `size` rows load for stretches of so many `rows` and `keys` [n]."""
    return int((-(-rows // (size // tiling.group * tiling.group)) * keys).sum())


def _large_rows(rows: Ints, pairs: Ints, tiling: Tiling) -> tuple[int, bool]:
    """Rows of large tiles, and whether these are specialised.

    They are if most of what is to be done is for stretches that want such tiles, and is much. A stretch that fills one wants it;
    so does one that others would have to read twice, and for less. Where that is little, an ordinary tile of as many rows
    spares the second reading; or, if no stretch has more than `few_rows`, a specialised one of these. What is to be done are
    `pairs` of an entry and a key that it sees: of a prompt, half as many as it has rows times keys.
    """
    others = power_of_two(max(tiling.large_rows, tiling.group))
    wider, narrow = tiling.specialised_rows, tiling.narrow_rows
    if not wider:
        return others, False
    work = pairs * tiling.group * tiling.num_kv_heads
    fills, is_between = rows >= wider, (rows > (narrow or others)) & (rows < wider)
    are_few = bool(rows.max(initial=0) <= tiling.few_rows)
    for wants, least, size, is_specialised in (
        (fills, tiling.specialised_work, wider, True),
        # Sooner than others, whose second group of warps keeps the first one waiting.
        (is_between & are_few, tiling.plain_reads, tiling.few_rows, True),
        (is_between, tiling.specialised_reads, wider, True),
        (is_between, tiling.plain_reads, wider, False),
    ):
        is_much = work.sum() >= least * tiling.num_processors
        if is_much and 2 * work[wants].sum() > work.sum():
            return size, is_specialised
    return others, False


def tiles_of_prompt(tokens: int, tiling: Tiling) -> tuple[int, bool]:
    """Rows of the large tiles that a prompt of so many tokens wants where it comes alone, and whether these are specialised."""
    rows, pairs = np.array([[tokens * tiling.group], [tokens * (tokens + 1) // 2]])
    return _large_rows(rows, pairs, tiling)


def begin_beside(small_rows: int, large_rows: int, num_large: int, tiling: Tiling) -> bool:
    """Whether small tiles of so many rows begin beside so many large ones, in one stream (kernels/overlap.py).

    Measured with the narrowest ones beside ordinary ones. Large ones come first: where they are few, small ones take longest, and
    would wait.
    """
    are_usual = small_rows == tiling.least_rows and large_rows == tiling.large_rows
    fill = 2 * num_large * tiling.num_kv_heads >= tiling.num_processors
    return tiling.can_begin_beside and are_usual and fill


def occupancy_of(num_items: int, tiling: Tiling) -> Occupancy:
    """The occupancy of so many small tiles."""
    programs = num_items * tiling.num_kv_heads
    if programs > tiling.many * tiling.num_processors:
        return Occupancy.MANY
    return Occupancy.SOME if programs > tiling.few * tiling.num_processors else Occupancy.FEW


def _reading(items: Ints, tiles: _Tiles, rows: int, tiling: Tiling) -> Occupancy:
    """The occupancy of small tiles, as they are launched.

    Many that read long stretches are launched as some are, with more on their way each. So are few of 32 rows where no stretch is
    long: their own launch has fewer instructions an iteration, and more to begin and to end with.
    """
    found = occupancy_of(len(items), tiling)
    if found is Occupancy.MANY:
        is_long = tiles.num_keys.sum() >= tiling.long_walk * len(items)
        return Occupancy.SOME if is_long else found
    is_short = rows == WALKING_ROWS and tiles.num_keys.max(initial=0) <= tiling.short_stretch
    return Occupancy.SOME if is_short else found


def _small_split(tiles: _Tiles, occupancy: Occupancy, tiling: Tiling) -> int:
    """Keys per split, so that all processors are busy loading until the last one is done.

    Few programs: of some sizes the one whose last processor is done first, if its programs share what it reads and one alone
    cannot read as much, and partials, of which each item leaves one, take their time. Fitted to 295 situations of 2 to 40
    key heads on an H200, the op alone and whole passes (benchmarks/results/splits_of_few.json).
    """
    num_keys = tiles.num_keys.tolist()
    total = sum(num_keys) * tiling.num_kv_heads
    if occupancy is Occupancy.MANY and not tiling.latent_rows:
        return max(tiling.least_split, _round_up(_keys_of_many(total, tiling), tiling.key_tile))
    at_once = tiling.num_processors * tiling.splits_per_processor
    sizes = _sizes_of_few(total / at_once, _round_up(max(num_keys), tiling.key_tile), tiling)
    if len(sizes) == 1:
        return sizes[0]
    last, num_items = native.last_done(
        tiles.num_keys,
        sizes,
        tiling.num_kv_heads,
        tiling.num_processors,
        tiling.key_tile,
        tiling.keys_to_begin,
    ).tolist()

    def cost(at: int) -> tuple[float, int]:
        alone = sizes[at] / tiling.share_alone + tiling.keys_to_begin
        wait = tiling.keys_to_wait * (num_items[at] * tiling.num_kv_heads > at_once)
        # Of equals the longest: fewer partials.
        return max(last[at], alone) + tiling.keys_to_merge * num_items[at] + wait, -sizes[at]

    return sizes[min(range(len(sizes)), key=cost)]


def _sizes_of_few(share: float, longest: int, tiling: Tiling) -> list[int]:
    """The sizes of splits that few programs are tried with, ascending, where all have a `share` of the keys if they are alike.

    From hardly less than a share to a few, and those that cut the `longest` tile, of whole key tiles, into a few pieces alike.
    """
    tile, least = tiling.key_tile, tiling.least_split
    step = max(tile, _round_up(share / _STEPS_OF_A_SHARE, tile))
    lowest, highest = _LEAST_SHARE * share, _MOST_SHARES * share
    first = _round_up(lowest, step)
    sizes = [*range(first, first + step * (int((highest - lowest) / step) + 1), step)]
    pieces = (-(-longest // (tile * count)) * tile for count in range(1, _MOST_PIECES + 1))
    sizes += [size for size in pieces if lowest <= size <= highest + step]
    most = max(least, longest)
    return sorted({least if size < least else min(size, most) for size in sizes})


def _keys_of_many(total: int, tiling: Tiling) -> float:
    """Keys of a split where programs are many, of `total` over all heads.

    A processor's programs share what it reads, so a long one walks from beginning to end, and when all others are done the few
    that are left keep memory half busy. Long splits are finer; short ones are not, since each program takes time to begin and leaves
    a partial.
    """
    share = total / tiling.num_processors
    if share <= tiling.most_of_many * tiling.long_of_many:
        return min(share / tiling.splits_of_many, tiling.long_of_many)
    return share / tiling.long_splits_of_many


def _to_begin(rows: int, is_specialised: bool, tiling: Tiling) -> int:
    """Keys that a program of a large tile would read in the time it takes to begin and to end.

    None where another one on the same processor goes on meanwhile. Nor of specialised ones: counted, it made teams of sixteen
    faster and those of thirty-two slower.
    """
    is_wide = rows >= tiling.wide_rows and not is_specialised
    return tiling.wide_to_begin if is_wide else 0


def _large_split(tiles: _Tiles, tiling: Tiling, to_begin: int) -> int:
    """Keys per split: all of them where there are tiles enough, since partials have their price.

    A tile with much more than its share is cut, whatever their number: of a team of sixteen, every
    desk is a tile of its own, and the common history would keep all others waiting. `to_begin`, of each tile, counts as keys;
    but no split has more than twice a processor's share of those that are read.
    """
    num_keys = tiles.num_keys.tolist()
    longest, keys = max(1, *num_keys), max(1, sum(num_keys) * tiling.num_kv_heads)
    begun = to_begin * len(num_keys) * tiling.num_kv_heads
    splits = longest * tiling.num_processors // (keys + begun)
    splits = max(splits, -(-longest * tiling.num_processors // (2 * keys)))
    return max(tiling.least_split, _round_up(longest / max(1, splits), tiling.key_tile))


def _in_turns(tiles: _Tiles, num_splits: Ints, size: int, tiling: Tiling) -> bool:
    """Whether programs that take the items in turns, there and back again, are done at about the same time.

    So are those of a prompt, each tile of which sees more keys than the one before. A few long items beside many short ones
    are better handed out one by one.
    """
    split = ranges(np.zeros_like(num_splits), num_splits)
    keys = np.sort(np.minimum(tiles.num_keys.repeat(num_splits) - split * size, size))[::-1]
    pieces = keys.repeat(tiling.num_kv_heads)
    turns = np.zeros((-(-len(pieces) // tiling.num_processors), tiling.num_processors))
    turns.flat[: len(pieces)] = pieces
    turns[1::2] = turns[1::2, ::-1].copy()
    evenly = max(turns.sum() / tiling.num_processors, turns.max())
    return bool(turns.sum(axis=0).max() <= _HARDLY_LATER * evenly)


def power_of_two(size: int) -> int:
    """The least one that is not below `size`."""
    return 1 << (size - 1).bit_length()


def cdiv(count: int, size: int) -> int:
    """How many of this size hold so many. Triton has a function of this name for kernels, which takes a host two microseconds."""
    return -(-count // size)


def _round_up(size: float, multiple: int) -> int:
    return -(-math.ceil(size) // multiple) * multiple

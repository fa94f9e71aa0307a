"""The loops in numpy: what they mean, what `native.c` is tested against, and what serves without a compiler.

All arrays are int64.

    R  rows      T  new tokens      n  reads      S  strips      E  entries      I  tiles
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, count, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
ENDLESS = 1 << 30  # the end of a tile's last split: as far as the entries themselves reach
ITEM_FIELDS = 6  # first entry, number of entries, first key, end of keys, first page, split
_ALL = slice(None)


class Paired(NamedTuple):
    """Entries of a plan; see `attention/entries.py`."""

    token: Ints  # [E]
    read: Ints  # [E]
    offset: Ints  # [E]
    low: Ints  # [E]
    high: Ints  # [E]
    strip_indptr: Ints  # [S + 1]


class Lists(NamedTuple):
    """The lists of a plan (`cache/plan.py`), and of each strip its number."""

    row_indptr: Ints  # [R + 1]
    offsets: Ints  # [T]
    positions: Ints  # [T]
    row: Ints  # [n], and so are those up to `high_growth`: sorted by strip, and by `low`
    base: Ints
    low: Ints
    high: Ints
    base_growth: Ints
    high_growth: Ints
    strip_indptr: Ints  # [S + 1]
    names: Ints  # [S]: numbers of strips, in the order in which they are read first
    own: Ints  # [R]: which strip each row writes to


class Table(NamedTuple):
    """Reads of all rows, row by row."""

    reads: Ints  # [n, 6]: strip, base, low, high, growth of base, growth of high
    num_reads: Ints  # [R]
    growth: Ints  # [R]: of views, a pass
    lengths: Ints  # [R]: of views, with what is fed


def entries(
    row_indptr: Ints,
    positions: Ints,
    row: Ints,
    base: Ints,
    low: Ints,
    high: Ints,
    strip_indptr: Ints,
) -> Paired:
    """The pairs of a token of a row and a read of it, in the order of the reads, the tokens of a row in theirs.

    `row_indptr` [R + 1], `positions` [T]; of the reads [n] row, base, first key and end of keys; `strip_indptr` [S + 1].
    """
    fed = (row_indptr[1:] - row_indptr[:-1])[row]
    ends = fed.cumsum()
    within = np.arange(ends[-1]) - (ends - fed).repeat(fed)
    read = np.arange(len(fed)).repeat(fed)
    token = row_indptr[row].repeat(fed) + within
    return Paired(
        token,
        read,
        positions[token] - base[read],
        low[read],
        high[read],
        np.concatenate(([0], ends))[strip_indptr],
    )


def stretches(low: Ints, high: Ints, strip_indptr: Ints, least: int) -> tuple[Ints, Ints]:
    """Where the stretches of all strips begin [stretches + 1], in entries, and the strip of each [stretches].

    `low`, `high` [E] of entries, `strip_indptr` [S + 1] in entries, no strip without one. A strip of at most `least` keys is
    one stretch.
    """
    first, stop = strip_indptr[:-1], strip_indptr[1:]
    strip = np.arange(len(first)).repeat(stop - first)
    # The keys of a strip lie above all those of the strips before it.
    shift = strip * (int(high.max()) + 1)
    seen = np.maximum.accumulate(high + shift)
    to_see = np.minimum.accumulate((low + shift)[::-1])[::-1]
    begins = to_see[1:] >= seen[:-1]
    is_long = np.maximum.reduceat(high, first) - np.minimum.reduceat(low, first) > least
    begins &= is_long[strip[1:]]
    begins[stop[:-1] - 1] = True
    indptr = np.concatenate(([0], begins.nonzero()[0] + 1, [len(strip)]))
    return indptr, strip[indptr[:-1]]


def sizes(low: Ints, high: Ints, offset: Ints, indptr: Ints) -> tuple[Ints, Ints]:
    """Entries [stretches] of each stretch, and keys [stretches] up to the last one that they see between them."""
    first = indptr[:-1]
    return indptr[1:] - first, _keys(low, high, offset, first)[1]


def tiles(
    low: Ints, high: Ints, offset: Ints, indptr: Ints, picked: Ints, most: int, key_tile: int
) -> Ints:
    """[5, I]: stretch, first entry, entries, first key and keys of the tiles of at most `most` entries over these stretches.

    `low`, `high`, `offset` [E], none negative; `indptr` [stretches + 1] in entries; `picked` [n] are stretches. A first key is
    the first of `key_tile` keys.
    """
    begin, end = indptr[picked], indptr[picked + 1]
    if not len(picked):
        return np.empty((5, 0), dtype=np.int64)
    per_stretch = -(-(end - begin) // most)
    within = ranges(np.zeros_like(per_stretch), per_stretch)
    first = begin.repeat(per_stretch) + within * most
    held = np.minimum(end.repeat(per_stretch) - first, most)
    # Runs of entries need not touch each other (stretches of the other kind lie between them).
    chosen = ranges(first, held)
    start, num_keys = _keys(low, high, offset, held.cumsum() - held, chosen)
    is_cut = start % key_tile
    return np.array((picked.repeat(per_stretch), first, held, start - is_cut, num_keys + is_cut))


def _keys(
    low: Ints, high: Ints, offset: Ints, at: Ints, picked: Ints | slice = _ALL
) -> tuple[Ints, Ints]:
    """First key, and number of keys up to the last, that runs of entries see between them.

    The runs stand one behind the other in `picked`, and begin there at `at`.
    """
    reach = np.minimum(high, offset + 1)[picked]
    start = np.minimum.reduceat(low[picked], at)
    return start, np.maximum.reduceat(reach, at) - start


def num_splits(num_keys: Ints, size: int | Ints, key_tile: int) -> Ints:
    """Splits of tiles [I] of so many keys, of `size` keys each or, [m, 1], of each of these sizes.

    A rest that fits one iteration of the inner loop, `key_tile` keys, stays with the last.
    """
    splits: Ints = np.maximum(1, -(-(num_keys - key_tile) // size))
    return splits


def last_done(
    num_keys: Ints,
    sizes: Sequence[int],
    num_heads: int,
    num_processors: int,
    key_tile: int,
    to_begin: int,
) -> Ints:
    """For each size of a split of tiles [I] of so many keys: when the last processor is done, and items; [2, sizes].

    Each item is there once for every head. The longest first, each goes to the processor that is done first, in the time that one
    takes to read a key; to begin and to end takes as long as `to_begin` keys.
    """
    each = np.array(sizes)[:, np.newaxis]
    splits = num_splits(num_keys, each, key_tile)  # [sizes, tiles]
    rests = np.sort(num_keys - (splits - 1) * each)[:, ::-1]
    num_items = splits.sum(axis=1)
    last = []
    for size, whole, rest in zip(sizes, (num_items - len(num_keys)).tolist(), rests, strict=True):
        runs = [(length, len([*alike])) for length, alike in groupby(rest.tolist())]
        insort(runs, (size, whole), key=lambda run: -run[0])
        groups = [(0, num_processors)]  # of processors that are done at the same time
        for length, held in runs:
            programs = held * num_heads
            while programs:
                done, free = heappop(groups)
                taken = min(programs, free)
                if free > taken:
                    heappush(groups, (done, free - taken))
                heappush(groups, (done + length + to_begin, taken))
                programs -= taken
        last.append(max(groups)[0])
    return np.array((last, num_items))


def items(
    tiles: Ints, splits: Ints, size: int, strip_of: Ints, first_page: Ints, num_splits: Ints
) -> Ints:
    """[items, ITEM_FIELDS]: every split of every tile [5, I], the longest first; `num_splits` [E] is told of their entries.

    `splits` [I], of `size` keys each; `strip_of` [stretches], `first_page` [S]. The last split of a tile has no end of its own.
    """
    stretch, first, held, start, num_keys = tiles
    num_splits[ranges(first, held)] = splits.repeat(held)
    split = ranges(np.zeros_like(splits), splits)
    tile = np.arange(len(splits)).repeat(splits)
    begin = start[tile] + split * size
    is_last = split == splits[tile] - 1
    # The longest first: programs start in this order, and the short ones fill what is left.
    order = (-np.minimum(num_keys[tile] - split * size, size)).argsort(kind="stable")
    found: Ints = np.empty((ITEM_FIELDS, len(tile)), dtype=np.int64)
    found[0], found[1] = first[tile], held[tile]
    found[2], found[3] = begin, np.where(is_last, ENDLESS, begin + size)
    found[4], found[5] = first_page[strip_of[stretch[tile]]], split
    ordered: Ints = found.T[order]
    return ordered


def partials(token: Ints, num_splits: Ints, num_tokens: int) -> tuple[Ints, Ints]:
    """Partials numbered token by token: where each entry's begin [E], and each token's [T + 1].

    `token` [E], `num_splits` [E].
    """
    order = token.argsort(kind="stable")
    ends = num_splits[order].cumsum()
    entry_partial = np.empty_like(ends)
    entry_partial[order] = ends - num_splits[order]
    per_token = np.bincount(token, weights=num_splits, minlength=num_tokens).astype(np.int64)
    return entry_partial, np.concatenate(([0], per_token.cumsum()))


def lists(table: Ints, num_reads: Ints, ages: Ints, fed: Ints) -> Lists:
    """The lists of a plan.

    `table` [n, 6] as in `Table`, of each row `num_reads` [R], what it reads itself last; `ages` [R]: how often each row has
    grown since; `fed` [R]: tokens that are fed.
    """
    number, base, low, high, base_growth, high_growth = table.T
    age = ages.repeat(num_reads)
    base, high = base + age * base_growth, high + age * high_growth
    own = num_reads.cumsum() - 1
    row_indptr = np.concatenate(([0], fed.cumsum()))
    offsets = (high[own] - row_indptr[1:]).repeat(fed) + np.arange(row_indptr[-1])
    # Strips in the order in which they appear first; of each first the reads of what lies in front, in the order of the rows.
    names, at, strip = np.unique(number, return_index=True, return_inverse=True)
    by_appearance = at.argsort()
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(rank))
    strip = rank[strip]
    order = np.lexsort((low, strip))
    return Lists(
        row_indptr,
        offsets,
        base[own].repeat(fed) + offsets,
        np.arange(len(num_reads)).repeat(num_reads)[order],
        base[order],
        low[order],
        high[order],
        base_growth[order],
        high_growth[order],
        np.concatenate(([0], np.bincount(strip).cumsum())),
        names[by_appearance],
        strip[own],
    )


def numbered(rows: Sequence[tuple[Any, ...]]) -> tuple[Ints, list[Any]]:
    """The objects of these tuples, by numbers [R, length]; and each object, by its number.

    The tuples are of one length. Objects are the same if they are one.
    """
    rest = [each for row in rows for each in row]
    numbers = dict(zip(dict.fromkeys(map(id, rest)), count(), strict=False))
    found = np.fromiter(map(numbers.__getitem__, map(id, rest)), np.int64, len(rest))
    objects = dict(zip(map(id, rest), rest, strict=True))
    return found.reshape(len(rows), -1), list(map(objects.__getitem__, numbers))


def team(
    of_rows: Ints, lies: list[int], is_live: list[bool], fused: list[int], begun: list[int]
) -> Table | None:
    """The reads of rows that begin alike, as `Planner` lays them out; None if what is finished differs, or if the first
    block's copy is read.

    All but `of_rows` are lists of numbers, row by row. `begun` [F, 4]: strip, first key, keys, growth of what all begin
    with. `of_rows` [R, B]: numbers of the blocks behind it; the first of them is the last one of the beginning, and read
    with it. `lies` [P, 6] of blocks: the same four, the number of the block of which a copy stands in front (-1: none) and that copy's keys, which are read in its place. `is_live` [P]: may grow.
    `fused` [k], falling: columns that are read with the one in front.
    """
    is_common = (of_rows == of_rows[0]).all(axis=0)
    if not (np.array(is_live, dtype=np.bool_)[of_rows] | is_common).all():
        return None
    lying_of = np.array(lies, dtype=np.int64).reshape(-1, 6)
    number, low, length, grows, before, fronts = lying_of.T.take(of_rows, axis=1)
    front = fronts[:, 1:] * ((before[:, 1:] == of_rows[:, :-1]) & (before[:, 1:] >= 0))
    if front[:, :1].any():
        return None
    low[:, 1:] -= front
    length[:, 1:] += front
    length[:, :-1] -= front
    for at in fused:
        length[:, at - 1] += length[:, at]
        length[:, at] = 0
    length[:, 0] = 0
    finished = np.array(begun, dtype=np.int64).reshape(-1, 4)
    first = len(finished)
    lying = np.empty((4, len(of_rows), first + of_rows.shape[1]), dtype=np.int64)
    lying[:, :, :first] = finished.T[:, np.newaxis]
    lying[:, :, first:] = number, low, length, grows
    number, low, length, grows = lying
    ends = lying[2:].cumsum(axis=2)
    starts, growths = ends - lying[2:]
    columns = np.array((number, starts - low, low, low + length, growths, grows))
    is_read = length > 0
    reads = np.ascontiguousarray(columns[:, is_read].T)
    return Table(reads, is_read.sum(axis=1), ends[1, :, -1], ends[0, :, -1])


def pages(
    tables: list[list[int]], own: Ints, row_indptr: Ints, offsets: Ints, page_size: int
) -> tuple[Ints, Ints, Ints]:
    """The page tables of strips one behind another, where each begins [strips + 1], and the slots [T] of new tokens.

    `own` [R]: the strip that each row writes to, by its number among the tables. `offsets` [T]: places of the rows' tokens on it.
    """
    joined = np.array([page for table in tables for page in table], dtype=np.int64)
    indptr = np.array([0, *accumulate(map(len, tables))], dtype=np.int64)
    at = indptr[own].repeat(np.diff(row_indptr)) + offsets // page_size
    return joined, indptr, joined[at] * page_size + offsets % page_size


def pack(
    buffer: NDArray[np.int32], places: Ints, padding: Sequence[int], arrays: Sequence[Ints]
) -> None:
    """Write an array into each section of a buffer, and behind it the section's padding.

    `places` [2, sections]: where they begin in the buffer, and how long they are.
    """
    for (start, size), value, array in zip(places.T.tolist(), padding, arrays, strict=True):
        section = buffer[start : start + size]
        section[: array.size] = array.ravel()
        section[array.size :] = value


def ranges(first: Ints, size: Ints) -> Ints:
    """first[0], first[0] + 1, ... (size[0] of them), then the same from first[1], and so on."""
    ends: Ints = size.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    shift: Ints = first - (ends - size)
    found: Ints = shift.repeat(size)
    found += np.arange(total)
    return found

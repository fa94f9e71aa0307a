"""The loops as they are called: those of `native.c` where it was compiled, else those of `plain.py`, which say what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyhands.native import build, plain
from manyhands.native.plain import ITEM_FIELDS, Ints, Lists, Paired, Table

_INTEGER = np.dtype(np.int64)  # looked up once: rooms are made by the dozen


def _room(*shape: int) -> Ints:
    return np.empty(shape, _INTEGER)


def entries(
    row_indptr: Ints,
    positions: Ints,
    row: Ints,
    base: Ints,
    low: Ints,
    high: Ints,
    strip_indptr: Ints,
) -> Paired:
    """See `plain.entries`."""
    given = row_indptr, positions, row, base, low, high, strip_indptr
    if (c := build.module()) is None:
        return plain.entries(*given)
    room, indptr = _room(5, c.num_entries(row_indptr, row)), _room(len(strip_indptr))
    c.entries(*given, room, indptr)
    return Paired._make((*room, indptr))


def stretches(low: Ints, high: Ints, strip_indptr: Ints, least: int) -> tuple[Ints, Ints]:
    """See `plain.stretches`."""
    if (c := build.module()) is None:
        return plain.stretches(low, high, strip_indptr, least)
    room = _room(2, len(low) + 1)
    count = c.stretches(low, high, strip_indptr, least, room)
    return room[0, : count + 1], room[1, :count]


def sizes(low: Ints, high: Ints, offset: Ints, indptr: Ints) -> tuple[Ints, Ints]:
    """See `plain.sizes`."""
    if (c := build.module()) is None:
        return plain.sizes(low, high, offset, indptr)
    room = _room(2, len(indptr) - 1)
    c.sizes(low, high, offset, indptr, room)
    return room[0], room[1]


def tiles(
    low: Ints, high: Ints, offset: Ints, indptr: Ints, picked: Ints, most: int, key_tile: int
) -> Ints:
    """See `plain.tiles`."""
    if (c := build.module()) is None:
        return plain.tiles(low, high, offset, indptr, picked, most, key_tile)
    room = _room(5, c.num_tiles(indptr, picked, most))
    c.tiles(low, high, offset, indptr, picked, most, key_tile, room)
    return room


def num_splits(num_keys: Ints, size: int, key_tile: int) -> tuple[Ints, int]:
    """See `plain.num_splits`; and the sum of them."""
    if (c := build.module()) is None:
        found = plain.num_splits(num_keys, size, key_tile)
        return found, int(found.sum())
    room = _room(len(num_keys))
    return room, c.num_splits(num_keys, size, key_tile, room)


def last_done(
    num_keys: Ints,
    sizes: Sequence[int],
    num_heads: int,
    num_processors: int,
    key_tile: int,
    to_begin: int,
) -> Ints:
    """See `plain.last_done`."""
    given = num_heads, num_processors, key_tile, to_begin
    if (c := build.module()) is None:
        return plain.last_done(num_keys, sizes, *given)
    found = _room(2, len(sizes))
    rooms = _room(len(num_keys)), _room(2, num_processors)
    c.last_done(num_keys, np.array(sizes), *given, *rooms, found)
    return found


def items(
    tiles: Ints,
    splits: Ints,
    num_items: int,
    size: int,
    strip_of: Ints,
    first_page: Ints,
    num_splits: Ints,
) -> Ints:
    """See `plain.items`; `num_items` is the sum of `splits`."""
    if (c := build.module()) is None:
        return plain.items(tiles, splits, size, strip_of, first_page, num_splits)
    room = _room(num_items, ITEM_FIELDS)
    c.items(tiles, splits, size, strip_of, first_page, room, _room(2, num_items), num_splits)
    return room


def partials(token: Ints, num_splits: Ints, num_tokens: int) -> tuple[Ints, Ints]:
    """See `plain.partials`."""
    if (c := build.module()) is None:
        return plain.partials(token, num_splits, num_tokens)
    of_entries, indptr = _room(len(token)), _room(num_tokens + 1)
    c.partials(token, num_splits, of_entries, indptr)
    return of_entries, indptr


def lists(table: Ints, num_reads: Ints, ages: Ints, fed: Ints, num_tokens: int) -> Lists:
    """See `plain.lists`; `num_tokens` is the sum of `fed`."""
    if (c := build.module()) is None:
        return plain.lists(table, num_reads, ages, fed)
    num_rows, count = len(num_reads), len(table)
    row_indptr, own, fed_to = _room(num_rows + 1), _room(num_rows), _room(2, num_tokens)
    room, indptr, names = _room(6, count), _room(count + 1), _room(count)
    strips = c.lists(
        table, num_reads, ages, fed, row_indptr, fed_to[0], fed_to[1], room, indptr, names, own
    )
    return Lists._make((row_indptr, *fed_to, *room, indptr[: strips + 1], names[:strips], own))


def numbered(rows: Sequence[tuple[Any, ...]]) -> tuple[Ints, list[Any]]:
    """See `plain.numbered`."""
    if (c := build.module()) is None:
        return plain.numbered(rows)
    room = _room(len(rows), len(rows[0]))
    return room, c.numbered(list(rows), room)


def team(
    of_rows: Ints, lies: list[int], is_live: list[bool], fused: list[int], begun: list[int]
) -> Table | None:
    """See `plain.team`."""
    if (c := build.module()) is None:
        return plain.team(of_rows, lies, is_live, fused, begun)
    num_rows, width = of_rows.shape
    room = _room(num_rows * (len(begun) // 4 + width), 6)
    told = _room(3, num_rows)
    count = c.team(of_rows, lies, is_live, fused, begun, room, told, _room(2, width))
    return None if count < 0 else Table(room[:count], *told)


def pages(
    tables: list[list[int]], own: Ints, row_indptr: Ints, offsets: Ints, page_size: int
) -> tuple[Ints, Ints, Ints]:
    """See `plain.pages`."""
    if (c := build.module()) is None:
        return plain.pages(tables, own, row_indptr, offsets, page_size)
    found = _room(sum(map(len, tables))), _room(len(tables) + 1), _room(len(offsets))
    c.pages(tables, own, row_indptr, offsets, page_size, *found)
    return found


def pack(
    buffer: NDArray[np.int32], places: Ints, padding: Sequence[int], arrays: Sequence[Ints]
) -> None:
    """See `plain.pack`."""
    if (c := build.module()) is None:
        plain.pack(buffer, places, padding, arrays)
    else:
        c.pack(buffer, places, np.array(padding, dtype=np.int64), *arrays)

"""Paths: tiles that walk several strips one behind the other, where a plan is a deep tree of short ones.

A tile of `work.py` is for one strip, and a row that reads ten short strips leaves ten partials, of which each takes as many
bytes as eight keys and values. A *path tile* is for some tokens instead. It walks what they read in *layers*: each of them has
at most one entry of each token, and so one rotated query for each row. Entries of a layer need not be of one strip: leaves
have one reader each, and a layer of leaves walks all of their keys, each row seeing its own. Rows are few and products
cheap there; what is spared are programs, which take microseconds to begin, and partials.

A piece of a path, an item, has some of the layers and leaves one partial for every token. It is counted as that of the first of
the token's entries there; the others have none.

    E  entries      L  layers      n  entries of a layer, at most
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyhands.attention.entries import Entries
from manyhands.cache.pages import Ints

PATH_FIELDS = 4  # of an item: first layer, end of layers, tokens, nothing
WALK_FIELDS = (
    5  # of a layer, n each: entry or -1, token, segment; of segments: first key, first page or -1
)
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Paths:
    """The path tiles of a plan."""

    most_entries: int  # n
    left: Ints  # the stretches that go by other tiles
    items: Ints  # [I, PATH_FIELDS]
    walks: Ints  # [L, WALK_FIELDS, n]
    num_partials: Ints  # [E]: 1 for an entry whose token's partial is counted as its own


def walked(
    entries: Entries,
    indptr: Ints,
    keys: Ints,
    *,
    most_entries: int,
    leaf_entries: int,
    leaf_keys: int,
    most_keys: int,
) -> np.ndarray:
    """Which stretches [stretches] of strips, whose entries begin at `indptr`, go by path tiles of `most_entries`.

    Leaves: those with at most so many entries and keys. And what is read by tokens alone that have one: if one tile
    walks all of it, or if its keys are few. None where a token has fewer than two of them on average: leaves alone spare no
    partials, and rows that see nothing of a tile cost more than programs.
    """
    counts = indptr[1:] - indptr[:-1]
    is_leaf = (counts <= leaf_entries) & (keys <= leaf_keys)
    has_leaf = np.zeros(int(entries.token.max()) + 1, dtype=np.bool_)
    has_leaf[entries.token[is_leaf.repeat(counts)]] = True
    is_theirs = np.logical_and.reduceat(has_leaf[entries.token], indptr[:-1])
    is_short = (keys <= most_keys) | ((keys <= 4 * most_keys) & (counts <= most_entries))
    found: np.ndarray = is_leaf | (is_theirs & is_short)
    if counts[found].sum() < 2 * np.count_nonzero(has_leaf):
        found[:] = False
    return found


def paths(
    entries: Entries,
    indptr: Ints,
    is_walked: np.ndarray,
    first_page: Ints,
    *,
    most_entries: int,
    key_tile: int,
    least_items: int,
) -> Paths:
    """Path tiles for the stretches that are walked, whose strips' pages begin at `first_page`.

    Few tiles are cut between their layers, until they are about `least_items`. Keys begin at the borders of key tiles.
    """
    counts = indptr[1:] - indptr[:-1]
    stretch = np.arange(len(counts)).repeat(counts)
    picked = is_walked[stretch].nonzero()[0]
    tokens, number = np.unique(entries.token[picked], return_inverse=True)
    # The narrowest first, in the order of tokens: neighbours in a tree walk the same.
    order = np.lexsort((picked, counts[stretch[picked]], number))
    entry, number = picked[order], number[order]
    begins = np.searchsorted(number, np.arange(len(tokens)))
    rank = np.arange(len(entry)) - begins[number]
    tile, row = number // most_entries, number % most_entries
    depth = int(rank.max(initial=0)) + 1
    known, layer = np.unique(tile * depth + rank, return_inverse=True)
    # A segment is what a layer walks of one stretch.
    segments, segment = np.unique(layer * len(counts) + stretch[entry], return_inverse=True)
    of_layer, of_stretch = np.divmod(segments, len(counts))
    within = np.arange(len(segments)) - np.searchsorted(of_layer, np.arange(len(known)))[of_layer]
    low, end = np.full(len(segments), np.iinfo(np.int64).max), np.zeros(len(segments), np.int64)
    np.minimum.at(low, segment, entries.low[entry])
    np.maximum.at(end, segment, np.minimum(entries.high, entries.offset + 1)[entry])
    low -= low % key_tile

    walks = np.full((len(known), WALK_FIELDS, most_entries), NOBODY, dtype=np.int64)
    walks[:, 1:4] = 0
    walks[layer, 0, row] = entry
    walks[layer, 1, row] = entries.token[entry]
    walks[layer, 2, row] = within[segment]
    walks[of_layer, 3, within] = low
    walks[of_layer, 4, within] = first_page[of_stretch]

    sizes = np.bincount(of_layer, weights=np.maximum(end - low, 1), minlength=len(known))
    of_tile = known // depth
    piece = _pieces(sizes, of_tile, least_items)
    is_first = np.ones(len(known), dtype=np.bool_)
    is_first[1:] = (of_tile[1:] != of_tile[:-1]) | (piece[1:] != piece[:-1])
    first = is_first.nonzero()[0]
    items = np.zeros((len(first), PATH_FIELDS), dtype=np.int64)
    items[:, 0], items[:, 1] = first, np.append(first[1:], len(known))
    items[:, 2] = np.minimum(len(tokens) - of_tile[first] * most_entries, most_entries)
    longest = (-np.add.reduceat(sizes, first)).argsort(kind="stable")

    item = is_first.cumsum()[layer] - 1
    # Entries stand token by token, layer by layer.
    leads = np.ones(len(entry), dtype=np.bool_)
    leads[1:] = (number[1:] != number[:-1]) | (item[1:] != item[:-1])
    num_partials = np.zeros(len(entries.token), dtype=np.int64)
    num_partials[entry[leads]] = 1
    left = (~is_walked).nonzero()[0]
    return Paths(most_entries, left, items[longest], walks, num_partials)


def _pieces(sizes: Ints, tile: Ints, least_items: int) -> Ints:
    """The piece of its tile that each layer is in: layers one behind the other, until they have a share of the keys."""
    num_tiles = int(tile[-1]) + 1
    wanted = -(-least_items // num_tiles)
    if wanted <= 1:
        return np.zeros(len(sizes), dtype=np.int64)
    share = sizes.sum() / (num_tiles * wanted)
    before = sizes.cumsum() - sizes
    before -= before[np.searchsorted(tile, np.arange(num_tiles))][tile]
    pieces: Ints = ((before + sizes / 2) // share).astype(np.int64)
    return pieces

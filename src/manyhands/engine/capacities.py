"""Capacities of recordings: those of plans, rounded, and those of recordings that are made before there is a plan.

A recording serves every plan that fits its capacity and is cut for its kernels (`engine/matching.py`). What a pass will bring is
not known when an engine gets ready, so *wide* recordings are made for every number of tokens that passes come in, with room for
long lists of everything else: one at least, and for most numbers two to five, each for a use (`Wide`):

    kinds_ahead            all of them: tokens, and the use
    most_ahead             tokens of the largest one
    most_for_host          tokens up to which a pass that is launched kernel by kernel waits for the host
    is_to_spare            whether one is made only where memory is left for it
    kind_ahead             the use that is meant for a plan
    kinds_meant            the same, and those that have its kernels
    kinds_instead          the uses that serve where none of these has room
    wide_capacity          the room that each has
    uncommon_capacities    kernels that no wide recording has, so that they are compiled all the same
    sizes_of               the tokens of the wide recordings of a use that so many tokens may go by
    capacity_of            the capacity that a plan itself would get a recording of
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import cache

from manyhands.attention.prepared import ENDED, Capacity, rounded_tokens, tokens_of_ended
from manyhands.attention.triton_backend import are_halved, is_beside
from manyhands.attention.work import (
    Occupancy,
    Tiling,
    Work,
    loaded,
    occupancy_of,
    power_of_two,
    tiles_of_prompt,
)
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.model.settings import MOST_ROWS_BESIDE

# Sizes are rounded up to at least these, so that a team's growing history changes its capacity rarely.
LEAST = Capacity(
    tokens=1,
    rows=1,
    entries=16,
    pages=512,
    small=64,
    large=0,
    partials=256,
    most_partials=32,
    small_rows=1,
    large_rows=16,
    occupancy=Occupancy.FEW,
)
_MERGES = (2, 4, 8, 16, 32, 64)  # partials of a token that are merged at once
_FEW_PARTIALS = 4  # of a token, as completions have; merged by programs of several heads
_LEAST_LONE = 8  # tokens of a recording of `Wide.LONE`
_PARTIALS_LONE = 4  # of a lone row: what it was given and what it writes, each in two splits
# Tokens of the largest wide recording: a prompt that comes alone. Launched one by one such a pass waits for the host, up to twice as
# long as it takes on the device (`benchmarks/prefill.py`).
AHEAD = 2048
# Bytes of a layer's weights times tokens, beyond which the host is done with a layer before the device is: with 16 bits as many
# operations, which take an H200 1.5 ms.
_WORTH = 1e12
# Over ranks a layer has two sums to launch besides, and the slowest of several hosts counts. Qwen3-32B's shapes over two H200 took 120 ms
# for 2 048 tokens on one host and 160 on another.
_WORTH_OVER_RANKS = 1.5e12
_MOST_OF_PARTS = 768  # tokens of the largest one for parts of prompts and what others write
# Of those for more, stretches that a token reads: what all have, a conversation, the prompt.
_STRETCHES_OF_A_PROMPT = 3
# Tokens of a pass up to which every wide recording has one kind of tiles, mostly small ones, and up to which there is one
# of small tiles alone. Recordings of `Wide.ENDED` always have one kind.
ALL_SMALL, MOST_ALONE = 32, 256
# Small tiles of a recording up to the former, if processors hold no more at once: each beyond a plan's own is a program that
# finds nothing to do, and takes its time.
_MOST_ITEMS = 256
_MOST_OF_LATENTS = 1024  # items of each of their recordings, at least
# Up to so many query heads for a key head, and from so many of these on, few stretches beside a prompt are large, and few are cut.
_USUAL_GROUP, _USUAL_HEADS = 5, 8
_SPLITS_OF_FEW = 2.0  # a processor, over all stretches and heads
_MUCH_MORE = 1.5  # times the keys that tiles for eight would load
# Tokens of recordings of `Wide.AMPLE`.
_AMPLE = (*(128, 160, 192, 256, 320, 384, 512, 640), _MOST_OF_PARTS)
_MOST_ROWS = MOST_ROWS_BESIDE  # of the others: the head's product is of as many, padding too
# Bytes that a device has free for ample ones to be made, and those for prompts: passes of thousands of tokens, which have none, want
# some, too.
SPARE = 1 << 30
_MOST_READS = 8192  # of ample ones: entries, and partials, of each token and each of its tiles
# Large tiles in them, beside those of a prompt, where small ones have room for a team of sixteen, and where they have none.
_MOST_BESIDE, _MOST_OF_LARGE_TEAMS = 640, 1024
_EIGHT, _SIXTEEN = 8, 16  # workers of large teams
_TILES_OF_A_ROW = 2  # a stretch of its own, and its prompt or what its team shares
# Times the least pages: 260 thousand tokens in pages of 64, and a million. A plan's own pages are sent, and not all that there is room for.
_PAGES_OF_FEW, _PAGES_OF_MANY = 8, 32


class Wide(Enum):
    """The use that a wide recording is made for."""

    SMALL = "rows that write: many small tiles"
    SEVERAL = "few rows of several runs: small tiles for teams of four, and for rows alone that want the same"
    TEAMS = "many rows of teams of eight and more: small tiles for eight"
    LARGE_TEAMS = "many rows of teams of sixteen, where query heads are few: small tiles for these"
    LONE = "lone rows and others that share little: the smallest tiles, where a team of four wants larger ones"
    LARGE = "parts of prompts: large tiles, beside small ones"
    AMPLE = "crowds that all others have no room for: tiles as beside prompts, more of them, and more rows"
    ENDED = "a team in which steps have ended: fewer rows than tokens, which read the same strips"


def most_ahead(layer_bytes: float, most_tokens: int = AHEAD, *, is_over_ranks: bool = False) -> int:
    """Tokens of the largest wide recording of a network whose layers have so many bytes of weights for a token, those of one rank.

    Padding costs a pass more than its launches where the device has enough to do. No prompt has more than the `most_tokens` that are
    fed in one pass, which is also what bounds the memory that passes work with.
    """
    most = most_for_host(layer_bytes, is_over_ranks=is_over_ranks)
    return min(AHEAD, max(_MOST_OF_PARTS, min(most_tokens, most)))


def most_for_host(layer_bytes: float, *, is_over_ranks: bool = False) -> int:
    """Tokens of a pass, launched one by one, up to which the device is done with a layer before the host is."""
    return int((_WORTH_OVER_RANKS if is_over_ranks else _WORTH) / layer_bytes)


def is_to_spare(tokens: int, kind: Wide) -> bool:
    """Whether such a wide recording is made only where `SPARE` bytes are free, on every rank's device.

    One that failed would leave all plans without recordings of their own; without these a pass is slower, and nothing fails.
    """
    return kind is Wide.AMPLE or tokens > _MOST_OF_PARTS


def kinds_ahead(most: int, tiling: Tiling) -> list[tuple[int, Wide]]:
    """The wide recordings, by their tokens and what they are made for."""
    sizes = sorted({rounded_tokens(count) for count in range(1, most + 1)})
    usual = [tokens for tokens in sizes if tokens not in ENDED or tokens == power_of_two(tokens)]
    few = [tokens for tokens in usual if tokens <= ALL_SMALL]
    lone = [tokens for tokens in usual if _LEAST_LONE <= tokens <= MOST_ALONE]
    many = [tokens for tokens in usual if ALL_SMALL < tokens == power_of_two(tokens) <= MOST_ALONE]
    large = [tokens for tokens in usual if tokens > _all_small(tiling)]
    return [
        *((tokens, Wide.SMALL) for tokens in usual if tokens <= MOST_ALONE),
        *((tokens, Wide.SEVERAL) for tokens in few if _are_apart(tokens, tiling)),
        *((tokens, Wide.ENDED) for tokens in sizes if tokens in ENDED),
        *((tokens, Wide.LARGE) for tokens in large if not is_to_spare(tokens, Wide.LARGE)),
        # Last, for others serve these plans too: a device without memory for all of them lacks the ones that it can spare.
        *((tokens, kind) for kind in _teams(tiling) for tokens in many),
        *((tokens, Wide.LONE) for tokens in lone if _least_rows(tiling) < _rows_of_four(tiling)),
        # The largest first, for the others then find what they work with in the memory that it has left.
        *((tokens, Wide.LARGE) for tokens in reversed(large) if is_to_spare(tokens, Wide.LARGE)),
        *((tokens, Wide.AMPLE) for tokens in reversed(_AMPLE) if tokens <= most),
    ]


def _all_small(tiling: Tiling) -> int:
    """Tokens of a pass up to which there are no recordings for parts of prompts: where all tiles are alike, others serve these."""
    return MOST_ALONE if tiling.latent_rows else ALL_SMALL


def kind_ahead(plan: Plan, work: Work, tiling: Tiling) -> Wide:
    """The kind of wide recording that is meant for such a plan, unless steps have ended in it; `work`: as it would be cut alone."""
    is_small = plan.num_tokens <= ALL_SMALL or not len(work.large)
    if not is_small or plan.num_tokens > MOST_ALONE:
        return Wide.LARGE
    kind = Wide.SMALL
    if not len(work.large):
        _, counts, starts, ends, *_ = work.small.T
        kind = kind_of_small(work.small_rows, counts * tiling.group, ends - starts, tiling)
    if kind is Wide.LONE or (kind is not Wide.SMALL and plan.num_tokens > ALL_SMALL):
        return kind
    are_several = not len(work.large) and 0 < work.small_rows <= _rows_of_four(tiling)
    are_apart = plan.num_tokens <= ALL_SMALL and _are_apart(power_of_two(plan.num_tokens), tiling)
    return Wide.SEVERAL if are_several and are_apart else Wide.SMALL


def kinds_meant(kind: Wide) -> tuple[Wide, ...]:
    """The kinds of recordings that have the kernels of a plan that `kind` is meant for, the smallest first."""
    return (Wide.ENDED, kind, Wide.AMPLE) if kind is Wide.LARGE else (Wide.ENDED, kind)


def kinds_instead(kind: Wide) -> tuple[Wide, ...]:
    """The kinds of recordings for a plan that finds no room in those that are meant for it, the best one first.

    Each is slower, and far from as slow as a pass that is launched kernel by kernel.
    """
    every = Wide.TEAMS, Wide.LARGE_TEAMS, Wide.SMALL, Wide.LARGE, Wide.AMPLE
    return tuple(each for each in every if each not in kinds_meant(kind))


@cache
def sizes_of(kind: Wide, count: int) -> tuple[int, ...]:
    """The tokens of recordings of this kind that a plan of `count` tokens may go by, the smallest first; not all are there."""
    if kind is Wide.ENDED:
        return (tokens_of_ended(count),)
    if kind is Wide.AMPLE:
        return tuple(tokens for tokens in _AMPLE if tokens >= count)[:1]
    return tuple(dict.fromkeys((rounded_tokens(count), power_of_two(count))))


def kind_of_small(small_rows: int, rows: Ints, keys: Ints, tiling: Tiling) -> Wide:
    """The kind of recording of more than 32 tokens, all in small tiles, for a plan that wants these to have `small_rows`.

    `rows` and `keys` [n] of its stretches, or of the tiles that they are cut into. Tiles for eight are half empty where most keys
    are those of teams of four, so they have to spare a third of what is loaded, and not just what a prompt beside others is;
    so do tiles for sixteen beside those for eight.
    """
    four = _rows_of_four(tiling)
    if small_rows <= _least_rows(tiling) < four:
        return Wide.LONE
    kind, by_fewer = Wide.SMALL, 0
    for larger, size in _teams(tiling).items():
        if size > small_rows:
            break
        by_fewer = by_fewer or loaded(rows, keys, four, tiling)
        if by_fewer < _MUCH_MORE * (by_these := loaded(rows, keys, size, tiling)):
            break
        kind, by_fewer = larger, by_these
    return kind


def _teams(tiling: Tiling) -> dict[Wide, int]:
    """Rows of a small tile for teams of more than four, by the kind of recording, the fewest first; those of equal size once."""
    sizes = {
        Wide.TEAMS: _rows_of_team(_EIGHT, tiling),
        Wide.LARGE_TEAMS: _rows_of_team(_SIXTEEN, tiling),
    }
    fewer = [_rows_of_four(tiling), *sizes.values()]
    return {
        kind: size
        for (kind, size), before in zip(sizes.items(), fewer, strict=False)
        if size > before
    }


def _are_apart(tokens: int, tiling: Tiling) -> bool:
    """Whether several runs of so many tokens want other small tiles than one team does."""
    return _rows_of_four(tiling) < _rows_of_one(tokens, tiling)


def _least_rows(tiling: Tiling) -> int:
    """Rows of the smallest small tile: one token has as many, or fewer."""
    return power_of_two(max(tiling.least_rows, tiling.group))


def _rows_of_four(tiling: Tiling) -> int:
    """Rows of a small tile for a team of four."""
    if tiling.latent_rows:
        return tiling.latent_rows
    return power_of_two(max(tiling.least_rows, 4 * tiling.group))


def _rows_of_team(workers: int, tiling: Tiling) -> int:
    """Rows of a small tile for a team of so many, four or more; a stretch with more rows has several, or large ones."""
    rows = power_of_two(max(tiling.least_rows, workers * tiling.group))
    return max(_rows_of_four(tiling), min(rows, tiling.most_small_rows))


def _rows_of_one(tokens: int, tiling: Tiling) -> int:
    """Rows of a small tile for one team of so many workers."""
    rows = min(tokens * tiling.group, tiling.most_small_rows)
    return tiling.small_size(max(_least_rows(tiling), rows))


def wide_capacity(tokens: int, tiling: Tiling, kind: Wide) -> Capacity:
    """Room for whatever a pass of so many tokens may bring: teams with many desks, a long history, parts of prompts.

    A recording of `Wide.ENDED` has room for what such a team brings, and no more.

    Of many tokens a small tile has rows for a team of four, since larger ones would be half empty, and beside large ones as few
    as there are. Padding costs a pass microseconds per layer, for programs that find nothing to do.
    """
    has_large = kind in (Wide.LARGE, Wide.AMPLE) and not tiling.latent_rows
    is_narrow = tokens <= ALL_SMALL or kind is Wide.ENDED
    rows, of_four = _rows_of_one(tokens, tiling), _rows_of_four(tiling)
    many = min(tokens, 64)
    splits = _SPLITS_OF_FEW if is_narrow else tiling.most_of_many
    items = int(splits * tiling.num_processors / tiling.num_kv_heads) + 4 * many
    # Merging cannot begin before the last program has, so padding costs crowds microseconds too. A plan with more small tiles
    # than that goes by the recording with large ones.
    most = (16 if is_narrow or has_large else 10) * many
    most = min(most, _MOST_ITEMS) if is_narrow else most
    if tiling.latent_rows:  # a program for each processor, however many items there may be
        most = max(most, _MOST_OF_LATENTS)
    if has_large:  # the smallest, which begin beside large ones (`work.py::begin_beside`)
        small_rows = _least_rows(tiling)
    elif kind in (of_teams := _teams(tiling)):
        small_rows = of_teams[kind]
    else:
        small_rows = rows if is_narrow and kind is not Wide.SEVERAL else min(rows, of_four)
    # One team has few programs whatever its size, since its rows read the same strips.
    tiles = _TILES_OF_A_ROW * tokens if kind is Wide.SEVERAL else 0
    # Of few key heads each stretch has many splits, and each leaves a partial for every token of its tile.
    of_splits = 0 if is_narrow else items * max(1, small_rows // tiling.group)
    is_for_prompts = kind is Wide.LARGE and tokens > _MOST_OF_PARTS
    large_rows, is_specialised = power_of_two(max(tiling.large_rows, tiling.group)), False
    if is_for_prompts:
        large_rows, is_specialised = tiles_of_prompt(tokens, tiling)
    # A part of a prompt fills tiles of its own: the more query heads a key head has, the fewer tokens in each. Beside them stand
    # those of other stretches, which so many heads make large sooner; and of few key heads all are cut until every processor has one.
    stretches = _STRETCHES_OF_A_PROMPT if is_for_prompts else 1
    of_prompt = stretches * -(-tokens // (large_rows // tiling.group))
    reads = stretches * tokens if is_for_prompts else 0
    if is_for_prompts and tiling.latent_rows:  # its tiles are small ones, as all are
        most = max(most, items + of_prompt)
    are_usual = tiling.group <= _USUAL_GROUP and tiling.num_kv_heads >= _USUAL_HEADS
    beside = max(16 if are_usual else 64, tiling.num_processors // tiling.num_kv_heads)
    # Merging looks at as many partials of a token as there may be, so crowds have no more room than they need. Networks of few key
    # heads cut stretches into more pieces, and have more.
    of_few_heads = 32 if has_large else 16
    of_one = 8 if tiling.num_kv_heads >= _USUAL_HEADS else of_few_heads
    wide = Capacity(
        tokens=tokens,
        rows=min(tokens, _MOST_ROWS),
        entries=max(256, 64 * many + reads),
        pages=LEAST.pages * (_PAGES_OF_FEW if is_narrow else _PAGES_OF_MANY),
        small=max(LEAST.small, items, most),
        large=max(LEAST.small, of_prompt + beside) if has_large else 0,
        partials=max(1024, 64 * many + reads, of_splits),
        most_partials=32 if is_narrow else of_one,
        small_rows=small_rows,
        large_rows=large_rows if has_large else 0,
        occupancy=occupancy_of(tiles, tiling) if is_narrow else Occupancy.MANY,
        is_specialised=is_specialised and has_large,
    )
    if kind is Wide.LONE:
        return _of_lone_rows(wide, tiling)
    if kind is Wide.AMPLE:
        return _with_ample_room(wide, items, of_prompt, tiling)
    return _of_ended_steps(wide, items, tiling) if kind is Wide.ENDED else wide


def _of_lone_rows(wide: Capacity, tiling: Tiling) -> Capacity:
    """The capacity `wide`, changed for rows that share little: an item for each of their stretches, those that come of splits, and few partials to merge.

    Programs that have nothing to do wait for room where each has much on its way at the same time, so there they are few.
    """
    tokens, small_rows = wide.tokens, _least_rows(tiling)
    occupancy = occupancy_of(_TILES_OF_A_ROW * tokens, tiling)
    are_many = occupancy is Occupancy.MANY
    splits = tiling.most_of_many if are_many else _SPLITS_OF_FEW
    items = _TILES_OF_A_ROW * tokens + int(splits * tiling.num_processors / tiling.num_kv_heads)
    items += 0 if are_many else tokens
    return replace(
        wide,
        small=items,
        partials=items * max(1, small_rows // tiling.group),
        most_partials=_PARTIALS_LONE,
        small_rows=small_rows,
        occupancy=occupancy,
    )


def _with_ample_room(wide: Capacity, items: int, of_prompt: int, tiling: Tiling) -> Capacity:
    """The capacity `wide`, changed for crowds that the others have no room for: more rows, more strips of each, more tiles."""
    if tiling.latent_rows:
        return replace(wide, rows=wide.tokens, entries=_MOST_READS, small=_MOST_READS)
    are_small = _SIXTEEN * tiling.group <= tiling.most_small_rows
    beside = _MOST_BESIDE if are_small else _MOST_OF_LARGE_TEAMS
    return replace(
        wide,
        rows=wide.tokens,
        entries=_MOST_READS,
        small=max(wide.small, items + _TILES_OF_A_ROW * wide.tokens),
        large=of_prompt + beside,
        partials=max(wide.partials, _MOST_READS),
    )


def _of_ended_steps(wide: Capacity, items: int, tiling: Tiling) -> Capacity:
    """The capacity `wide`, changed for a team in which a step has ended, whose rows are fewer than its tokens and read the same strips.

    Where all tokens together have more rows than a small tile, all tiles are large. Other plans find room in the next
    recording.
    """
    rows = 2 * wide.tokens // 3
    if (rows + 1) * tiling.group <= tiling.most_small_rows or tiling.latent_rows:
        return replace(wide, rows=rows, small=max(LEAST.small, items))
    large_rows = power_of_two(max(tiling.large_rows, tiling.group))
    return replace(wide, rows=rows, small=0, large=items, large_rows=large_rows)


def uncommon_capacities(tiling: Tiling) -> list[Capacity]:
    """Small capacities that between them launch every kernel of attention which a pass may need that was not recorded ahead.

    A kernel is another one if its tiles are alone, beside others in one stream or in two, or leave outputs at once.
    """
    both = wide_capacity(2 * ALL_SMALL, tiling, Wide.LARGE)
    if tiling.latent_rows:  # one kernel, which leaves outputs or partials
        return [replace(both, most_partials=most) for most in (1, *_MERGES)]
    both = replace(both, large=max(both.large, tiling.num_processors))
    least = power_of_two(max(tiling.least_rows, tiling.group))
    rows = tiling.small_sizes(least, tiling.most_small_rows, are_few=False)
    kinds = [(size, occupancy) for size in rows for occupancy in Occupancy]
    between = set(tiling.small_sizes(least, tiling.most_small_rows, are_few=True)) - set(rows)
    kinds += [(size, Occupancy.FEW) for size in between]
    if tiling.group == 1:
        kinds.append((1, Occupancy.MANY))
    small = [replace(both, small_rows=size, occupancy=occupancy) for size, occupancy in kinds]
    sizes = [(tiling.large_rows, False)]
    if tiling.specialised_rows:
        sizes += [(tiling.specialised_rows, is_specialised) for is_specialised in (False, True)]
    sizes += [(tiling.few_rows, True)] * (tiling.few_rows > 0)
    if tiling.narrow_rows:
        sizes.append((tiling.narrow_rows, True))
    widest = rows[-1] if rows else both.small_rows
    large = [
        replace(both, small_rows=widest, large_rows=size, is_specialised=special)
        for size, special in sizes
    ]
    beside = [each for each in small if is_beside(each, tiling)]
    # In one stream neither begin the widest small ones nor any beside the last kind of large ones.
    last = large[-1]
    in_two_streams = [*(replace(last, small_rows=a, occupancy=b) for a, b in kinds), *large]
    alone = [
        *(replace(each, large=0) for each in small),
        *(replace(each, small=0) for each in large),
    ]
    in_one_stream = [*beside, *alone]
    at_once = [each for each in alone if each.large or each.small_rows == least]
    found = [*in_two_streams, *in_one_stream]
    found += [replace(each, most_partials=1) for each in at_once]
    if tiling.least_left:  # long prompts, whose outputs are left at once but for a few tokens'
        prompts = tiling.specialised_rows or tiling.large_rows, tiling.specialised_rows > 0
        kinds_of_large = [*large, *(replace(each, small=0) for each in large)]
        leaving = [
            each for each in kinds_of_large if (each.large_rows, each.is_specialised) == prompts
        ]
        found += [replace(each, end_merged=1, most_partials=2) for each in leaving]
    # A kernel merges so many partials of a token; another one does behind two streams, another one those of 16 bits.
    halved = [each for each in in_one_stream if are_halved(each, tiling)]
    whole = [each for each in in_one_stream if not are_halved(each, tiling)]
    for kind in (in_two_streams, halved, whole):
        found += [replace(each, most_partials=most) for each in kind[:1] for most in _MERGES]
    return list(dict.fromkeys(found))


def capacity_of(plan: Plan, work: Work) -> Capacity:
    """The sizes to record for this plan, rounded up to few different ones.

    A list of tiles that is empty stays so: for padding alone, every layer would launch a kernel more.
    Few partials stay few: merging is launched for as many as there may be.
    """
    exact = vars(Capacity.of(plan, work))
    sizes = {name: max(size, getattr(LEAST, name)) for name, size in exact.items()}
    sizes["small"] *= exact["small"] > 0
    if exact["most_partials"] <= _FEW_PARTIALS:
        sizes["most_partials"] = exact["most_partials"]
    return Capacity(**sizes).rounded()

"""A token drawn from each row of logits of 16 bits, in three launches.

Such logits have 65 536 different values at most, and tokens of one value are equally likely and stand in the order of
their ids. So a row's whole distribution is a histogram, and nothing is sorted:

    count     tokens of each value. A value is a *bin*; the largest has the lowest number
    decide    the bin that the draw falls into, and which of its tokens it is, counted by their ids
    find      that token

The tokens that top_k, top_p and min_p keep are the likeliest up to some *rank*, and the *mass* in front of a rank is the sum
of the weights of the tokens before it. `_mass_of` and `_rank_of` lead from one to the other; a cut and a draw are no
more than that. However many tokens are kept, none is beyond reach, so no draw is left undecided.

Counts are integers and all sums over them have one order: a row gets the same token whatever rows are beside it.
Weights are float64, measured from the likeliest, so that no temperature overflows. The twin is
`engine/sampling.py::_sample`.

    N  rows that draw      R  rows of logits      V  vocabulary      M  masks
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.work import cdiv, power_of_two
from manyhands.model.kernels.adding import is_last

DTYPES = (torch.bfloat16, torch.float16)
PARAMETERS = ("row", "mask", "temperature", "top_k", "top_p", "min_p", "draw")
_TILE = 2048  # tokens of one program
_WARPS = 8  # of a program that decides

# A row's place in the scratch memory: a count for each bin, sums of them over blocks of bins, what programs of the
# row tell each other, and what each of them has found.
BINS = tl.constexpr(1 << 16)
SIZE = tl.constexpr(1024)  # bins of a block
BLOCKS = tl.constexpr(64)
# Neighbours are counted at the same time, and would wait for each other in one line of the cache. So each of LINES bins has
# a line of its own, which it shares with others of its STRETCH only.
STRETCH, LINES, WIDTH = tl.constexpr(4096), tl.constexpr(128), tl.constexpr(32)
WEIGHED, ARRIVED, BIN, INDEX, UNSOUND = (
    tl.constexpr(BINS.value + BLOCKS.value + i) for i in range(5)
)
FOUND = tl.constexpr(BINS.value + 2 * BLOCKS.value)


@triton.jit
def _parameter(parameters, NUMBER: tl.constexpr):
    """The parameter of this program's row: a scalar in float64."""
    return tl.load(parameters + NUMBER * tl.num_programs(0) + tl.program_id(0))


@triton.jit
def _scores(bits, masks, parameters, tokens, V, stride):
    """(The bits of the scores of some tokens of this program's row, whether each may be chosen)."""
    row = _parameter(parameters, 0).to(tl.int64)
    mask = _parameter(parameters, 1).to(tl.int64)
    is_token = tokens < V
    scores = tl.load(bits + row * stride + tokens, mask=is_token, other=0).to(tl.int32)
    at = masks + mask * tl.cdiv(V, 8) + tokens // 8
    packed = tl.load(at, mask=tokens < tl.where(mask < 0, 0, V), other=255).to(tl.int32)
    return scores, is_token & ((packed >> (tokens % 8) & 1) != 0)


@triton.jit
def _bin(scores):
    """The bins of scores, given by their bits; both zeros are in one."""
    rising = tl.where(scores < 0, scores ^ 0x7FFF, scores)
    return 0x7FFF - tl.where(rising == -1, 0, rising)


@triton.jit
def _value(bins, BFLOAT16: tl.constexpr):
    """The scores of bins, in float64."""
    rising = 0x7FFF - bins
    bits = tl.where(rising < 0, rising ^ 0x7FFF, rising)
    if BFLOAT16:
        value = (bits << 16).to(tl.float32, bitcast=True)
    else:
        value = bits.to(tl.int16).to(tl.float16, bitcast=True)
    return value.to(tl.float64)


@triton.jit
def _count(
    bits,
    masks,
    parameters,
    scratch,
    V,
    stride,
    BFLOAT16: tl.constexpr,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (row, tile): count its tokens in their bins, and say if a score is no number or infinite."""
    own = scratch + tl.program_id(0).to(tl.int64) * ROOM
    tokens = tl.program_id(1) * TILE + tl.arange(0, TILE)
    scores, may_be = _scores(bits, masks, parameters, tokens, V, stride)
    bins = _bin(scores)
    places = bins // STRETCH * STRETCH + bins % LINES * WIDTH + bins % STRETCH // LINES
    tl.atomic_add(own + places, may_be.to(tl.int32), mask=may_be, sem="relaxed")
    # A token that is not counted is in a block that is none.
    sizes = tl.histogram(tl.where(may_be, bins // SIZE, BLOCKS), 2 * BLOCKS)
    block = tl.arange(0, 2 * BLOCKS)
    is_met = (block < BLOCKS) & (sizes > 0)
    tl.atomic_add(own + BINS + block, sizes, mask=is_met, sem="relaxed")
    INFINITE: tl.constexpr = 0x7F80 if BFLOAT16 else 0x7C00
    is_unsound = (scores >= INFINITE) | ((scores < 0) & ((scores & 0x7FFF) > INFINITE))
    if tl.max(is_unsound.to(tl.int32), axis=0) > 0:
        tl.store(scratch + UNSOUND, 1)


@triton.jit
def _counts(own, at):
    """How many tokens are in each bin of a block."""
    ROWS: tl.constexpr = SIZE // LINES
    block = own + at * SIZE // STRETCH * STRETCH + at * SIZE % STRETCH // LINES
    places = tl.arange(0, ROWS)[:, None] + tl.arange(0, LINES)[None, :] * WIDTH
    return tl.reshape(tl.load(block + places), [SIZE])


@triton.jit
def _block(own, at, best, temperature, BFLOAT16: tl.constexpr):
    """(The bins of a block, tokens in each, the weight of one of them); `best` is the first bin that has any."""
    bins = at * SIZE + tl.arange(0, SIZE)
    counts = _counts(own, at)
    met = tl.where(counts > 0, bins, best)  # the others need not stand for numbers
    weights = tl.exp((_value(met, BFLOAT16) - _value(best, BFLOAT16)) / temperature)
    return bins, counts.to(tl.float64), weights


@triton.jit
def _at(values, index):
    """One of the values of all blocks."""
    return tl.sum(tl.where(tl.arange(0, BLOCKS) == index, values, 0.0), axis=0)


@triton.jit
def _last(is_in_front):
    """The last block that begins in front of something; the first if none does."""
    return tl.maximum(tl.sum(is_in_front.to(tl.int32), axis=0) - 1, 0)


@triton.jit
def _mass_of(rank, own, best, temperature, ranks, fronts, BFLOAT16: tl.constexpr):
    """The mass in front of a rank."""
    at = _last(ranks < rank)
    _, counts, weights = _block(own, at, best, temperature, BFLOAT16)
    in_front = _at(ranks, at) + tl.cumsum(counts, axis=0) - counts
    taken = tl.minimum(tl.maximum(rank - in_front, 0.0), counts)
    return _at(fronts, at) + tl.sum(taken * weights, axis=0)


@triton.jit
def _rank_of(mass, own, best, temperature, ranks, fronts, BFLOAT16: tl.constexpr):
    """The rank that has this mass in front of it; between two ranks where it ends within a token."""
    at = _last(fronts < mass)
    _, counts, weights = _block(own, at, best, temperature, BFLOAT16)
    here = counts * weights
    in_front = _at(fronts, at) + tl.cumsum(here, axis=0) - here
    taken = (mass - in_front) / tl.where(weights > 0, weights, 1.0)
    taken = tl.minimum(tl.maximum(taken, 0.0), counts)
    return _at(ranks, at) + tl.sum(taken, axis=0)


@triton.jit
def _decide(parameters, scratch, masses, BFLOAT16: tl.constexpr, ROOM: tl.constexpr):
    """Program (row, block): weigh the block's tokens, if it has any. The last one of a row decides."""
    number, at = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own = scratch + number * ROOM
    block = tl.arange(0, BLOCKS)
    sizes = tl.load(own + BINS + block).to(tl.float64)
    if tl.load(own + BINS + at) > 0:
        ranks = tl.cumsum(sizes, axis=0) - sizes  # of the first token of each block
        first = _last(ranks <= 0)
        bins = first * SIZE + tl.arange(0, SIZE)
        best = tl.min(tl.where(_counts(own, first) > 0, bins, BINS - 1), axis=0)
        temperature, min_p = _parameter(parameters, 2), _parameter(parameters, 5)
        _, counts, weights = _block(own, at, best, temperature, BFLOAT16)
        is_likely = (weights >= min_p) & (weights > 0)  # else rounding might draw what cannot be
        mass = masses + number * 2 * BLOCKS  # of each block
        likely = mass + BLOCKS  # tokens of each block that min_p keeps
        tl.store(mass + at, tl.sum(counts * weights, axis=0))
        tl.store(likely + at, tl.sum(tl.where(is_likely, counts, 0.0), axis=0))
        is_met = sizes > 0
        if is_last(own + WEIGHED, tl.sum(is_met.to(tl.int32), axis=0)):
            weighed = tl.load(mass + block, mask=is_met, other=0.0, cache_modifier=".cg")
            counted = tl.load(likely + block, mask=is_met, other=0.0, cache_modifier=".cg")
            fronts = tl.cumsum(weighed, axis=0) - weighed
            most = tl.maximum(tl.sum(counted, axis=0), 1.0)  # of broken logits none is likely
            kept = tl.minimum(_parameter(parameters, 3), tl.sum(sizes, axis=0))
            _choose(own, parameters, best, temperature, ranks, fronts, kept, most, BFLOAT16)


@triton.jit
def _choose(own, parameters, best, temperature, ranks, fronts, kept, most, BFLOAT16: tl.constexpr):
    """Leave the bin of the token that is drawn, and its number there. top_k has `kept` so many, min_p `most`."""
    top_p, draw = _parameter(parameters, 4), _parameter(parameters, 6)
    # Kept tokens end where top_p does, a share of the mass that top_k leaves; the draw is a share of theirs.
    rank = kept
    turn = tl.where(top_p < 1, 0, 1)
    while turn < 2:
        share = tl.where(turn == 0, top_p, draw)
        kept = tl.where(turn == 0, kept, tl.minimum(kept, most))
        mass = share * _mass_of(kept, own, best, temperature, ranks, fronts, BFLOAT16)
        rank = _rank_of(mass, own, best, temperature, ranks, fronts, BFLOAT16)
        kept = tl.where(turn == 0, tl.minimum(tl.maximum(tl.ceil(rank), 1.0), kept), kept)
        turn += 1
    rank = tl.maximum(tl.minimum(tl.floor(rank), kept - 1), 0.0)

    at = _last(ranks <= rank)
    bins, counts, _ = _block(own, at, best, temperature, BFLOAT16)
    upto = _at(ranks, at) + tl.cumsum(counts, axis=0)
    is_it = (upto > rank) & (upto - counts <= rank)
    index = tl.sum(tl.where(is_it, rank - (upto - counts), 0.0), axis=0)
    tl.store(own + BIN, tl.sum(tl.where(is_it, bins, 0), axis=0))
    tl.store(own + INDEX, index.to(tl.int32))


@triton.jit
def _matches(own, bits, masks, parameters, tokens, V, stride):
    """1 for each of some tokens that is in the bin that was decided on, else 0."""
    scores, may_be = _scores(bits, masks, parameters, tokens, V, stride)
    return (may_be & (_bin(scores) == tl.load(own + BIN))).to(tl.int32)


@triton.jit
def _find(
    bits,
    masks,
    parameters,
    scratch,
    out,
    V,
    stride,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,  # tiles of a row, or more
):
    """Program (row, tile): count what matches. The last one of a row knows in which tile the token is."""
    number, tile, tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    own = scratch + number.to(tl.int64) * ROOM
    inside = tl.arange(0, TILE)
    matches = _matches(own, bits, masks, parameters, tile * TILE + inside, V, stride)
    tl.store(own + FOUND + tile, tl.sum(matches, axis=0))
    if (number == 0) & (tile == 0):
        tl.store(out, 1 - tl.load(scratch + UNSOUND))
    if is_last(own + ARRIVED, tiles):
        each = tl.arange(0, TILES)
        found = own + FOUND + each
        counts = tl.load(found, mask=each < tiles, other=0, cache_modifier=".cg")
        upto = tl.cumsum(counts, axis=0)
        index = tl.load(own + INDEX)
        at = tl.minimum(tl.sum((upto <= index).to(tl.int32), axis=0), tiles - 1)
        index -= tl.sum(tl.where(each == at, upto - counts, 0), axis=0)
        tokens = at * TILE + inside
        matches = _matches(own, bits, masks, parameters, tokens, V, stride)
        is_it = (matches > 0) & (tl.cumsum(matches, axis=0) == index + 1)
        tl.store(out + 1 + number, tl.sum(tl.where(is_it, tokens, 0), axis=0))


def draw(logits: Tensor, parameters: Tensor, masks: Tensor | None = None) -> Tensor:
    """1 if all logits of these rows are sound, else 0; behind it a token of each row that draws: int64 [N + 1].

    Of logits [R, V] in bfloat16 or float16. `parameters` [7, N] float64 are those that PARAMETERS names: the number of
    the row; that of its mask, -1 for none; and the choice, whose top_k is at least 1. `masks` [M, ceil(V / 8)] uint8
    have a bit for every token, the first one in the lowest bit, set if it may be chosen. Where none may, it is token 0.
    """
    assert logits.dtype in DTYPES, "a histogram of more bits has no room"
    assert parameters.shape[0] == len(PARAMETERS), "each row has all parameters"
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    size, count = logits.shape[1], parameters.shape[1]
    tiles = cdiv(size, _TILE)
    most_tiles = power_of_two(tiles)
    room = FOUND.value + most_tiles
    scratch = torch.zeros(count, room, dtype=torch.int32, device=logits.device)
    masses = torch.empty(count, 2, BLOCKS.value, dtype=torch.float64, device=logits.device)
    out = torch.empty(1 + count, dtype=torch.int64, device=logits.device)
    bits = logits.view(torch.int16)
    # Where there are no masks, no byte of anything is read as one.
    read = (bits, bits.view(torch.uint8) if masks is None else masks, parameters, scratch)
    sizes = (size, logits.stride(0))
    own: dict[str, Any] = {"ROOM": room, "enable_fp_fusion": True}
    kind: dict[str, Any] = {"BFLOAT16": logits.dtype == torch.bfloat16}
    kernels: tuple[Any, ...] = (_count, _decide, _find)
    count_, decide, find = kernels
    count_[(count, tiles)](*read, *sizes, TILE=_TILE, **kind, **own)
    decide[(count, BLOCKS.value)](parameters, scratch, masses, num_warps=_WARPS, **kind, **own)
    find[(count, tiles)](*read, out, *sizes, TILE=_TILE, TILES=most_tiles, **own)
    return out

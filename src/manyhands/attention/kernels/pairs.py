"""Which dims of a head are rotated together.

Rotary embedding rotates pairs of dims: with angle a, (x, y) becomes (x cos a - y sin a, y cos a + x sin a).
Which dims are a pair differs: neighbours, or one from each half of the rotary dims. A kernel loads the
first dims of all pairs and the second ones, rotates them, and puts them side by side. The result stands
in the order of `columns`, which for whole heads is the order in memory.

Keys are read as they lie, many dims at a time, so queries that meet them stand in that order whatever is rotated (`rotated`). Where pairs
leave another one, the dims that rotate are turned as a whole head is, and put in front of the others; where their number is no power of two, each is
loaded beside the other one of its pair.

    HALF  pairs of a head, rounded up to a power of two
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pairs(i, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """First and second dim of the pairs `i`. Dims that are not rotated are paired as well, with each other."""
    if INTERLEAVED:
        return 2 * i, 2 * i + 1
    else:
        is_rotary = i < ROTARY_DIM // 2
        first = tl.where(is_rotary, i, i + ROTARY_DIM // 2)
        return first, tl.where(is_rotary, i + ROTARY_DIM // 2, i + HEAD_DIM // 2)


@triton.jit
def columns(
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
):
    """The dims [2 HALF] in the order that `turned` leaves; HEAD_DIM or more: there is none."""
    e = tl.arange(0, 2 * HALF)
    if INTERLEAVED or (ROTARY_DIM == HEAD_DIM and HEAD_DIM == 2 * HALF):
        return e
    else:
        i = e % HALF
        first, second = _pairs(i, HEAD_DIM, ROTARY_DIM, INTERLEAVED)
        return tl.where(i < HEAD_DIM // 2, tl.where(e < HALF, first, second), HEAD_DIM)


@triton.jit
def loaded(
    source,
    mask,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    BESIDE: tl.constexpr = False,
):
    """The first and the second dims of all pairs at `source` [n, 1]: float32 [n, HALF], 0 where there are none.

    BESIDE: asked of the second-level cache, see overlap.py.
    """
    FROM: tl.constexpr = ".cg" if BESIDE else ""
    i = tl.arange(0, HALF)
    first, second = _pairs(i, HEAD_DIM, ROTARY_DIM, INTERLEAVED)
    is_pair = mask & (i < HEAD_DIM // 2)[None, :]
    x = tl.load(source + first[None, :], mask=is_pair, other=0.0, cache_modifier=FROM)
    y = tl.load(source + second[None, :], mask=is_pair, other=0.0, cache_modifier=FROM)
    return x.to(tl.float32), y.to(tl.float32)


@triton.jit
def parted(x, INTERLEAVED: tl.constexpr, HALF: tl.constexpr):
    """The first and the second dims of all pairs [n, HALF] of whole heads [n, 2 HALF], in the order of memory."""
    if INTERLEAVED:
        return tl.split(tl.reshape(x, (x.shape[0], HALF, 2)))
    else:
        return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, HALF)), (0, 2, 1)))


@triton.jit
def turned(
    x,
    y,
    mask,
    cos,
    sin,
    HEAD_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    BESIDE: tl.constexpr = False,
):
    """Pairs that were `loaded`, rotated by the angles at `cos` and `sin` [n, 1], float32 [n, 2 HALF]."""
    FROM: tl.constexpr = ".cg" if BESIDE else ""
    i = tl.arange(0, HALF)
    is_pair = mask & (i < HEAD_DIM // 2)[None, :]
    c = tl.load(cos + i[None, :], mask=is_pair, other=1.0, cache_modifier=FROM)
    s = tl.load(sin + i[None, :], mask=is_pair, other=0.0, cache_modifier=FROM)
    sides = tl.join(x * c - y * s, y * c + x * s)
    if not INTERLEAVED:
        sides = tl.permute(sides, (0, 2, 1))
    return tl.reshape(sides, (x.shape[0], 2 * HALF))


@triton.jit
def standing(
    source,
    mask,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BESIDE: tl.constexpr = False,
):
    """Heads at `source` [n, 1] as they are: float32 [n, 2 HALF], 0 where there are no dims."""
    FROM: tl.constexpr = ".cg" if BESIDE else ""
    dim = tl.arange(0, 2 * HALF)[None, :]
    is_dim = mask & (dim < HEAD_DIM)
    return tl.load(source + dim, mask=is_dim, other=0.0, cache_modifier=FROM).to(tl.float32)


@triton.jit
def rotated(
    source,
    mask,
    cos,
    sin,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    BESIDE: tl.constexpr = False,
):
    """Heads at `source` [n, 1], rotated by the angles at `cos` and `sin` [n, 1], float32 [n, 2 HALF], in the order of memory."""
    PAIRS: tl.constexpr = ROTARY_DIM // 2
    if INTERLEAVED or (ROTARY_DIM == HEAD_DIM and HEAD_DIM == 2 * HALF):
        x, y = loaded(source, mask, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF, BESIDE)
        return turned(x, y, mask, cos, sin, HEAD_DIM, INTERLEAVED, HALF, BESIDE)
    elif ROTARY_DIM & (ROTARY_DIM - 1) == 0 and HEAD_DIM == 2 * HALF:
        # The first dims, which rotate as a whole head does, take the place of what lies there.
        GROUPS: tl.constexpr = HEAD_DIM // ROTARY_DIM
        x, y = loaded(source, mask, ROTARY_DIM, ROTARY_DIM, INTERLEAVED, PAIRS, BESIDE)
        first = turned(x, y, mask, cos, sin, ROTARY_DIM, INTERLEAVED, PAIRS, BESIDE)
        whole = standing(source, mask, HEAD_DIM, HALF, BESIDE)
        whole = tl.reshape(whole, (whole.shape[0], GROUPS, ROTARY_DIM))
        is_first = tl.arange(0, GROUPS)[None, :, None] == 0
        whole = tl.where(is_first, tl.expand_dims(first, 1), whole)
        return tl.reshape(whole, (whole.shape[0], HEAD_DIM))
    else:
        FROM: tl.constexpr = ".cg" if BESIDE else ""
        dim = tl.arange(0, 2 * HALF)
        is_first, is_rotary = dim < PAIRS, dim < ROTARY_DIM
        other = tl.where(is_first, dim + PAIRS, tl.where(is_rotary, dim - PAIRS, dim))[None, :]
        turns = mask & is_rotary[None, :]
        x = standing(source, mask, HEAD_DIM, HALF, BESIDE)
        y = tl.load(source + other, mask=turns, other=0.0, cache_modifier=FROM).to(tl.float32)
        angle = tl.where(is_first, dim, dim - PAIRS)[None, :]
        c = tl.load(cos + angle, mask=turns, other=1.0, cache_modifier=FROM)
        s = tl.load(sin + angle, mask=turns, other=0.0, cache_modifier=FROM)
        return x * c + tl.where(is_first[None, :], -y, y) * s

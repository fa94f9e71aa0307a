"""Which dims of a head turn together.

Rotary embedding turns pairs of dims: with angle a, (x, y) becomes (x cos a - y sin a, y cos a + x sin a).
Which dims are a pair differs: neighbours, or one from each half of the dims that turn. Every dim needs to
know its pair, whose cosine and sine it takes, the other dim of the pair, and the sign of the sine.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def paired(d, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """For dims `d`: pair, other dim, sign of the sine; and whether they turn at all."""
    turns = d < ROTARY_DIM
    if INTERLEAVED:
        pair, is_first = d // 2, d % 2 == 0
        other = tl.where(is_first, d + 1, d - 1)
    else:
        is_first = d < ROTARY_DIM // 2
        pair = tl.where(is_first, d, d - ROTARY_DIM // 2)
        other = tl.where(is_first, d + ROTARY_DIM // 2, d - ROTARY_DIM // 2)
    sign = tl.where(is_first, -1.0, 1.0)
    return tl.where(turns, pair, 0), tl.where(turns, other, d), sign, turns


@triton.jit
def turned(
    source,
    d,
    mask,
    cos,
    sin,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Heads at `source` [n, 1], turned by the angles at `cos` and `sin` [n, 1], as float32 [n, dims].

    `d` [dims] may exceed the head: there the result is 0.
    """
    pair, other, sign, turns = paired(d, ROTARY_DIM, INTERLEAVED)
    mask = mask & (d < HEAD_DIM)[None, :]
    x = tl.load(source + d[None, :], mask=mask, other=0.0).to(tl.float32)
    y = tl.load(source + other[None, :], mask=mask, other=0.0).to(tl.float32)
    turning = mask & turns[None, :]
    c = tl.load(cos + pair[None, :], mask=turning, other=1.0)
    s = tl.load(sin + pair[None, :], mask=turning, other=0.0)
    return x * c + y * (s * sign[None, :])

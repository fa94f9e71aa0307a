"""Which dims of a head turn together, as two lists of offsets.

Rotary embedding turns pairs of dims. The kernels hold a head as two halves, the first and the second
of every pair, so that a rotation is two multiplications and a score is the sum of two products. The
order of the pairs does not matter to a score as long as queries and keys use the same. Dims that do not
turn are paired up behind those that do, and turn by an angle of 0.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pair_offsets(i, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Offsets of the first and the second dim of pairs `i` (0 .. HEAD_DIM / 2)."""
    if ROTARY_DIM == HEAD_DIM and not INTERLEAVED:
        return i, i + HEAD_DIM // 2
    turns = i < ROTARY_DIM // 2
    rest = i + ROTARY_DIM // 2
    if INTERLEAVED:
        first, second = 2 * i, 2 * i + 1
    else:
        first, second = i, i + ROTARY_DIM // 2
    return (
        tl.where(turns, first, rest),
        tl.where(turns, second, rest + (HEAD_DIM - ROTARY_DIM) // 2),
    )

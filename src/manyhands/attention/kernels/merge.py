"""Merge the partial results of every token by their log-sum-exp (Hydragen, section 3.1).

Partials and sums are float32, log-sum-exps in units of log 2. Or partials are float16, which is half of the bytes to be
written and read: each is divided by the sum of its numbers' sizes, so it fits whatever these are, and that sum over its
weight is its factor, kept beside the log-sum-exp. Numbers as large as the others count with eleven bits then, three more
than bfloat16 has; one 128 times smaller counts with fewer, and next to nothing beside them. A sink (gpt-oss) takes its share
of the weight and gives no value. A token without partials is padding and gets zeros.

    T  new tokens      P  partials      H  query heads      Dv  value head dim
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.overlap import take_over

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def merge_kernel(
    partials,  # [P, H, Dv] float32, or float16
    lses,  # [P, H] float32, or [P, H, 2]: log-sum-exps and factors
    partial_indptr,  # [T + 1]
    sinks,  # [H], or nothing
    out,  # [T, H, Dv]
    HAS_SINKS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE: tl.constexpr,  # dims of one program
    AT_ONCE: tl.constexpr,  # partials looked at together
    HEADS: tl.constexpr,  # of one program
    OVERLAP: tl.constexpr,
):
    """Program (token, HEADS heads, VALUE dims)."""
    FACTORS: tl.constexpr = partials.dtype.element_ty == tl.float16
    token = tl.program_id(0)
    start, end = tl.load(partial_indptr + token), tl.load(partial_indptr + token + 1)
    p = tl.arange(0, AT_ONCE)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.program_id(2) * VALUE + tl.arange(0, VALUE)
    is_head = h < NUM_HEADS
    is_value = is_head[:, None] & (d < VALUE_DIM)[None, :]
    take_over(OVERLAP)

    largest = tl.full([HEADS], -1e30, dtype=tl.float32)
    total = tl.zeros([HEADS], dtype=tl.float32)
    if HAS_SINKS:
        largest = tl.load(sinks + h, mask=is_head, other=0.0).to(tl.float32) * LOG2E
        total += 1.0
    summed = tl.zeros([HEADS, VALUE], dtype=tl.float32)
    for first in range(start, end, AT_ONCE):
        index = (first + p).to(tl.int64)[:, None] * NUM_HEADS + h[None, :]
        is_partial = (first + p < end)[:, None] & is_head[None, :]
        if FACTORS:
            lse = tl.load(lses + 2 * index, mask=is_partial, other=-1e30)
            factor = tl.load(lses + 2 * index + 1, mask=is_partial, other=0.0)
        else:
            lse = tl.load(lses + index, mask=is_partial, other=-1e30)
        x = tl.load(
            partials + index[:, :, None] * VALUE_DIM + d[None, None, :],
            mask=is_partial[:, :, None] & is_value[None, :, :],
            other=0.0,
        )
        new = tl.maximum(largest, tl.max(lse, 0))
        weight = tl.where(is_partial, tl.exp2(lse - new[None, :]), 0.0)
        kept = tl.exp2(largest - new)
        share = weight
        if FACTORS:
            share *= factor
            x = x.to(tl.float32)
        summed = summed * kept[:, None] + tl.sum(x * share[:, :, None], 0)
        total = total * kept + tl.sum(weight, 0)
        largest = new
    total = tl.where(total > 0, total, 1.0)
    target = out + (token.to(tl.int64) * NUM_HEADS + h)[:, None] * VALUE_DIM + d[None, :]
    tl.store(target, (summed / total[:, None]).to(out.dtype.element_ty), mask=is_value)

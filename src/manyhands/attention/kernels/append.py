"""Append the new tokens' keys, rotated, and values to paged memory: one launch a layer.

T  new tokens      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import pair_offsets


@triton.jit
def append_kernel(
    k,
    v,
    keys,
    values,
    cos,  # [T, D / 2] float32
    sin,
    key_angle,  # [T]: index on the strip
    key_page,  # [T]: first page of the strip in `pages`; negative: padding, nothing is written
    pages,
    k_token,
    k_head,
    v_token,
    v_head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,  # heads of one program
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (token, block of heads)."""
    token = tl.program_id(0)
    page_at = tl.load(key_page + token)
    angle = tl.load(key_angle + token)
    page = tl.load(pages + tl.maximum(page_at, 0) + tl.where(page_at < 0, 0, angle // PAGE))
    slot = page.to(tl.int64) * PAGE + angle % PAGE
    take_over(OVERLAP)
    if page_at < 0:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = (head < NUM_HEADS)[:, None]

    i = tl.arange(0, HALF)
    first, second = pair_offsets(i, HEAD_DIM, ROTARY_DIM, INTERLEAVED)
    is_pair = (i < HEAD_DIM // 2)[None, :]
    source = k + token.to(tl.int64) * k_token + head[:, None] * k_head
    x = tl.load(source + first[None, :], mask=is_head & is_pair, other=0.0).to(tl.float32)
    y = tl.load(source + second[None, :], mask=is_head & is_pair, other=0.0).to(tl.float32)
    c = tl.load(cos + token * (HEAD_DIM // 2) + i, mask=i < HEAD_DIM // 2, other=1.0)[None, :]
    s = tl.load(sin + token * (HEAD_DIM // 2) + i, mask=i < HEAD_DIM // 2, other=0.0)[None, :]
    target = keys + (slot * NUM_HEADS + head[:, None]) * HEAD_DIM
    dtype = keys.dtype.element_ty
    tl.store(target + first[None, :], (x * c - y * s).to(dtype), mask=is_head & is_pair)
    tl.store(target + second[None, :], (y * c + x * s).to(dtype), mask=is_head & is_pair)

    d = tl.arange(0, VALUE)
    is_value = is_head & (d < VALUE_DIM)[None, :]
    source = v + token.to(tl.int64) * v_token + head[:, None] * v_head
    value = tl.load(source + d[None, :], mask=is_value, other=0.0)
    tl.store(
        values + (slot * NUM_HEADS + head[:, None]) * VALUE_DIM + d[None, :], value, mask=is_value
    )

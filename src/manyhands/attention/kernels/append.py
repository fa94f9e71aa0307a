"""Append the new tokens' keys, rotated, and values to paged memory: one launch a layer.

T  new tokens      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.eight_bits import rounded
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import columns, rotated


@triton.jit
def append_kernel(
    k,
    v,
    keys,
    values,
    key_scales,  # [S, G] float32, read by nothing unless EIGHT_BITS
    value_scales,
    cos,  # [T, D / 2] float32
    sin,
    key_offset,  # [T]: index on the strip
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
    EIGHT_BITS: tl.constexpr,  # keys and values are int8, with scales
    KEY_STRIDE: tl.constexpr,  # from one key in memory to the next; latents lie between keys
    VALUE_STRIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (token, block of heads)."""
    token = tl.program_id(0)
    page_at = tl.load(key_page + token)
    offset = tl.load(key_offset + token)
    page = tl.load(pages + tl.maximum(page_at, 0) + tl.where(page_at < 0, 0, offset // PAGE))
    slot = page.to(tl.int64) * PAGE + offset % PAGE
    take_over(OVERLAP)
    if page_at < 0:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = (head < NUM_HEADS)[:, None]

    source = k + token.to(tl.int64) * k_token + head[:, None] * k_head
    table_at = token * (HEAD_DIM // 2)
    key = rotated(
        source, is_head, cos + table_at, sin + table_at, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF
    )
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)[None, :]
    scale_at = slot * NUM_HEADS + head
    if EIGHT_BITS:
        key, scale = rounded(key)
        tl.store(key_scales + scale_at, scale, mask=head < NUM_HEADS)
    target = keys + (slot * NUM_HEADS + head[:, None]) * KEY_STRIDE + dim
    tl.store(target, key.to(keys.dtype.element_ty), mask=is_head & (dim < HEAD_DIM))

    d = tl.arange(0, VALUE)
    is_value = is_head & (d < VALUE_DIM)[None, :]
    source = v + token.to(tl.int64) * v_token + head[:, None] * v_head
    value = tl.load(source + d[None, :], mask=is_value, other=0.0)
    if EIGHT_BITS:
        value, scale = rounded(value.to(tl.float32))
        tl.store(value_scales + scale_at, scale, mask=head < NUM_HEADS)
        value = value.to(values.dtype.element_ty)
    target = values + (slot * NUM_HEADS + head[:, None]) * VALUE_STRIDE + d[None, :]
    tl.store(target, value, mask=is_value)

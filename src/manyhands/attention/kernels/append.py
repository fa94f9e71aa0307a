"""Append the new tokens' keys, rotated, and values to paged memory: one launch a layer.

Where the norms of q's and k's heads are left to it, keys are normed on their way, and other programs norm queries in
place: a launch less. For keys in eight bits other programs make queries stand as keys do (`queries.py`): another one less.

T  new tokens      E  entries      H  query heads      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.eight_bits import rounded
from manyhands.attention.kernels.mixing import mixed
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import columns, loaded, turned
from manyhands.attention.kernels.queries import stand_some
from manyhands.attention.kernels.rms import rms, weighed


@triton.jit(do_not_specialize=["num_tokens", "num_entries"])
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
    q,  # this and the next six: touched by nothing unless NUM_QUERY_HEADS
    q_token,
    q_head,
    query_weight,  # [D]; the weights and these two: of norms that are left to this launch
    key_weight,
    query_eps,
    key_eps,
    entry_cos,  # [E, D / 2] float32; this and the next seven: touched by nothing unless STANDS
    entry_sin,
    entry_token,  # [E]
    entry_high,  # [E]; 0: padding, which does not stand
    standing,  # [E, H, D]
    scaling,
    num_tokens,
    num_entries,
    NUM_QUERY_HEADS: tl.constexpr,  # H where queries are normed or made to stand; 0: they are not
    NORMED: tl.constexpr,  # norms of heads are left to this launch
    STANDS: tl.constexpr,  # queries are made to stand as keys do, and not normed in place
    FORM: tl.constexpr,  # of the norms, see rms.py
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
    MIXINGS: tl.constexpr,  # stages in which dims of keys are mixed, see mixing.py; 0: they are not
    KEY_STRIDE: tl.constexpr,  # from one key in memory to the next; latents lie between keys
    VALUE_STRIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (token, block of heads): first the blocks of keys and values, then those of queries, by entries if they stand."""
    token = tl.program_id(0)
    BLOCKS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    if STANDS:
        if tl.program_id(1) >= BLOCKS:
            asked = (tl.program_id(1) - BLOCKS) * HEADS + tl.arange(0, HEADS)
            stand_some(
                *(entry_high, token, tl.num_programs(0), num_entries, q, entry_cos, entry_sin),
                *(entry_token, standing, q_token, q_head, scaling, query_weight, query_eps, asked),
                *(NUM_QUERY_HEADS, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF, MIXINGS, NORMED, FORM),
                OVERLAP,
            )
            return
        if token >= num_tokens:
            return
    page_at = tl.load(key_page + token)
    offset = tl.load(key_offset + token)
    page = tl.load(pages + tl.maximum(page_at, 0) + tl.where(page_at < 0, 0, offset // PAGE))
    slot = page.to(tl.int64) * PAGE + offset % PAGE
    if NORMED:
        one, n = tl.zeros([1, 1], dtype=tl.int32), tl.arange(0, 2 * HALF)[None, :]
        if not STANDS:
            w = tl.load(query_weight + n, mask=n < HEAD_DIM, other=0.0).to(tl.float32)
        w_x, w_y = loaded(key_weight + one, one == 0, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    take_over(OVERLAP)
    if page_at < 0:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    DTYPE: tl.constexpr = k.dtype.element_ty
    if NORMED and not STANDS:  # noqa: SIM102 - known when it is compiled, and the other is not
        if tl.program_id(1) >= BLOCKS:
            head -= BLOCKS * HEADS
            at = q + token.to(tl.int64) * q_token + head[:, None] * q_head + n
            is_in = (head < NUM_QUERY_HEADS)[:, None] & (n < HEAD_DIM)
            query = tl.load(at, mask=is_in, other=0.0).to(tl.float32)
            query = rms(query, w, HEAD_DIM, query_eps, FORM, DTYPE)
            tl.store(at, query.to(DTYPE), mask=is_in)
            return
    is_head = (head < NUM_HEADS)[:, None]

    source = k + token.to(tl.int64) * k_token + head[:, None] * k_head
    x, y = loaded(source, is_head, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    if NORMED:
        mean_square = tl.sum(x * x + y * y, axis=1, keep_dims=True) / HEAD_DIM
        x = weighed(x, w_x, mean_square, key_eps, FORM, DTYPE)
        y = weighed(y, w_y, mean_square, key_eps, FORM, DTYPE)
    table_at = token * (HEAD_DIM // 2)
    key = turned(x, y, is_head, cos + table_at, sin + table_at, HEAD_DIM, INTERLEAVED, HALF)
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)[None, :]
    scale_at = slot * NUM_HEADS + head
    if EIGHT_BITS:
        if MIXINGS:
            key = mixed(key, HEAD_DIM, MIXINGS)
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

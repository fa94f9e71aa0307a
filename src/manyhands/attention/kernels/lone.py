"""The attention kernel for lone rows: one item of the work list and one head per program of one warp.

Where query heads do not share key/value heads, and a strip has one reader, a tile has one row. Matrix
units take sixteen at least, and fifteen rows of nothing are instructions all the same: for one key some
2300 in a small tile, and 600 here, where the row is multiplied number by number. That matters where many
completions have just begun, hundreds of programs a processor. Further keys cost about the same in both,
and long strips are better off with more on its way at once.

    D, Dv  head dims
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.attend import LOG2E, scores_of
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import rotated, standing

KEPT = tl.constexpr("evict_first")  # no other row will read these keys and values


@triton.jit
def lone_kernel(
    q,
    keys,
    values,
    key_scales,  # [S, G] float32, read by nothing unless EIGHT_BITS
    value_scales,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,
    entry_offset,
    entry_low,
    entry_high,
    entry_partial,
    items,  # [I, 6], see work.py
    pages,
    partials,  # [P, H, Dv] float32; or the output [T, H, Dv] itself, if every token has one partial
    lses,  # [P, H] float32, in units of log 2
    q_token,
    q_head,
    scaling,
    softcap,
    window,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DIRECT: tl.constexpr,
    EIGHT_BITS: tl.constexpr,  # keys and values are int8, with scales
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (head, item)."""
    item = items + tl.program_id(1) * 6
    count = tl.load(item + 1)
    if count == 0:  # padding of the list; its first item waits all the same, see overlap.py
        if tl.program_id(1) == 0:
            take_over(OVERLAP)
        return
    head = tl.program_id(0)
    entry = tl.load(item)
    start, end = tl.load(item + 2), tl.load(item + 3)
    page_at, split = tl.load(item + 4), tl.load(item + 5)
    token = tl.load(entry_token + entry)
    offset = tl.load(entry_offset + entry)
    low = tl.load(entry_low + entry)
    end = tl.minimum(end, tl.minimum(tl.load(entry_high + entry), offset + 1))
    if HAS_WINDOW:
        low = tl.maximum(low, offset - window + 1)
        start = tl.maximum(start, low // KEYS * KEYS)

    take_over(OVERLAP)
    one = tl.zeros([1, 1], dtype=tl.int32)
    if EIGHT_BITS:  # queries stand as keys do, scaled, see queries.py
        source = q + entry.to(tl.int64) * q_token + head * q_head + one
        query = standing(source, one == 0, HEAD_DIM, HALF)
    else:
        source = q + token.to(tl.int64) * q_token + head * q_head + one
        table_at = entry.to(tl.int64) * (HEAD_DIM // 2) + one
        query = rotated(
            *(source, one == 0, cos + table_at, sin + table_at),
            *(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF),
        )
        if not HAS_SOFTCAP:
            scaling *= LOG2E
        # rounded as memory rounds its keys
        query = (query * scaling).to(q.dtype.element_ty).to(tl.float32)

    n = tl.arange(0, KEYS)
    dim = tl.arange(0, 2 * HALF)[None, :]
    d = tl.arange(0, VALUE)
    is_dim, is_value = dim < HEAD_DIM, (d < VALUE_DIM)[None, :]
    # From a tile's first slot on, the same for every tile: few instructions are left in the loop.
    k_at = keys + (n[:, None] * NUM_HEADS + head) * HEAD_DIM + dim
    v_at = values + (n[:, None] * NUM_HEADS + head) * VALUE_DIM + d[None, :]
    largest = -1e30
    total = 0.0
    summed = tl.zeros([VALUE], dtype=tl.float32)
    for key in range(start, end, KEYS):
        if PAGE % KEYS == 0:
            slot = tl.load(pages + page_at + key // PAGE).to(tl.int64) * PAGE + key % PAGE
            scale_at = (slot + n) * NUM_HEADS + head
        else:
            page = tl.load(pages + page_at + tl.minimum(key + n, end - 1) // PAGE)
            first = page.to(tl.int64) * PAGE + (key + n) % PAGE
            scale_at = first * NUM_HEADS + head
            slot = (first - n)[:, None]
        k_from, v_from = slot * (NUM_HEADS * HEAD_DIM), slot * (NUM_HEADS * VALUE_DIM)
        is_key = key + n < end
        # Scores of keys that no row reads are not looked at, but zero times their values might not be zero.
        k = tl.load(k_at + k_from, mask=is_dim, other=0.0, eviction_policy=KEPT)
        v_mask = is_key[:, None] & is_value
        v = tl.load(v_at + v_from, mask=v_mask, other=0.0, eviction_policy=KEPT)
        products = tl.sum(query * k.to(tl.float32), 1)
        if EIGHT_BITS:
            products *= tl.load(key_scales + scale_at, mask=is_key, other=0.0)
        scores = scores_of(products, softcap, HAS_SOFTCAP)
        seen = is_key & (key + n >= low)
        scores = tl.where(seen, scores, -1e30)
        new = tl.maximum(largest, tl.max(scores, 0))
        weights = tl.where(seen, tl.exp2(scores - new), 0.0)
        kept = tl.exp2(largest - new)
        total = total * kept + tl.sum(weights, 0)
        if EIGHT_BITS:
            weights *= tl.load(value_scales + scale_at, mask=is_key, other=0.0)
        summed = summed * kept + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        largest = new

    seen_any = total > 0
    summed = summed / tl.where(seen_any, total, 1.0)
    if DIRECT:
        place = token.to(tl.int64) * NUM_HEADS + head
    else:
        partial = tl.load(entry_partial + entry) + split
        place = partial.to(tl.int64) * NUM_HEADS + head
        tl.store(
            lses + place,
            tl.where(seen_any, largest + tl.log2(tl.where(seen_any, total, 1.0)), -1e30),
        )
    tl.store(
        partials + place * VALUE_DIM + d, summed.to(partials.dtype.element_ty), mask=d < VALUE_DIM
    )

"""Kernels of `attention/strips.py`: attention over strips with gradients, one tile and one head per program.

An entry is a token that reads some keys of a strip. Its query stands rotated by its own offset, keys lie rotated on
their strip's ruler, and key j is seen by an entry with low <= j < high and j <= offset (and offset - j < window).

    forward     a tile of entries walks the keys of its stretch: partial output, log-sum-exp of each entry
    of queries  the same walk; probabilities are made again from the scores and the log-sum-exp of the whole token
    of keys     a tile of keys walks the entries of its stretch, all query heads of its group

Slots belong to one stretch each, so gradients of keys and values are stored and not added.

    E  entries      T  tokens      S  slots      H  query heads      G  key/value heads      r = H / G
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _seen(key, is_key, offset, low, high, is_entry, window):
    """[entries, keys]: which keys which entries see."""
    seen = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
    seen &= (key[None, :] <= offset[:, None]) & (offset[:, None] - key[None, :] < window)
    return seen & is_key[None, :] & is_entry[:, None]


@triton.jit
def forward_kernel(
    queries,  # [E, H, D]
    keys,  # [S, G, D]
    values,  # [S, G, Dv]
    offsets,  # [E]
    lows,  # [E]
    highs,  # [E]
    tiles,  # [n, 5] first entry, how many, first key, end of keys, where the strip's slots begin
    slots,
    outs,  # [E, H, Dv] float32
    lses,  # [E, H] float32
    scaling,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D: tl.constexpr,  # powers of two
    DV: tl.constexpr,
    ENTRIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """Program (tile, query head)."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(tiles + 5 * tile), tl.load(tiles + 5 * tile + 1)
    begin, end = tl.load(tiles + 5 * tile + 2), tl.load(tiles + 5 * tile + 3)
    place = tl.load(tiles + 5 * tile + 4)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    m, n = tl.arange(0, ENTRIES), tl.arange(0, KEYS)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    is_entry = m < count
    entry = (first + m).to(tl.int64)
    offset = tl.load(offsets + entry, mask=is_entry, other=0)
    low = tl.load(lows + entry, mask=is_entry, other=0)
    high = tl.load(highs + entry, mask=is_entry, other=0)
    row = (entry * NUM_HEADS + head)[:, None]
    q = tl.load(queries + row * DIM + d, mask=is_entry[:, None] & (d < DIM), other=0.0)
    largest = tl.full([ENTRIES], -1e30, dtype=tl.float32)
    total = tl.zeros([ENTRIES], dtype=tl.float32)
    summed = tl.zeros([ENTRIES, DV], dtype=tl.float32)
    for start in range(begin, end, KEYS):
        key = start + n
        is_key = key < end
        slot = tl.load(slots + place + key, mask=is_key, other=0).to(tl.int64)
        at = (slot * NUM_KV_HEADS + kv_head)[:, None]
        k = tl.load(keys + at * DIM + d, mask=is_key[:, None] & (d < DIM), other=0.0)
        v = tl.load(
            values + at * VALUE_DIM + dv, mask=is_key[:, None] & (dv < VALUE_DIM), other=0.0
        )
        seen = _seen(key, is_key, offset, low, high, is_entry, window)
        scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling, -1e30)
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp(scores - new[:, None]), 0.0)
        kept = tl.exp(largest - new)
        total = total * kept + tl.sum(weights, 1)
        summed = summed * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = new
    sees = total > 0
    total = tl.where(sees, total, 1.0)
    tl.store(
        outs + row * VALUE_DIM + dv,
        summed / total[:, None],
        mask=is_entry[:, None] & (dv < VALUE_DIM),
    )
    lse = tl.where(sees, largest + tl.log(total), -1e30)
    tl.store(lses + entry * NUM_HEADS + head, lse, mask=is_entry)


@triton.jit
def of_queries_kernel(
    queries,  # [E, H, D]
    keys,
    values,
    offsets,
    lows,
    highs,
    tokens,  # [E]
    tiles,  # as in the forward kernel
    slots,
    of_outs,  # [T, H, Dv] gradients of the merged outputs
    lses,  # [T, H] float32: of whole tokens
    deltas,  # [T, H] float32: outputs times their gradients, summed
    of_queries,  # [E, H, D] float32
    scaling,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    ENTRIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """Program (tile, query head)."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(tiles + 5 * tile), tl.load(tiles + 5 * tile + 1)
    begin, end = tl.load(tiles + 5 * tile + 2), tl.load(tiles + 5 * tile + 3)
    place = tl.load(tiles + 5 * tile + 4)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    m, n = tl.arange(0, ENTRIES), tl.arange(0, KEYS)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    is_entry = m < count
    entry = (first + m).to(tl.int64)
    offset = tl.load(offsets + entry, mask=is_entry, other=0)
    low = tl.load(lows + entry, mask=is_entry, other=0)
    high = tl.load(highs + entry, mask=is_entry, other=0)
    token = tl.load(tokens + entry, mask=is_entry, other=0).to(tl.int64)
    row = (entry * NUM_HEADS + head)[:, None]
    whole = token * NUM_HEADS + head
    q = tl.load(queries + row * DIM + d, mask=is_entry[:, None] & (d < DIM), other=0.0)
    do = tl.load(
        of_outs + whole[:, None] * VALUE_DIM + dv,
        mask=is_entry[:, None] & (dv < VALUE_DIM),
        other=0.0,
    )
    lse = tl.load(lses + whole, mask=is_entry, other=0.0)
    delta = tl.load(deltas + whole, mask=is_entry, other=0.0)
    dq = tl.zeros([ENTRIES, D], dtype=tl.float32)
    for start in range(begin, end, KEYS):
        key = start + n
        is_key = key < end
        slot = tl.load(slots + place + key, mask=is_key, other=0).to(tl.int64)
        at = (slot * NUM_KV_HEADS + kv_head)[:, None]
        k = tl.load(keys + at * DIM + d, mask=is_key[:, None] & (d < DIM), other=0.0)
        v = tl.load(
            values + at * VALUE_DIM + dv, mask=is_key[:, None] & (dv < VALUE_DIM), other=0.0
        )
        seen = _seen(key, is_key, offset, low, high, is_entry, window)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
        p = tl.where(seen, tl.exp(tl.where(seen, scores - lse[:, None], 0.0)), 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision=PRECISION) - delta[:, None]) * scaling
        dq += tl.dot(ds.to(k.dtype), k, input_precision=PRECISION)
    tl.store(of_queries + row * DIM + d, dq, mask=is_entry[:, None] & (d < DIM))


@triton.jit
def of_keys_kernel(
    queries,
    keys,
    values,
    offsets,
    lows,
    highs,
    tokens,
    tiles,  # [n, 5] first key, how many, first entry, end of entries, where the strip's slots begin
    slots,
    of_outs,
    lses,
    deltas,
    of_keys,  # [S, G, D]
    of_values,  # [S, G, Dv]
    scaling,
    window,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    ENTRIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,  # of products of float32 numbers
):
    """Program (tile, key/value head)."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(tiles + 5 * tile), tl.load(tiles + 5 * tile + 1)
    begin, end = tl.load(tiles + 5 * tile + 2), tl.load(tiles + 5 * tile + 3)
    place = tl.load(tiles + 5 * tile + 4)
    m, n = tl.arange(0, ENTRIES), tl.arange(0, KEYS)
    d, dv = tl.arange(0, D), tl.arange(0, DV)
    is_key = n < count
    key = first + n
    slot = tl.load(slots + place + key, mask=is_key, other=0).to(tl.int64)
    at = (slot * NUM_KV_HEADS + kv_head)[:, None]
    k = tl.load(keys + at * DIM + d, mask=is_key[:, None] & (d < DIM), other=0.0)
    v = tl.load(values + at * VALUE_DIM + dv, mask=is_key[:, None] & (dv < VALUE_DIM), other=0.0)
    dk = tl.zeros([KEYS, D], dtype=tl.float32)
    dvalue = tl.zeros([KEYS, DV], dtype=tl.float32)
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    for start in range(begin, end, ENTRIES):
        entry = (start + m).to(tl.int64)
        is_entry = start + m < end
        offset = tl.load(offsets + entry, mask=is_entry, other=0)
        low = tl.load(lows + entry, mask=is_entry, other=0)
        high = tl.load(highs + entry, mask=is_entry, other=0)
        token = tl.load(tokens + entry, mask=is_entry, other=0).to(tl.int64)
        seen = _seen(key, is_key, offset, low, high, is_entry, window)
        for member in range(group):
            head = kv_head * group + member
            row = (entry * NUM_HEADS + head)[:, None]
            whole = token * NUM_HEADS + head
            q = tl.load(queries + row * DIM + d, mask=is_entry[:, None] & (d < DIM), other=0.0)
            do = tl.load(
                of_outs + whole[:, None] * VALUE_DIM + dv,
                mask=is_entry[:, None] & (dv < VALUE_DIM),
                other=0.0,
            )
            lse = tl.load(lses + whole, mask=is_entry, other=0.0)
            delta = tl.load(deltas + whole, mask=is_entry, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scaling
            p = tl.where(seen, tl.exp(tl.where(seen, scores - lse[:, None], 0.0)), 0.0)
            dvalue += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision=PRECISION)
            ds = p * (tl.dot(do, tl.trans(v), input_precision=PRECISION) - delta[:, None]) * scaling
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
    tl.store(of_keys + at * DIM + d, dk, mask=is_key[:, None] & (d < DIM))
    tl.store(of_values + at * VALUE_DIM + dv, dvalue, mask=is_key[:, None] & (dv < VALUE_DIM))

"""Kernels of attention with gradients: all rows of all passes of recorded runs, in one launch a step.

A query meets several strips, and is rotated anew for each. So the unit of work is the *entry*, a token and
a strip that it reads (`attention/entries.py`), and entries that read the same keys stand together. Slots
are ordered by strip too, so an entry sees one interval of slots, low to high, and a tile of entries one
interval that covers theirs. Query heads that share a key head are rows of one tile, as in FlashAttention's
grouped form.

    partial   softmax of each entry over its interval: an output and a log-sum-exp
    join      the partials of a token, merged: the output, and the log-sum-exp over all it reads
    queries   gradients of the queries, entry by entry, rotated back
    add       the entries of a token, added up
    keys      gradients of keys and values, slot by slot

Backward, an entry needs nothing of its own: with the log-sum-exp over all that a token reads, its weights are
those of one softmax, and the equations are FlashAttention 2's (Dao 2023, algorithm 2).

    T  tokens      E  entries      S  slots      H  query heads      G  key heads      r = H / G
    D  head dim of queries and keys, in two halves that rotations pair      Dv  head dim of values
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-1e30)


@triton.jit
def _turned(
    x,
    at,
    offset,
    is_row,
    cos,
    sin,
    d,
    HALF: tl.constexpr,
    PAIR: tl.constexpr,
    ROTATES: tl.constexpr,
):
    """Both halves [rows, D / 2] of queries at `at` [rows], rotated by `offset`, in their dtype.

    PAIR: 1 where pairs are neighbours (2i, 2i + 1), HALF where they are (i, i + HALF).
    """
    step: tl.constexpr = 1 if PAIR == HALF else 2
    place = at[:, None] + (d * step)[None, :]
    first = tl.load(x + place, mask=is_row[:, None], other=0.0)
    second = tl.load(x + place + PAIR, mask=is_row[:, None], other=0.0)
    if ROTATES:
        angle = offset.to(tl.int64)[:, None] * HALF + d[None, :]
        c = tl.load(cos + angle, mask=is_row[:, None], other=1.0)
        s = tl.load(sin + angle, mask=is_row[:, None], other=0.0)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first, second = (a * c - b * s).to(first.dtype), (b * c + a * s).to(second.dtype)
    return first, second


@triton.jit
def partial_kernel(
    q,  # [T, H, D], not rotated
    k,  # [S, G, D], rotated
    v,  # [S, G, Dv]
    token,  # [E]
    offset,  # [E]: the rotation of the query
    low,  # [E]
    high,  # [E]
    tile_low,  # [tiles]
    tile_high,  # [tiles]
    cos,  # [offsets, D / 2] float32
    sin,
    out,  # [E, H, Dv]
    lse,  # [E, H] float32, in units of log 2
    num_rows,  # E * r
    scale,  # of scores, in units of log 2
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAIR: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, key head)."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    step: tl.constexpr = 1 if PAIR == HALF else 2
    tile, g = tl.program_id(0), tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    entry = row // group
    head = g * group + row % group
    d, e = tl.arange(0, HALF), tl.arange(0, VALUE_DIM)
    here = tl.load(token + entry, mask=is_row, other=0).to(tl.int64) * NUM_HEADS + head
    turn = tl.load(offset + entry, mask=is_row, other=0)
    lo = tl.load(low + entry, mask=is_row, other=0)
    hi = tl.load(high + entry, mask=is_row, other=0)
    q1, q2 = _turned(q, here * (2 * HALF), turn, is_row, cos, sin, d, HALF, PAIR, ROTATES)

    largest = tl.full([ROWS], NOTHING, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    summed = tl.zeros([ROWS, VALUE_DIM], dtype=tl.float32)
    begin, end = tl.load(tile_low + tile), tl.load(tile_high + tile)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end
        lies = (key.to(tl.int64) * NUM_KV_HEADS + g)[:, None]
        k_at = k + lies * (2 * HALF) + (d * step)[None, :]
        k1 = tl.load(k_at, mask=is_key[:, None], other=0.0)
        k2 = tl.load(k_at + PAIR, mask=is_key[:, None], other=0.0)
        score = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
        score = tl.dot(q2, tl.trans(k2), score, input_precision=PRECISION) * scale
        seen = (key[None, :] >= lo[:, None]) & (key[None, :] < hi[:, None])
        score = tl.where(seen, score, NOTHING)
        new = tl.maximum(largest, tl.max(score, 1))
        weight = tl.where(seen, tl.exp2(score - new[:, None]), 0.0)
        kept = tl.exp2(largest - new)
        x = tl.load(v + lies * VALUE_DIM + e[None, :], mask=is_key[:, None], other=0.0)
        summed = summed * kept[:, None]
        summed = tl.dot(weight.to(x.dtype), x, summed, input_precision=PRECISION)
        total = total * kept + tl.sum(weight, 1)
        largest = new
    divisor = tl.where(total > 0, total, 1.0)
    target = entry.to(tl.int64) * NUM_HEADS + head
    value = (summed / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * VALUE_DIM + e[None, :], value, mask=is_row[:, None])
    tl.store(lse + target, tl.where(total > 0, largest + tl.log2(divisor), NOTHING), mask=is_row)


@triton.jit
def join_kernel(
    partials,  # [E, H, Dv]
    lses,  # [E, H]
    by_token,  # [E]: the entries of token 0, of token 1, ...
    token_indptr,  # [T + 1]
    out,  # [T, H, Dv]
    lse,  # [T, H] float32
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS: tl.constexpr,  # of one program
):
    """Program (token, HEADS heads)."""
    token = tl.program_id(0)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    e = tl.arange(0, VALUE_DIM)
    is_head = h < NUM_HEADS
    largest = tl.full([HEADS], NOTHING, dtype=tl.float32)
    total = tl.zeros([HEADS], dtype=tl.float32)
    summed = tl.zeros([HEADS, VALUE_DIM], dtype=tl.float32)
    for i in range(tl.load(token_indptr + token), tl.load(token_indptr + token + 1)):
        at = tl.load(by_token + i).to(tl.int64) * NUM_HEADS + h
        one = tl.load(lses + at, mask=is_head, other=NOTHING)
        x = tl.load(
            partials + at[:, None] * VALUE_DIM + e[None, :], mask=is_head[:, None], other=0.0
        )
        new = tl.maximum(largest, one)
        kept, weight = tl.exp2(largest - new), tl.where(one > NOTHING, tl.exp2(one - new), 0.0)
        summed = summed * kept[:, None] + x.to(tl.float32) * weight[:, None]
        total = total * kept + weight
        largest = new
    divisor = tl.where(total > 0, total, 1.0)
    target = token.to(tl.int64) * NUM_HEADS + h
    value = (summed / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * VALUE_DIM + e[None, :], value, mask=is_head[:, None])
    tl.store(lse + target, largest + tl.log2(divisor), mask=is_head)


@triton.jit
def queries_kernel(
    q,
    k,
    v,
    token,
    offset,
    low,
    high,
    tile_low,
    tile_high,
    cos,
    sin,
    lse,  # [T, H], of all that a token reads
    grad,  # [T, H, Dv] of the output
    delta,  # [T, H] float32: sum of output times its gradient
    grad_q,  # [E, H, D], rotated back
    num_rows,
    scale,  # in units of log 2
    scaling,  # the same in natural units
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAIR: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, key head)."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    step: tl.constexpr = 1 if PAIR == HALF else 2
    tile, g = tl.program_id(0), tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    entry = row // group
    head = g * group + row % group
    d, e = tl.arange(0, HALF), tl.arange(0, VALUE_DIM)
    here = tl.load(token + entry, mask=is_row, other=0).to(tl.int64) * NUM_HEADS + head
    turn = tl.load(offset + entry, mask=is_row, other=0)
    lo = tl.load(low + entry, mask=is_row, other=0)
    hi = tl.load(high + entry, mask=is_row, other=0)
    q1, q2 = _turned(q, here * (2 * HALF), turn, is_row, cos, sin, d, HALF, PAIR, ROTATES)
    do = tl.load(grad + here[:, None] * VALUE_DIM + e[None, :], mask=is_row[:, None], other=0.0)
    total = tl.load(lse + here, mask=is_row, other=0.0)
    less = tl.load(delta + here, mask=is_row, other=0.0)

    dq1 = tl.zeros([ROWS, HALF], dtype=tl.float32)
    dq2 = tl.zeros([ROWS, HALF], dtype=tl.float32)
    begin, end = tl.load(tile_low + tile), tl.load(tile_high + tile)
    for first in range(begin, end, KEYS):
        key = first + tl.arange(0, KEYS)
        is_key = key < end
        lies = (key.to(tl.int64) * NUM_KV_HEADS + g)[:, None]
        k_at = k + lies * (2 * HALF) + (d * step)[None, :]
        k1 = tl.load(k_at, mask=is_key[:, None], other=0.0)
        k2 = tl.load(k_at + PAIR, mask=is_key[:, None], other=0.0)
        x = tl.load(v + lies * VALUE_DIM + e[None, :], mask=is_key[:, None], other=0.0)
        score = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
        score = tl.dot(q2, tl.trans(k2), score, input_precision=PRECISION) * scale
        seen = (key[None, :] >= lo[:, None]) & (key[None, :] < hi[:, None])
        weight = tl.where(seen, tl.exp2(tl.where(seen, score - total[:, None], 0.0)), 0.0)
        inner = tl.dot(do, tl.trans(x), input_precision=PRECISION)
        ds = (weight * (inner - less[:, None]) * scaling).to(k1.dtype)
        dq1 = tl.dot(ds, k1, dq1, input_precision=PRECISION)
        dq2 = tl.dot(ds, k2, dq2, input_precision=PRECISION)
    if ROTATES:
        angle = turn.to(tl.int64)[:, None] * HALF + d[None, :]
        c = tl.load(cos + angle, mask=is_row[:, None], other=1.0)
        s = tl.load(sin + angle, mask=is_row[:, None], other=0.0)
        dq1, dq2 = dq1 * c + dq2 * s, dq2 * c - dq1 * s
    target = (entry.to(tl.int64) * NUM_HEADS + head)[:, None] * (2 * HALF) + (d * step)[None, :]
    tl.store(grad_q + target, dq1.to(grad_q.dtype.element_ty), mask=is_row[:, None])
    tl.store(grad_q + target + PAIR, dq2.to(grad_q.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def add_kernel(
    parts,  # [E, N]
    by_token,  # [E]
    token_indptr,  # [T + 1]
    out,  # [T, N]
    WIDTH,  # N
    BLOCK: tl.constexpr,
):
    """Program (token, BLOCK numbers)."""
    token = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_one = n < WIDTH
    summed = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(tl.load(token_indptr + token), tl.load(token_indptr + token + 1)):
        entry = tl.load(by_token + i).to(tl.int64)
        summed += tl.load(parts + entry * WIDTH + n, mask=is_one, other=0.0).to(tl.float32)
    target = out + token.to(tl.int64) * WIDTH + n
    tl.store(target, summed.to(out.dtype.element_ty), mask=is_one)


@triton.jit
def keys_kernel(
    q,
    k,
    v,
    token,
    offset,
    low,
    high,
    tile_low,
    tile_high,
    cos,
    sin,
    lse,
    grad,
    delta,
    first_tile,  # [S / KEYS]: the first tile of rows that reads these keys
    last_tile,  # [S / KEYS]: one past the last
    grad_k,  # [S, G, D]
    grad_v,  # [S, G, Dv]
    num_rows,
    num_slots,
    scale,
    scaling,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAIR: tl.constexpr,
    ROTATES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (KEYS slots, key head)."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    step: tl.constexpr = 1 if PAIR == HALF else 2
    block, g = tl.program_id(0), tl.program_id(1)
    d, e = tl.arange(0, HALF), tl.arange(0, VALUE_DIM)
    key = block * KEYS + tl.arange(0, KEYS)
    is_key = key < num_slots
    lies = (key.to(tl.int64) * NUM_KV_HEADS + g)[:, None]
    k_at = lies * (2 * HALF) + (d * step)[None, :]
    k1 = tl.load(k + k_at, mask=is_key[:, None], other=0.0)
    k2 = tl.load(k + k_at + PAIR, mask=is_key[:, None], other=0.0)
    x = tl.load(v + lies * VALUE_DIM + e[None, :], mask=is_key[:, None], other=0.0)
    dk1 = tl.zeros([KEYS, HALF], dtype=tl.float32)
    dk2 = tl.zeros([KEYS, HALF], dtype=tl.float32)
    dv = tl.zeros([KEYS, VALUE_DIM], dtype=tl.float32)
    for tile in range(tl.load(first_tile + block), tl.load(last_tile + block)):
        is_read = (tl.load(tile_low + tile) < (block + 1) * KEYS) & (
            tl.load(tile_high + tile) > block * KEYS
        )
        if is_read:
            row = tile * ROWS + tl.arange(0, ROWS)
            is_row = row < num_rows
            entry = row // group
            head = g * group + row % group
            here = tl.load(token + entry, mask=is_row, other=0).to(tl.int64) * NUM_HEADS + head
            turn = tl.load(offset + entry, mask=is_row, other=0)
            lo = tl.load(low + entry, mask=is_row, other=0)
            hi = tl.load(high + entry, mask=is_row, other=0)
            q1, q2 = _turned(q, here * (2 * HALF), turn, is_row, cos, sin, d, HALF, PAIR, ROTATES)
            do = tl.load(
                grad + here[:, None] * VALUE_DIM + e[None, :], mask=is_row[:, None], other=0.0
            )
            total = tl.load(lse + here, mask=is_row, other=0.0)
            less = tl.load(delta + here, mask=is_row, other=0.0)
            score = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)
            score = tl.dot(q2, tl.trans(k2), score, input_precision=PRECISION) * scale
            seen = (key[None, :] >= lo[:, None]) & (key[None, :] < hi[:, None])
            weight = tl.where(seen, tl.exp2(tl.where(seen, score - total[:, None], 0.0)), 0.0)
            dv = tl.dot(tl.trans(weight.to(do.dtype)), do, dv, input_precision=PRECISION)
            inner = tl.dot(do, tl.trans(x), input_precision=PRECISION)
            ds = tl.trans((weight * (inner - less[:, None]) * scaling).to(q1.dtype))
            dk1 = tl.dot(ds, q1, dk1, input_precision=PRECISION)
            dk2 = tl.dot(ds, q2, dk2, input_precision=PRECISION)
    kind = grad_k.dtype.element_ty
    tl.store(grad_k + k_at, dk1.to(kind), mask=is_key[:, None])
    tl.store(grad_k + k_at + PAIR, dk2.to(kind), mask=is_key[:, None])
    tl.store(
        grad_v + lies * VALUE_DIM + e[None, :],
        dv.to(grad_v.dtype.element_ty),
        mask=is_key[:, None],
    )

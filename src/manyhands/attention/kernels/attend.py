"""The attention kernel: one item of the work list and one key/value head per program.

The tile's rows are its entries times the query heads of the group: row m is head m % r of entry m // r.
A query is rotated by its entry's offset when it is loaded; keys lie rotated in memory. Keys are walked
in tiles, softmax is kept running (largest score, sum, weighted values), scores in float32 and in units
of log 2. In large tiles, where arithmetic is what takes time, nothing is masked as long as every row
sees every key; only the edges are (first and last keys, the causal diagonal, a window's end). Most
small tiles wait for memory anyway, and mask everywhere. Programs start in the order of the list, the
heads of an item side by side: they read the same slots.

Hopper's matrix units want 64 rows on the left of a product. With fewer, tiles get the older ones and
twice the instructions. Transposed, scores are [keys, rows] and the summed values [Dv, rows]: keys and
values stand on the left, and the rows may be few.

Latents (`attention/latents.py`) are keys and values at once: a tile of them is loaded once, as values, and its products
with the rest of the query are added to those of the rotated keys. Their one key/value head has many query heads, which
are cut into parts: a program is for a part in the place of a key/value head.

Keys and values in eight bits come as words of two dims, if heads allow it (`kernels/eight_bits.py`). Query and sums are in two parts
then, one for even dims and one for odd ones.

    r  query heads per key/value head      D, Dv  head dims
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.eight_bits import parted
from manyhands.attention.kernels.overlap import end_beside, take_over
from manyhands.attention.kernels.pairs import rotated, standing

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def scores_of(products, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores in units of log 2, of products whose queries were scaled."""
    scores = products
    if HAS_SOFTCAP:
        # tanh by exp: 1 - 2 / (e^2z + 1), which is right at both ends
        scores = softcap * (1 - 2 / (tl.exp2(scores / softcap * LOG2E * 2) + 1)) * LOG2E
    return scores


@triton.jit
def _of_rows(x, TRANSPOSED: tl.constexpr):
    """Values of which every row has one [ROWS], as the scores of a tile stand."""
    if TRANSPOSED:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def _of_keys(x, TRANSPOSED: tl.constexpr):
    """Values of which every key has one [KEYS], as the scores of a tile stand."""
    if TRANSPOSED:
        return x[:, None]
    else:
        return x[None, :]


@triton.jit
def _at(slot, kv_head, NUM_KV_HEADS: tl.constexpr, LATENT: tl.constexpr):
    """The place of a slot's key and value of one head, counted in heads."""
    if LATENT:
        return slot
    else:
        return slot * NUM_KV_HEADS + kv_head


@triton.jit
def _tally(
    query,  # [ROWS, 2 HALF], transposed [2 HALF, ROWS]
    rest,  # for latents [ROWS, VALUE], transposed [VALUE, ROWS]; the odd dims of WORDS; else read by nothing
    k,
    v,
    seen,  # which row sees which key; None: all see all
    largest,  # [ROWS]
    total,  # [ROWS]; transposed [KEYS, ROWS], to be added up at the end
    summed,  # [ROWS, VALUE], transposed [VALUE, ROWS]; of WORDS the even dims
    odd,  # of WORDS the odd dims; else read by nothing
    key_scale,  # [KEYS], read by nothing unless EIGHT_BITS
    value_scale,
    softcap,
    HAS_SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,  # `seen` is there
    EIGHT_BITS: tl.constexpr,  # scales are there
    WORDS: tl.constexpr,  # keys and values are words of two dims
    TRANSPOSED: tl.constexpr,
    LATENT: tl.constexpr,
):
    """The running softmax with one more tile of keys."""
    if WORDS:
        k_even, k_odd = parted(k, query.dtype)
        products = tl.dot(query, tl.trans(k_even), input_precision="ieee")
        products = tl.dot(rest, tl.trans(k_odd), acc=products, input_precision="ieee")
    elif TRANSPOSED:
        products = tl.dot(k, query, input_precision="ieee")
        if LATENT:
            products = tl.dot(v, rest, acc=products, input_precision="ieee")
    else:
        products = tl.dot(query, tl.trans(k), input_precision="ieee")
        if LATENT:
            products = tl.dot(rest, tl.trans(v), acc=products, input_precision="ieee")
    if EIGHT_BITS:
        products *= _of_keys(key_scale, TRANSPOSED)
    scores = scores_of(products, softcap, HAS_SOFTCAP)
    if MASKED:
        scores = tl.where(seen, scores, -1e30)
    new = tl.maximum(largest, tl.max(scores, 0 if TRANSPOSED else 1))
    weights = tl.exp2(scores - _of_rows(new, TRANSPOSED))
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    kept = tl.exp2(largest - new)
    summed *= _of_rows(kept, TRANSPOSED)
    if TRANSPOSED:
        total = total * kept[None, :] + weights
        if EIGHT_BITS:
            weights *= value_scale[:, None]
        summed = tl.dot(tl.trans(v), weights.to(v.dtype), acc=summed, input_precision="ieee")
    else:
        total = total * kept + tl.sum(weights, 1)
        if EIGHT_BITS:
            weights *= value_scale[None, :]
        if WORDS:
            v_even, v_odd = parted(v, query.dtype)
            weights = weights.to(query.dtype)
            odd = tl.dot(weights, v_odd, acc=odd * kept[:, None], input_precision="ieee")
            summed = tl.dot(weights, v_even, acc=summed, input_precision="ieee")
        else:
            summed = tl.dot(weights.to(v.dtype), v, acc=summed, input_precision="ieee")
    return new, total, summed, odd


@triton.jit
def _page(pages, page_at, key, n, end, PAGE: tl.constexpr, KEYS: tl.constexpr):
    """The page of the tile that begins at `key`, or of each of its keys where pages are smaller.

    Keys from `end` on are read by no row; for them any page of the strip will do.
    """
    if PAGE % KEYS == 0:
        return tl.load(pages + page_at + key // PAGE)
    else:
        return tl.load(pages + page_at + tl.minimum(key + n, end - 1) // PAGE)


@triton.jit
def _slots(page, key, n, PAGE: tl.constexpr, KEYS: tl.constexpr):
    """Slots [KEYS] of the tile that begins at `key`."""
    if PAGE % KEYS == 0:
        return page.to(tl.int64) * PAGE + key % PAGE + n
    else:
        return page.to(tl.int64) * PAGE + (key + n) % PAGE


@triton.jit
def attend_kernel(
    q,
    keys,
    values,
    key_scales,  # [S, G] float32, read by nothing unless EIGHT_BITS
    value_scales,
    key_map,  # tensor maps of keys and values, or nothing
    value_map,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,
    entry_offset,
    entry_low,
    entry_high,
    entry_partial,
    items,  # [I, 6], see work.py
    pages,
    partials,  # [P, H, Dv], see merge.py; or the output [T, H, Dv] itself, if every token has one partial
    lses,  # [P, H] float32, or [P, H, 2], see merge.py
    q_token,
    q_head,
    scaling,
    softcap,
    window,
    out,  # [T, H, Dv], written to if LEAVES
    sinks,  # [H], read if HAS_SINKS
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DIRECT: tl.constexpr,
    LEAVES: tl.constexpr,  # outputs of tokens whose partials are below 0
    HAS_SINKS: tl.constexpr,  # of outputs that are left at once; else merging knows them
    BESIDE: tl.constexpr,  # the launch in front goes on meanwhile, see overlap.py
    TWO_WALKS: tl.constexpr,  # walk tiles of keys without masks apart from those with
    MAPPED: tl.constexpr,  # load the former by tensor maps
    TRANSPOSED: tl.constexpr,  # scores are [KEYS, ROWS]
    EIGHT_BITS: tl.constexpr,  # keys and values are int8, with scales; never by tensor maps
    WORDS: tl.constexpr,  # these are given as int16, two dims each; never transposed
    LATENT: tl.constexpr,  # values are latents, and part of the keys; NUM_KV_HEADS parts of one head
    KEY_STRIDE: tl.constexpr,  # from one key in memory to the next
    VALUE_STRIDE: tl.constexpr,
    DOT: tl.constexpr,  # the dtype that products are made in
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (key/value head, item)."""
    item = items + tl.program_id(1) * 6
    count = tl.load(item + 1)
    if count == 0:  # padding of the list; its first item waits all the same, see overlap.py
        if tl.program_id(1) == 0:
            take_over(OVERLAP)
        return
    kv_head = tl.program_id(0)
    first_entry = tl.load(item)
    key_start, key_end = tl.load(item + 2), tl.load(item + 3)
    page_at, split = tl.load(item + 4), tl.load(item + 5)

    m = tl.arange(0, ROWS)
    is_row = m // GROUP < count
    entry = first_entry + tl.minimum(m // GROUP, count - 1)  # rows to spare repeat the last entry
    head = kv_head * GROUP + m % GROUP
    token = tl.load(entry_token + entry)
    offset = tl.load(entry_offset + entry)
    low, high = tl.load(entry_low + entry), tl.load(entry_high + entry)
    last = tl.minimum(high, offset + 1)  # one past the last key of each row
    if HAS_WINDOW:
        low = tl.maximum(low, offset - window + 1)

    # Keys that any row sees lie between `start` and `end`; what all of them see ...
    start = key_start
    if HAS_WINDOW:
        start = tl.maximum(start, tl.min(low, 0) // KEYS * KEYS)
    end = tl.minimum(key_end, tl.max(last, 0))
    # ... between `all_start` and `all_end`, in whole tiles.
    all_start = (tl.maximum(tl.max(low, 0), start) + KEYS - 1) // KEYS * KEYS
    all_end = tl.minimum(tl.min(last, 0), end) // KEYS * KEYS
    all_end = tl.maximum(all_end, all_start)

    # Pages and the places of partials are looked up beside the entries: later, each would be a wait of its own.
    n = tl.arange(0, KEYS)
    if TWO_WALKS:
        page = _page(
            pages, page_at, tl.where(all_start < all_end, all_start, key_start), n, end, PAGE, KEYS
        )
        num_before = tl.maximum((tl.minimum(all_start, end) - start + KEYS - 1) // KEYS, 0)
        num_behind = tl.where(all_start < end, (end - all_end + KEYS - 1) // KEYS, 0)
    else:
        num_before = tl.maximum((end - start + KEYS - 1) // KEYS, 0)
        num_behind = 0
        all_end = end
    num_edges = num_before + num_behind
    if TWO_WALKS or HAS_WINDOW:
        first_edge = tl.where(num_before > 0, start, tl.where(num_behind > 0, all_end, key_start))
    else:
        first_edge = key_start  # known at once: its page is looked up beside the entries
    edge = _page(pages, page_at, first_edge, n, end, PAGE, KEYS)
    if DIRECT:
        place = token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head
    else:
        partial = tl.load(entry_partial + entry)
        is_left = partial < 0
        partial += split
        if LEAVES:
            partial = tl.where(is_left, token, partial)
        place = partial.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head

    take_over(OVERLAP, BESIDE)
    if EIGHT_BITS:  # queries stand as keys do, scaled, see queries.py
        source = q + entry.to(tl.int64)[:, None] * q_token + head[:, None] * q_head
        query = standing(source, is_row[:, None], HEAD_DIM, HALF, BESIDE)
        query = query.to(DOT)
    else:
        source = q + token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head
        table_at = entry.to(tl.int64)[:, None] * (HEAD_DIM // 2)
        query = rotated(
            source,
            is_row[:, None],
            cos + table_at,
            sin + table_at,
            HEAD_DIM,
            ROTARY_DIM,
            INTERLEAVED,
            HALF,
            BESIDE,
        )
        if not HAS_SOFTCAP:
            scaling *= LOG2E
        # rounded as memory rounds its keys
        query = (query * scaling).to(q.dtype.element_ty).to(DOT)
    rest = query
    if LATENT:
        c = tl.arange(0, VALUE)
        is_rest = is_row[:, None] & (c < VALUE_DIM)[None, :]
        rest = tl.load(source + HEAD_DIM + c[None, :], mask=is_rest, other=0.0).to(tl.float32)
        rest = (rest * scaling).to(q.dtype.element_ty).to(DOT)

    d = tl.arange(0, VALUE)
    if WORDS:
        query, rest = tl.split(tl.reshape(query, (ROWS, HALF, 2)))
        dim = tl.arange(0, HALF)
        is_dim = (dim < HALF)[None, :]
        value = tl.arange(0, VALUE // 2)
        is_value = (value < VALUE // 2)[None, :]
    else:
        dim = tl.arange(0, 2 * HALF)
        is_dim = (dim < HEAD_DIM)[None, :]
        value = d
        is_value = (value < VALUE_DIM)[None, :]
    # In words, if keys and values are.
    KEY_STEP: tl.constexpr = KEY_STRIDE // 2 if WORDS else KEY_STRIDE
    VALUE_STEP: tl.constexpr = VALUE_STRIDE // 2 if WORDS else VALUE_STRIDE
    largest = tl.full([ROWS], -1e30, dtype=tl.float32)
    total = tl.zeros([KEYS, ROWS] if TRANSPOSED else [ROWS], dtype=tl.float32)
    if WORDS:
        summed = tl.zeros([ROWS, VALUE // 2], dtype=tl.float32)
        odd = tl.zeros([ROWS, VALUE // 2], dtype=tl.float32)
    else:
        summed = tl.zeros([VALUE, ROWS] if TRANSPOSED else [ROWS, VALUE], dtype=tl.float32)
        odd = 0.0
    if TRANSPOSED:
        query = tl.trans(query)
        if LATENT:
            rest = tl.trans(rest)

    if TWO_WALKS:
        # Enough arithmetic that masks would cost: first the tiles that every row sees all of ...
        for key in range(all_start, all_end, KEYS):
            here = page
            key_scale = 0.0
            value_scale = 0.0
            # Looked up one tile ahead: keys are loaded without waiting for their page's number.
            page = _page(pages, page_at, tl.minimum(key + KEYS, all_end - KEYS), n, end, PAGE, KEYS)
            if MAPPED:
                first = (here * PAGE + key % PAGE).to(tl.int32)
                k = key_map.load([first, kv_head * HEAD_DIM]).to(DOT)
                v = value_map.load([first, kv_head * VALUE_DIM]).to(DOT)
            else:
                slot = _slots(here, key, n, PAGE, KEYS)
                scale_at = _at(slot, kv_head, NUM_KV_HEADS, LATENT)
                if EIGHT_BITS:
                    key_scale = tl.load(key_scales + scale_at)
                    value_scale = tl.load(value_scales + scale_at)
                at = scale_at[:, None]
                at_key, at_value = at * KEY_STEP + dim[None, :], at * VALUE_STEP + value[None, :]
                k = tl.load(keys + at_key, mask=is_dim, other=0)
                v = tl.load(values + at_value, mask=is_value, other=0)
                if not WORDS:
                    k, v = k.to(DOT), v.to(DOT)
            largest, total, summed, odd = _tally(
                query,
                rest,
                k,
                v,
                None,
                largest,
                total,
                summed,
                odd,
                key_scale,
                value_scale,
                softcap,
                HAS_SOFTCAP,
                False,
                EIGHT_BITS,
                WORDS,
                TRANSPOSED,
                LATENT,
            )
    # ... then those before and behind them. Keys of small tiles are hardly loaded by other programs: they need not stay
    # in the cache.
    KEPT: tl.constexpr = "" if TWO_WALKS else "evict_first"
    for tile in range(num_edges):
        behind = all_end + (tile - num_before) * KEYS
        key = tl.where(tile < num_before, start + tile * KEYS, behind)
        slot = _slots(edge, key, n, PAGE, KEYS)
        next_tile = tl.minimum(tile + 1, num_edges - 1)
        behind = all_end + (next_tile - num_before) * KEYS
        next_key = tl.where(next_tile < num_before, start + next_tile * KEYS, behind)
        edge = _page(pages, page_at, next_key, n, end, PAGE, KEYS)
        is_key = (key + n) < end
        key_scale = 0.0
        value_scale = 0.0
        if EIGHT_BITS:
            scale_at = slot * NUM_KV_HEADS + kv_head
            key_scale = tl.load(key_scales + scale_at, mask=is_key, other=0.0)
            value_scale = tl.load(value_scales + scale_at, mask=is_key, other=0.0)
        at = _at(slot, kv_head, NUM_KV_HEADS, LATENT)[:, None]
        seen_key = is_dim & is_key[:, None]
        at_key, at_value = (
            keys + at * KEY_STEP + dim[None, :],
            values + at * VALUE_STEP + value[None, :],
        )
        k = tl.load(at_key, mask=seen_key, other=0, eviction_policy=KEPT)
        seen_value = is_value & is_key[:, None]
        v = tl.load(at_value, mask=seen_value, other=0, eviction_policy=KEPT)
        if not WORDS:
            k, v = k.to(DOT), v.to(DOT)
        index = _of_keys(key + n, TRANSPOSED)
        seen = (index >= _of_rows(low, TRANSPOSED)) & (index < _of_rows(last, TRANSPOSED))
        seen &= _of_keys(is_key, TRANSPOSED)
        largest, total, summed, odd = _tally(
            query,
            rest,
            k,
            v,
            seen,
            largest,
            total,
            summed,
            odd,
            key_scale,
            value_scale,
            softcap,
            HAS_SOFTCAP,
            True,
            EIGHT_BITS,
            WORDS,
            TRANSPOSED,
            LATENT,
        )

    if WORDS:
        summed = tl.reshape(tl.join(summed, odd), (ROWS, VALUE))
    if TRANSPOSED:
        total = tl.sum(total, 0)
        summed = tl.trans(summed)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        new = tl.maximum(largest, sink)
        taken = tl.exp2(sink - new)
        if LEAVES:  # merging gives the sink its share of all others
            new = tl.where(is_left, new, largest)
            taken = tl.where(is_left, taken, 0.0)
        kept = tl.exp2(largest - new)
        summed *= kept[:, None]
        total = total * kept + taken
        largest = new
    seen_any = total > 0
    total = tl.where(seen_any, total, 1.0)
    if LEAVES:
        tl.store(
            out + place[:, None] * VALUE_DIM + d[None, :],
            (summed / total[:, None]).to(out.dtype.element_ty),
            mask=(is_row & is_left)[:, None] & (d < VALUE_DIM)[None, :],
        )
        is_row &= ~is_left
    FACTORS: tl.constexpr = not DIRECT and partials.dtype.element_ty == tl.float16
    size = total
    if FACTORS:
        size = tl.sum(tl.abs(summed), 1)
        size = tl.where(size > 0, size, 1.0)
    summed = summed / size[:, None]
    if not DIRECT:
        lse = tl.where(seen_any, largest + tl.log2(total), -1e30)
        if FACTORS:
            tl.store(lses + 2 * place, lse, mask=is_row)
            tl.store(lses + 2 * place + 1, size / total, mask=is_row)
        else:
            tl.store(lses + place, lse, mask=is_row)
    tl.store(
        partials + place[:, None] * VALUE_DIM + d[None, :],
        summed.to(partials.dtype.element_ty),
        mask=is_row[:, None] & (d < VALUE_DIM)[None, :],
    )
    end_beside(BESIDE)

"""The attention kernel of path tiles: one item of the list and one key/value head per program.

A program walks the layers of its item one behind the other and keeps one softmax running for all of them. In each layer it
rotates its queries anew, since a token stands elsewhere on the ruler of every strip. All strips of a layer are walked in one
loop, tile by tile of keys, so that loads of the next are on their way whatever strip it is of; a row sees the keys of its own.
Ends of strips are those of the entries, as everywhere: lists stay right when rows grow.

    r  query heads per key/value head      D, Dv  head dims      n  entries of a layer
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.attend import LOG2E, _page, _slots, scores_of
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import columns, rotated


@triton.jit
def _place(t, s, until, blocks, key_start, segment_end, page_at, KEYS: tl.constexpr):
    """Segment of tile `t` of a layer, its first key there, the segment's end and first page; 0, 0, 1, 0 if there is none."""
    which = tl.sum((until <= t).to(tl.int32), 0)
    is_it = s == which
    key = tl.sum(tl.where(is_it, key_start + (t - until + blocks) * KEYS, 0), 0)
    end = tl.sum(tl.where(is_it, segment_end, 0), 0)
    page = tl.sum(tl.where(is_it, page_at, 0), 0)
    return which, key, tl.maximum(end, 1), page


@triton.jit
def _ask_for(pointers):
    """Ask for what lies there, without waiting: it will be found in the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def paths_kernel(
    q,
    keys,
    values,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,
    entry_offset,
    entry_low,
    entry_high,
    entry_partial,
    items,  # [I, 4], see paths.py
    walks,  # [L, 5, n]
    pages,
    partials,  # [P, H, Dv] float32; or the output [T, H, Dv] itself, if every token has one partial
    lses,  # [P, H] float32, in units of log 2
    q_token,
    q_head,
    scaling,
    softcap,
    window,
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
    DOT: tl.constexpr,  # the dtype that products are made in
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,  # n
    SEGMENTS: tl.constexpr,  # as many or more, a power of two
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    ASKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (key/value head, item)."""
    item = items + tl.program_id(1) * 4
    count = tl.load(item + 2)
    if count == 0:  # padding of the list; its first item waits all the same, see overlap.py
        if tl.program_id(1) == 0:
            take_over(OVERLAP)
        return
    kv_head = tl.program_id(0)
    first_layer, end_layer = tl.load(item), tl.load(item + 1)

    m = tl.arange(0, ROWS)
    is_there = m // GROUP < count
    place = tl.minimum(m // GROUP, count - 1)
    head = kv_head * GROUP + m % GROUP
    s = tl.arange(0, SEGMENTS)
    n = tl.arange(0, KEYS)
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    is_dim = (dim < HEAD_DIM)[None, :]
    d = tl.arange(0, VALUE)
    is_value = (d < VALUE_DIM)[None, :]
    if not HAS_SOFTCAP:
        scaling *= LOG2E
    largest = tl.full([ROWS], -1e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    summed = tl.zeros([ROWS, VALUE], dtype=tl.float32)
    if ASKS:
        # Every layer waits for these one behind the other: its lists, what they point to, tables.
        a = tl.arange(0, 8 * SEGMENTS)
        record = walks + (first_layer + a // SEGMENTS) * (5 * ENTRIES) + a % SEGMENTS
        is_asked = (first_layer + a // SEGMENTS < end_layer) & (a % SEGMENTS < ENTRIES)
        asked = tl.maximum(tl.load(record, mask=is_asked, other=0), 0)
        first_pages = tl.maximum(tl.load(record + 4 * ENTRIES, mask=is_asked, other=0), 0)
        _ask_for(pages + first_pages)
        _ask_for(entry_offset + asked)
        _ask_for(entry_low + asked)
        _ask_for(entry_high + asked)
        for part in tl.static_range(HEAD_DIM // 64):
            _ask_for(cos + asked.to(tl.int64) * (HEAD_DIM // 2) + 32 * part)
            _ask_for(sin + asked.to(tl.int64) * (HEAD_DIM // 2) + 32 * part)
    take_over(OVERLAP)

    for layer in range(first_layer, end_layer):
        walk = walks + layer * (5 * ENTRIES)
        entry = tl.load(walk + place, mask=is_there, other=-1)
        token = tl.load(walk + ENTRIES + place)
        own = tl.load(walk + 2 * ENTRIES + place)
        key_start = tl.load(walk + 3 * ENTRIES + s, mask=s < ENTRIES, other=0)
        page_at = tl.load(walk + 4 * ENTRIES + s, mask=s < ENTRIES, other=-1)
        is_row = entry >= 0
        entry = tl.maximum(entry, 0)
        offset = tl.load(entry_offset + entry)
        low, high = tl.load(entry_low + entry), tl.load(entry_high + entry)
        last = tl.where(is_row, tl.minimum(high, offset + 1), 0)
        if HAS_WINDOW:
            low = tl.maximum(low, offset - window + 1)

        segment_end = tl.max(tl.where(own[:, None] == s[None, :], last[:, None], 0), 0)
        blocks = tl.maximum(segment_end - key_start + KEYS - 1, 0) // KEYS
        blocks = tl.where(page_at >= 0, blocks, 0)
        until = tl.cumsum(blocks, 0)
        num_tiles = tl.sum(blocks, 0)
        which, key, end, first_page = _place(
            0, s, until, blocks, key_start, segment_end, page_at, KEYS
        )
        page = _page(pages, first_page, key, n, end, PAGE, KEYS)

        table_at = entry.to(tl.int64)[:, None] * (HEAD_DIM // 2)
        query = rotated(
            q + token.to(tl.int64)[:, None] * q_token + head[:, None] * q_head,
            is_row[:, None],
            cos + table_at,
            sin + table_at,
            HEAD_DIM,
            ROTARY_DIM,
            INTERLEAVED,
            HALF,
        )
        # rounded as memory rounds its keys
        query = (query * scaling).to(q.dtype.element_ty).to(DOT)

        for t in range(num_tiles):
            index, is_own = key + n, own == which
            is_key = index < end
            at = (_slots(page, key, n, PAGE, KEYS) * NUM_KV_HEADS + kv_head)[:, None]
            # Looked up one tile ahead: keys are loaded without waiting for their page's number.
            following = tl.minimum(t + 1, num_tiles - 1)
            which, key, end, first_page = _place(
                following, s, until, blocks, key_start, segment_end, page_at, KEYS
            )
            page = _page(pages, first_page, key, n, end, PAGE, KEYS)
            seen_key, seen_value = is_dim & is_key[:, None], is_value & is_key[:, None]
            k = tl.load(keys + at * HEAD_DIM + dim[None, :], mask=seen_key, other=0.0).to(DOT)
            v = tl.load(values + at * VALUE_DIM + d[None, :], mask=seen_value, other=0.0).to(DOT)
            seen = (index[None, :] >= low[:, None]) & (index[None, :] < last[:, None])
            seen &= is_own[:, None] & is_key[None, :]
            products = tl.dot(query, tl.trans(k), input_precision="ieee")
            scores = tl.where(seen, scores_of(products, softcap, HAS_SOFTCAP), -1e30)
            new = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp2(scores - new[:, None]), 0.0)
            kept = tl.exp2(largest - new)
            total = total * kept + tl.sum(weights, 1)
            summed = tl.dot(
                weights.to(v.dtype), v, acc=summed * kept[:, None], input_precision="ieee"
            )
            largest = new

    # The partial is counted as that of the first entry, which a token has in the first layer if at all.
    leader = tl.load(walks + first_layer * (5 * ENTRIES) + place, mask=is_there, other=-1)
    is_row = leader >= 0
    leader = tl.maximum(leader, 0)
    seen_any = total > 0
    summed = summed / tl.where(seen_any, total, 1.0)[:, None]
    if DIRECT:
        target = tl.load(entry_token + leader).to(tl.int64) * (NUM_KV_HEADS * GROUP) + head
    else:
        partial = tl.load(entry_partial + leader)
        target = partial.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head
        lse = tl.where(seen_any, largest + tl.log2(tl.where(seen_any, total, 1.0)), -1e30)
        tl.store(lses + target, lse, mask=is_row)
    tl.store(
        partials + target[:, None] * VALUE_DIM + d[None, :],
        summed.to(partials.dtype.element_ty),
        mask=is_row[:, None] & is_value,
    )

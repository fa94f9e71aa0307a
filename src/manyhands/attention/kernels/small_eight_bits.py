"""Attention by small tiles over keys and values in eight bits: integers go to the matrix units with next to no arithmetic (Hopper).

Few rows behind a long history wait for memory, if nothing else takes as long. In the kernel of `attend.py` turning integers into
16-bit numbers does, and shared memory that is read for it. Here each of four warps walks keys of its own, and holds what matrix
units take as they take it:

    keys     stay integers: a product of integers is exact, and a query is two digits of eight bits, `256 * high + low`, in units
             of a row's largest number / 32639: beside that number finer than 16-bit numbers are
    values   are read from shared memory by the thread that needs them, sixteen dims of a key at once; two keys' bytes of a
             dim are made one pair of 16-bit numbers
    rows     stand on the right of both products, eight at a time: of twenty, twenty-four are multiplied, not thirty-two

Keys, values and scales come by asynchronous copies, a tile of 4 * KEYS keys ahead. Sums are brought down only where a score lies
far above the largest one that they were made with, so weights may be a little above one. The warps' results are merged at the
end. Scores of queries as they stand are exact up to the scales; weights are rounded to 16 bits before they meet the values, as everywhere.

Keys are on the left, so scores are [KEYS, ROWS] and sums [DIM, ROWS]; both have the four warps in front. Dims of values
have an order of their own in the sums, undone when they are stored: see `_pairs`.
"""

# Kernels are written in Gluon, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.specialised import _meet
from manyhands.attention.launches import SMALL_KEYS, SMALL_ROWS

# Triton has renamed it.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

_WARPS = gl.constexpr(4)
_KEYS = gl.constexpr(SMALL_KEYS)  # of a warp in one iteration
_DIM = gl.constexpr(128)  # of a head
_WORD = gl.constexpr(4)  # integers
_EIGHT = gl.constexpr(8)  # rows, keys or dims of one square of the matrix units
_BORDER = gl.constexpr(128)  # items begin at multiples of so many keys
# Powers of two that weights of bfloat16 may be above one, before sums are brought down; those of float16 would leave no room.
_FAR = gl.constexpr(8.0)
_LEAST = gl.constexpr(-1e30)  # a score below all others
_LARGEST = gl.constexpr(32639)  # 127 * 256 + 127, of two digits

# Tiles that are on their way or worked at. With three of them programs are slower, and of 16 rows a processor holds fewer.
_STAGES = gl.constexpr(2)

# Words of four dims of two keys as pairs of numbers, (one key, the other), for each dim: as in `eight_bits.py`.
_PAIRS_BFLOAT16 = gl.constexpr("""{
    .reg .b32 x, bits, signs, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 x, $8, $9, 0x0400;
    lop3.b32 bits, x, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, x, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 x, bits, one, signs;
    mov.b32 {$0, $1}, x;
    prmt.b32 x, $8, $9, 0x0501;
    lop3.b32 bits, x, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, x, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 x, bits, one, signs;
    mov.b32 {$2, $3}, x;
    prmt.b32 x, $8, $9, 0x0602;
    lop3.b32 bits, x, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, x, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 x, bits, one, signs;
    mov.b32 {$4, $5}, x;
    prmt.b32 x, $8, $9, 0x0703;
    lop3.b32 bits, x, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, x, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 x, bits, one, signs;
    mov.b32 {$6, $7}, x;
}""")
_PAIRS_FLOAT16 = gl.constexpr("""{
    .reg .b32 a, b, both, x, filler, bias;
    mov.b32 filler, 0x64646464;
    mov.b32 bias, 0x64806480;
    xor.b32 a, $8, 0x80808080;
    xor.b32 b, $9, 0x80808080;
    prmt.b32 both, a, b, 0x5140;
    prmt.b32 x, both, filler, 0x4140;
    sub.rn.f16x2 x, x, bias;
    mov.b32 {$0, $1}, x;
    prmt.b32 x, both, filler, 0x4342;
    sub.rn.f16x2 x, x, bias;
    mov.b32 {$2, $3}, x;
    prmt.b32 both, a, b, 0x7362;
    prmt.b32 x, both, filler, 0x4140;
    sub.rn.f16x2 x, x, bias;
    mov.b32 {$4, $5}, x;
    prmt.b32 x, both, filler, 0x4342;
    sub.rn.f16x2 x, x, bias;
    mov.b32 {$6, $7}, x;
}""")
_OUT_OF_PAIRS = gl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r,r")

# Which thread holds what: bases of registers, of the threads of a warp, of warps.
_KEYS_COPIED = gl.constexpr(
    gl.DistributedLinearLayout(  # [warp, key, dim]: sixteen dims, and whole keys side by side
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 0, 8], [0, 4, 0], [0, 8, 0], [0, 16, 0]],
        [[0, 0, 16], [0, 0, 32], [0, 0, 64], [0, 1, 0], [0, 2, 0]],
        [[1, 0, 0], [2, 0, 0]],
        [],
        [4, 32, 128],
    )
)
_VALUES_HELD = gl.constexpr(
    gl.DistributedLinearLayout(  # [warp, key, word]: as the left side of a product wants keys in pairs, and sixteen dims of each
        [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 8, 0], [0, 16, 0]],
        [[0, 2, 0], [0, 4, 0], [0, 0, 4], [0, 0, 8], [0, 0, 16]],
        [[1, 0, 0], [2, 0, 0]],
        [],
        [4, 32, 32],
    )
)
_SCALES_COPIED = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))
_QUERIES = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
_PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8]))
_OF_KEYS = gl.constexpr(gl.SliceLayout(2, _PRODUCT))
_OF_ROWS = gl.constexpr(gl.SliceLayout(1, _PRODUCT))
_ROW = gl.constexpr(gl.SliceLayout(0, _OF_ROWS))
_IN_ROW = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


def options(rows: int) -> dict[str, int]:
    """Options of a launch for tiles of so many rows (`launches.SMALL_ROWS`): those of the first part, and of the second."""
    first = SMALL_ROWS[0]
    return {"FIRST": first, "SECOND": rows - first, "num_warps": _WARPS.value}


@gluon.constexpr_function
def _totals_held(rows):
    """[warp, key, row]: the eight keys of a square, as products hold them."""
    more = [[0, 0, 8]] if rows > 8 else []
    threads = [[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(
        [[0, 0, 1], *more], threads, [[1, 0, 0], [2, 0, 0]], [], [4, 8, rows]
    )


@gluon.constexpr_function
def _sums_merged(rows):
    """[warp, dim, row]: all warps' sums in one thread, whose dims are neighbours where they are stored."""
    more = [[0, 0, 8]] if rows > 8 else []
    threads = [[0, 32, 0], [0, 64, 0], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(
        [[0, 8, 0], [0, 16, 0], [1, 0, 0], [2, 0, 0], [0, 0, 4], *more],
        threads,
        [[0, 0, 1], [0, 0, 2]],
        [],
        [4, 128, rows],
    )


@gluon.jit
def _pairs(words, DTYPE: gl.constexpr):
    """Values [4, KEYS, words] as the left side of a product, [4, DIM, KEYS] of DTYPE.

    A thread holds dims 16 i .. 16 i + 15 of a key, and a product wants it to hold every eighth: so dim 16 i + j is number 8 j + i.
    """
    words = gl.permute(gl.reshape(words, [_WARPS, _KEYS // 2, 2, _DIM // _WORD]), [0, 1, 3, 2])
    even, odd = gl.split(words)
    if gl.bfloat16 == DTYPE:
        a0, b0, a1, b1, a2, b2, a3, b3 = gl.inline_asm_elementwise(
            _PAIRS_BFLOAT16, _OUT_OF_PAIRS, [even, odd],
            dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        a0, b0, a1, b1, a2, b2, a3, b3 = gl.inline_asm_elementwise(
            _PAIRS_FLOAT16, _OUT_OF_PAIRS, [even, odd],
            dtype=(gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16, gl.float16),
            is_pure=True, pack=1,
        )  # fmt: skip
    even = gl.join(gl.join(a0, a2), gl.join(a1, a3))
    odd = gl.join(gl.join(b0, b2), gl.join(b1, b3))
    # Bits of a dim: three choose the thread, two the word, two the byte. The last axis are the keys of a pair.
    parts = gl.reshape(gl.join(even, odd), [_WARPS, _KEYS // 2, 8, 4, 2, 2, 2])
    parts = gl.permute(parts, [0, 3, 4, 5, 2, 1, 6])
    values = gl.reshape(parts, [_WARPS, _DIM, _KEYS])
    return gl.convert_layout(values, gl.DotOperandLayout(0, _PRODUCT, 2))


@gluon.jit
def _load_queries(digits, units, q, at):
    """Queries of all rows to shared memory: two digits [2, ROWS, DIM] of each, and what a unit is worth."""
    d = gl.arange(0, _DIM, gl.SliceLayout(0, _QUERIES))[None, :]
    query = gl.load(q + at[:, None] + d).to(gl.float32)
    largest = gl.maximum(gl.max(gl.abs(query), 1), 1e-30)  # a query of nothing has a unit, too
    zero = gl.sum(query * 0.0, 1)  # or no number: integers would hide it
    units.store(largest / _LARGEST + zero)
    number = gl.floor(query * (_LARGEST / largest)[:, None] + 0.5).to(gl.int32)
    high = (number + 128) >> 8
    digits.index(0).store(high.to(gl.int8))
    digits.index(1).store((number - high * 256).to(gl.int8))


@gluon.jit
def _products(k, digits, AT: gl.constexpr, ROWS: gl.constexpr):
    """Products [4, KEYS, ROWS] float32 of keys with the rows from AT on, in units: exact in 32 bits, then rounded."""
    RIGHT: gl.constexpr = gl.SliceLayout(0, gl.DotOperandLayout(1, _PRODUCT, 4))
    nothing = gl.zeros([_WARPS, _KEYS, ROWS], gl.int32, _PRODUCT)
    high = digits.index(0).slice(AT, ROWS).permute((1, 0)).load(RIGHT)
    high = mma_v2(k, gl.expand_dims(high, 0).broadcast_to([_WARPS, _DIM, ROWS]), nothing)
    low = digits.index(1).slice(AT, ROWS).permute((1, 0)).load(RIGHT)
    low = mma_v2(k, gl.expand_dims(low, 0).broadcast_to([_WARPS, _DIM, ROWS]), nothing)
    return (high * 256 + low).to(gl.float32)


@gluon.jit
def _seen(scores, bounds, AT: gl.constexpr, index, end):
    """Scores of keys that a row does not see, and of those from `end` on, are no scores."""
    ROWS: gl.constexpr = scores.shape[2]
    low = bounds.index(0).slice(AT, ROWS).load(_ROW)
    last = gl.minimum(bounds.index(1).slice(AT, ROWS).load(_ROW), end)
    low, last = gl.expand_dims(low, 0)[:, None, :], gl.expand_dims(last, 0)[:, None, :]
    seen = (index[:, :, None] >= low) & (index[:, :, None] < last)
    return gl.where(seen, scores, -float("inf"))


@gluon.jit
def _exponents(scores, unit, largest):
    """How far scores lie above the largest one so far, or the one that is taken for it: exponents of weights."""
    # The product is below all numbers where a query is large enough.
    of_largest = gl.maximum(largest * unit, _LEAST)
    return scores * unit[:, None, :] - of_largest[:, None, :]


@gluon.jit
def _raised(scores, unit, largest, total, summed):
    """The largest score, in units, with one more tile, and both sums as they are with it."""
    new = gl.maximum(largest, gl.max(scores, 1))
    kept = gl.exp2((largest - new) * unit)
    of_total = gl.convert_layout(kept, gl.SliceLayout(1, total.type.layout))
    return new, total * of_total[:, None, :], summed * kept[:, None, :]


@gluon.jit
def _weights(exponents, value_scale, total, DTYPE: gl.constexpr):
    """Weights as the right side of a product, and their sums over every eighth key."""
    ROWS: gl.constexpr = exponents.shape[2]
    weights = gl.exp2(exponents)
    some = gl.sum(gl.reshape(weights, [_WARPS, _KEYS // _EIGHT, _EIGHT, ROWS]), 1)
    total += gl.convert_layout(some, total.type.layout)
    weights = (weights * value_scale[:, :, None]).to(DTYPE)
    return gl.convert_layout(weights, gl.DotOperandLayout(1, _PRODUCT, 2)), total


@gluon.jit
def _most(exponents):
    """The largest number of each square of eight rows and a warp's keys, from all of its rows."""
    ROWS: gl.constexpr = exponents.shape[2]
    squares = gl.reshape(exponents, [_WARPS, _KEYS // _EIGHT, _EIGHT, ROWS // _EIGHT, _EIGHT])
    found = gl.max(gl.max(squares, 3), 1)
    return gl.convert_layout(found, _totals_held(_EIGHT))


@gluon.jit
def _leave(
    AT: gl.constexpr, unit, largest, total, summed, partials, lses, entry_token, entry_partial,
    first_entry, count, kv_head, split, GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr,
    DIRECT: gl.constexpr,
):  # fmt: skip
    """Store the results of the rows from AT on, all warps' together: their partials, or outputs."""
    ROWS: gl.constexpr = summed.shape[2]
    ALL: gl.constexpr = _sums_merged(ROWS)
    OF_ALL: gl.constexpr = gl.SliceLayout(1, ALL)
    SUMS: gl.constexpr = gl.SliceLayout(0, ALL)
    OF_SUMS: gl.constexpr = gl.SliceLayout(0, SUMS)
    # Dims are neighbours there, and eight of them with two rows are spread over all banks.
    room = gl.allocate_shared_memory(
        gl.float32, [_WARPS, _DIM, ROWS], gl.SwizzledSharedLayout(8, 2, 4, [1, 2, 0])
    )
    facts = gl.allocate_shared_memory(gl.float32, [2, _WARPS, ROWS], _IN_ROW)
    room.store(summed)
    facts.index(0).store(gl.maximum(largest * unit, _LEAST))
    facts.index(1).store(gl.convert_layout(gl.sum(total, 1), _OF_ROWS))
    _meet()
    largest, total = facts.index(0).load(OF_ALL), facts.index(1).load(OF_ALL)
    new = gl.max(largest, 0)
    kept = gl.exp2(largest - gl.expand_dims(new, 0))
    summed = gl.sum(room.load(ALL) * kept[:, None, :], 0)
    total = gl.convert_layout(gl.sum(total * kept, 0), OF_SUMS)
    seen_any = total > 0
    total = gl.where(seen_any, total, 1.0)
    summed = summed * (1.0 / total)[None, :]

    m = AT + gl.arange(0, ROWS, OF_SUMS)
    entry = first_entry + gl.minimum(m // GROUP, count - 1)
    is_row = m // GROUP < count
    place = gl.load(entry_token + entry) if DIRECT else gl.load(entry_partial + entry) + split
    place = place.to(gl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    if not DIRECT:
        lse = gl.where(seen_any, gl.convert_layout(new, OF_SUMS) + gl.log2(total), _LEAST)
        gl.store(lses + place, lse, mask=is_row)
    number = gl.arange(0, _DIM, gl.SliceLayout(1, SUMS))
    dim = number % _EIGHT * 16 + number // _EIGHT  # see `_pairs`
    gl.store(
        partials + (place * _DIM)[None, :] + dim[:, None],
        summed.to(partials.dtype.element_ty),
        mask=is_row[None, :],
    )


@gluon.jit
def _page_of(pages, key, last_key, PAGE: gl.constexpr):
    """The pages [4] of the warps' keys in the tile that begins at `key`; beyond the last key any of the strip will do."""
    w = gl.arange(0, _WARPS, gl.SliceLayout(1, gl.SliceLayout(2, _KEYS_COPIED)))
    return gl.load(pages + gl.minimum(key + w * _KEYS, last_key) // PAGE)


@gluon.jit
def _bring(
    number, key, page, keys, values, key_scales, value_scales, k_ring, v_ring, s_ring, kv_head,
    PAGE: gl.constexpr, NUM_KV_HEADS: gl.constexpr,
):  # fmt: skip
    """Ask for the tile that begins at `key`, its scales included; all of it is one group of copies."""
    WORDS: gl.constexpr = _DIM // _WORD
    OF_WARPS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, _KEYS_COPIED))
    w = gl.arange(0, _WARPS, OF_WARPS)
    slot = page.to(gl.int64) * PAGE + (key + w * _KEYS) % PAGE
    at = slot * NUM_KV_HEADS + kv_head
    stage = number % _STAGES

    n = gl.arange(0, _KEYS, gl.SliceLayout(0, gl.SliceLayout(2, _KEYS_COPIED)))
    d = gl.arange(0, _DIM, gl.SliceLayout(0, gl.SliceLayout(1, _KEYS_COPIED)))
    behind = (n * (NUM_KV_HEADS * _DIM))[None, :, None] + d[None, None, :]
    _copy(k_ring.index(stage), keys + (at * _DIM)[:, None, None] + behind)

    n = gl.arange(0, _KEYS, gl.SliceLayout(0, gl.SliceLayout(2, _VALUES_HELD)))
    d = gl.arange(0, WORDS, gl.SliceLayout(0, gl.SliceLayout(1, _VALUES_HELD)))
    behind = (n * (NUM_KV_HEADS * WORDS))[None, :, None] + d[None, None, :]
    of_values = gl.convert_layout(at, gl.SliceLayout(1, gl.SliceLayout(2, _VALUES_HELD)))
    _copy(v_ring.index(stage), values + (of_values * WORDS)[:, None, None] + behind)

    n = gl.arange(0, _KEYS, gl.SliceLayout(0, _SCALES_COPIED))
    of_scales = gl.convert_layout(at, gl.SliceLayout(1, _SCALES_COPIED))[:, None]
    of_scales = of_scales + (n * NUM_KV_HEADS)[None, :]
    _copy(s_ring.index(2 * stage), key_scales + of_scales)
    _copy(s_ring.index(2 * stage + 1), value_scales + of_scales)
    async_copy.commit_group()


@gluon.jit
def small_eight_bits_kernel(
    q,  # [E, H, D], standing as keys do, see queries.py
    keys,  # int8 [S, G, D]
    values,  # int32 [S, G, D / 4], words of four dims
    key_scales,  # [S, G] float32
    value_scales,
    entry_token,
    entry_offset,
    entry_low,
    entry_high,
    entry_partial,
    items,  # [I, 6], see work.py
    pages,
    partials,  # [P, H, D] float32; or the output [T, H, D] itself, if every token has one partial
    lses,  # [P, H] float32, in units of log 2
    q_token,
    q_head,
    window,
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    PAGE: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    DIRECT: gl.constexpr,
    OVERLAP: gl.constexpr,
    FIRST: gl.constexpr,  # rows of the tile's first part
    SECOND: gl.constexpr,  # and of its second, or none
):
    """Program (key/value head, item)."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    # Queries are as many as a power of two; those beyond the tile's rows are read by nothing.
    ROWS: gl.constexpr = FIRST if SECOND == 0 else 2 * FIRST
    STEP: gl.constexpr = _WARPS * _KEYS
    FAR: gl.constexpr = _FAR if gl.bfloat16 == DTYPE else 0.0
    item = items + gl.program_id(1) * 6
    count = gl.load(item + 1)
    if count == 0:  # padding of the list; its first item waits all the same, see overlap.py
        if gl.program_id(1) == 0:
            take_over(OVERLAP)
        return
    kv_head = gl.program_id(0)
    first_entry = gl.load(item)
    start, key_end = gl.load(item + 2), gl.load(item + 3)
    pages += gl.load(item + 4)
    split = gl.load(item + 5)

    m = gl.arange(0, ROWS, gl.SliceLayout(1, _QUERIES))
    entry = first_entry + gl.minimum(m // GROUP, count - 1)  # rows to spare repeat the last entry
    offset = gl.load(entry_offset + entry)
    low, high = gl.load(entry_low + entry), gl.load(entry_high + entry)
    last = gl.minimum(high, offset + 1)  # one past the last key of each row
    if HAS_WINDOW:
        low = gl.maximum(low, offset - window + 1)
        start = gl.maximum(start, gl.min(low, 0) // _BORDER * _BORDER)
    end = gl.minimum(key_end, gl.max(last, 0))
    all_start, all_end = gl.max(low, 0), gl.minimum(gl.min(last, 0), end)
    num_tiles = gl.maximum((end - start + STEP - 1) // STEP, 0)
    last_key = gl.maximum(end - 1, 0)

    # Each thread reads the values that it copied; their banks and those of keys do not meet twice.
    k_ring = gl.allocate_shared_memory(
        gl.int8, [_STAGES, _WARPS, _KEYS, _DIM], gl.SwizzledSharedLayout(16, 1, 8, [2, 1, 0])
    )
    v_ring = gl.allocate_shared_memory(
        gl.int32,
        [_STAGES, _WARPS, _KEYS, _DIM // _WORD],
        gl.SwizzledSharedLayout(8, 2, 4, [2, 1, 0]),
    )
    s_ring = gl.allocate_shared_memory(gl.float32, [2 * _STAGES, _WARPS, _KEYS], _IN_ROW)
    digits = gl.allocate_shared_memory(
        gl.int8, [2, ROWS, _DIM], gl.SwizzledSharedLayout(16, 1, 8, [1, 0])
    )
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bounds = gl.allocate_shared_memory(gl.int32, [2, ROWS], PLAIN)
    units = gl.allocate_shared_memory(gl.float32, [ROWS], PLAIN)

    # Pages are looked up a tile ahead of the copies.
    page = _page_of(pages, start, last_key, PAGE)
    next_page = _page_of(pages, start + STEP, last_key, PAGE)
    take_over(OVERLAP)
    for number in gl.static_range(_STAGES - 1):
        _bring(
            number, start + number * STEP, page, keys, values, key_scales, value_scales, k_ring,
            v_ring, s_ring, kv_head, PAGE, NUM_KV_HEADS,
        )  # fmt: skip
        page = next_page
        next_page = _page_of(pages, start + (number + 2) * STEP, last_key, PAGE)
    at = entry.to(gl.int64) * q_token + (kv_head * GROUP + m % GROUP) * q_head
    _load_queries(digits, units, q, at)
    bounds.index(0).store(low)
    bounds.index(1).store(last)
    _meet()

    unit = gl.expand_dims(units.slice(0, FIRST).load(_ROW), 0)
    largest = gl.full([_WARPS, FIRST], _LEAST, gl.float32, _OF_ROWS)
    total = gl.zeros([_WARPS, _EIGHT, FIRST], gl.float32, _totals_held(FIRST))
    summed = gl.zeros([_WARPS, _DIM, FIRST], gl.float32, _PRODUCT)
    if SECOND > 0:
        second_unit = gl.expand_dims(units.slice(FIRST, SECOND).load(_ROW), 0)
        second_largest = gl.full([_WARPS, SECOND], _LEAST, gl.float32, _OF_ROWS)
        second_total = gl.zeros([_WARPS, _EIGHT, SECOND], gl.float32, _totals_held(SECOND))
        second_summed = gl.zeros([_WARPS, _DIM, SECOND], gl.float32, _PRODUCT)
    n = gl.arange(0, _KEYS, gl.SliceLayout(0, _OF_KEYS))
    w = gl.arange(0, _WARPS, gl.SliceLayout(1, _OF_KEYS))
    of_tile = (w * _KEYS)[:, None] + n[None, :]

    for tile in range(num_tiles):
        async_copy.wait_group(_STAGES - 2)
        ahead = tile + _STAGES - 1
        _bring(
            ahead, start + ahead * STEP, page, keys, values, key_scales, value_scales, k_ring, v_ring,
            s_ring, kv_head, PAGE, NUM_KV_HEADS,
        )  # fmt: skip
        page = next_page
        next_page = _page_of(pages, start + (ahead + 2) * STEP, last_key, PAGE)

        stage = tile % _STAGES
        key = start + tile * STEP
        k = k_ring.index(stage).load(gl.DotOperandLayout(0, _PRODUCT, 4))
        key_scale = s_ring.index(2 * stage).load(_OF_KEYS)
        value_scale = s_ring.index(2 * stage + 1).load(_OF_KEYS)
        scores = _products(k, digits, 0, FIRST) * key_scale[:, :, None]
        if SECOND > 0:
            second_scores = _products(k, digits, FIRST, SECOND) * key_scale[:, :, None]
        if (key < all_start) | (key + STEP > all_end):
            index = key + of_tile
            value_scale = gl.where(index < end, value_scale, 0.0)  # perhaps never written
            scores = _seen(scores, bounds, 0, index, end)
            if SECOND > 0:
                second_scores = _seen(second_scores, bounds, FIRST, index, end)
        exponents = _exponents(scores, unit, largest)
        most = _most(exponents)
        if SECOND > 0:
            second_exponents = _exponents(second_scores, second_unit, second_largest)
            most = gl.maximum(most, _most(second_exponents))
        far = gl.max(gl.reshape(most, [_WARPS * _EIGHT * _EIGHT]), 0)
        if far > FAR:
            largest, total, summed = _raised(scores, unit, largest, total, summed)
            exponents = _exponents(scores, unit, largest)
            if SECOND > 0:
                second_largest, second_total, second_summed = _raised(
                    second_scores, second_unit, second_largest, second_total, second_summed
                )
                second_exponents = _exponents(second_scores, second_unit, second_largest)
        weights, total = _weights(exponents, value_scale, total, DTYPE)
        if SECOND > 0:
            second_weights, second_total = _weights(
                second_exponents, value_scale, second_total, DTYPE
            )
        v = _pairs(v_ring.index(stage).load(_VALUES_HELD), DTYPE)
        summed = mma_v2(v, weights, summed)
        if SECOND > 0:
            second_summed = mma_v2(v, second_weights, second_summed)
    async_copy.wait_group(0)

    _leave(
        0, unit, largest, total, summed, partials, lses, entry_token, entry_partial, first_entry, count,
        kv_head, split, GROUP, NUM_KV_HEADS, DIRECT,
    )  # fmt: skip
    if SECOND > 0:
        _leave(
            FIRST, second_unit, second_largest, second_total, second_summed, partials, lses,
            entry_token, entry_partial, first_entry, count, kv_head, split, GROUP, NUM_KV_HEADS,
            DIRECT,
        )  # fmt: skip

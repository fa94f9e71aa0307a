"""Attention by specialised warps over keys and values in eight bits: some of them turn integers into 16-bit numbers (Hopper).

Matrix units want 16-bit numbers on both sides of a product here, and those on its right side in shared memory. In the kernel of
`attend.py` all warps load, convert, store, multiply and take exponentials in turn. Beside the warps of `specialised.py`:

    one warp      brings integers, by tensor maps (`_bring`)
    four warps    turn them into 16-bit numbers, and look up their scales (`_convert`)
    4 warps each  multiply for 64 rows (`_multiply`): one group of them, or two; of 65 to 80 rows the second has the last
                  sixteen, transposed (`_few_item`)

Integers are exact in 16 bits; scales are applied to scores and to weights, as in `attend.py`.

    piece  keys, or values, of one tile of 128 tokens: 128 integers each
"""

# Kernels are written in Gluon, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.specialised import (
    _ALL_END,
    _ALL_START,
    _BOX,
    _COUNT,
    _EDGES,
    _EDGES_BEFORE,
    _END,
    _FACTS,
    _FEW_REGISTERS,
    _FIRST_ENTRY,
    _HALF_ROWS,
    _IS_OLD,
    _KEYS,
    _KNOWN,
    _KV_HEAD,
    _LAST,
    _LOW,
    _OF_ROWS,
    _PAGES,
    _START,
    _TILES,
    _bring_one,
    _fact,
    _half,
    _held,
    _key_of,
    _keys_of,
    _leave,
    _leave_few,
    _meet,
    _plan,
    _seen,
    _weights,
)
from manyhands.attention.launches import FEW_ROWS, SPECIALISED_BOX

_V_STAGES = gl.constexpr(2)  # tiles whose values have room in 16 bits
_SCALED = gl.constexpr(4)  # tiles whose scales have room
# By the rows of a tile: tiles whose keys have room in 16 bits, as many pieces as shared memory holds beside all else, registers of a
# thread of the second group that multiplies (the first one has what the others leave) and of one that converts, tokens that are
# converted at once.
_SIZES = {
    64: {"K_STAGES": 1, "PIECES": 6, "REGISTERS": 0, "CONVERTING": 216, "STEP": 128},
    FEW_ROWS: {"K_STAGES": 2, "PIECES": 3, "REGISTERS": 208, "CONVERTING": 56, "STEP": 64},
    128: {"K_STAGES": 1, "PIECES": 5, "REGISTERS": 208, "CONVERTING": 56, "STEP": 64},
}
# Four bytes of a register as two pairs of numbers, in the order of memory: otherwise as in `eight_bits.py`.
_FOUR_BFLOAT16 = gl.constexpr("""{
    .reg .b32 low, high, bits, signs, one;
    mov.b32 one, 0x3f803f80;
    prmt.b32 low, $2, 0, 0x4140;
    prmt.b32 high, $2, 0, 0x4342;
    lop3.b32 bits, low, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, low, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 $0, bits, one, signs;
    lop3.b32 bits, high, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, high, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 $1, bits, one, signs;
}""")
_FOUR_FLOAT16 = gl.constexpr("""{
    .reg .b32 biased, bits, filler, bias;
    mov.b32 filler, 0x64646464;
    mov.b32 bias, 0x64806480;
    xor.b32 biased, $2, 0x80808080;
    prmt.b32 bits, biased, filler, 0x4140;
    sub.rn.f16x2 $0, bits, bias;
    prmt.b32 bits, biased, filler, 0x4342;
    sub.rn.f16x2 $1, bits, bias;
}""")


@gluon.jit
def _in_16_bits(integers, DTYPE: gl.constexpr):
    """Integers int8 as numbers of DTYPE, bfloat16 or float16."""
    if gl.bfloat16 == DTYPE:
        return gl.inline_asm_elementwise(
            _FOUR_BFLOAT16, "=r,=r,r", [integers], dtype=gl.bfloat16, is_pure=True, pack=4
        )
    else:
        return gl.inline_asm_elementwise(
            _FOUR_FLOAT16, "=r,=r,r", [integers], dtype=gl.float16, is_pure=True, pack=4
        )


def options(rows: int) -> dict[str, int]:
    """Options of a launch for tiles of 64, 80 or 128 rows that leave partials.

    Outputs, which are brought into another order first, would leave room for a piece less.
    """
    half = _HALF_ROWS.value
    return {"GROUPS": -(-rows // half), "FEW": rows % half, **_SIZES[rows]}


def boxes(x: Tensor) -> Any:
    """A tensor map of paged memory int8 [S, G, dim]."""
    flat = x.view(len(x), -1)
    box = [SPECIALISED_BOX, x.shape[-1]]
    swizzled = gl.NVMMASharedLayout(128, 8)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), box, swizzled)


@gluon.jit
def _boxes_of(ring):
    """Pieces as they are brought: boxes of slots."""
    COUNT: gl.constexpr = ring.shape[0] * (_KEYS // _BOX)
    if _IS_OLD:
        return ring._reinterpret(ring.dtype, [COUNT, _BOX, ring.shape[2]], ring.layout)
    else:
        return ring.reinterpret(ring.dtype, [COUNT, _BOX, ring.shape[2]], ring.layout)


@gluon.jit
def _bring(
    key_map, value_map, pages, ring, here, free, facts, planned, read, PAGE: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """One warp: the pieces of all tiles of all items, keys and values in turn, each as soon as there is room."""
    PIECES: gl.constexpr = ring.shape[0]
    DIM: gl.constexpr = ring.shape[2]
    BOXES: gl.constexpr = _KEYS // _BOX
    boxes = _boxes_of(ring)
    take_over(OVERLAP)
    number = 0
    piece = 0
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        num_edges = _fact(facts, slot, _EDGES)
        num_before = _fact(facts, slot, _EDGES_BEFORE)
        start = _fact(facts, slot, _START)
        all_start = _fact(facts, slot, _ALL_START)
        all_end = _fact(facts, slot, _ALL_END)
        last_page = gl.maximum(_fact(facts, slot, _END) - 1, 0) // PAGE
        page_at = pages + _fact(facts, slot, _PAGES)
        column = _fact(facts, slot, _KV_HEAD) * DIM
        mbarrier.arrive(read.index(slot), count=1)
        for tile in range(num_tiles):
            key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
            for kind in gl.static_range(2):
                at = piece % PIECES
                mbarrier.wait(free.index(at), (piece // PIECES) & 1 ^ 1)
                mbarrier.expect(here.index(at), _KEYS * DIM)
                _bring_one(
                    value_map if kind else key_map, page_at, last_page, key, column, boxes,
                    at * BOXES, here.index(at), PAGE, 1,
                )  # fmt: skip
                piece += 1
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit
def _page_of(pages, index, end, PAGE: gl.constexpr):
    """The page of each of these keys; beyond the end any will do."""
    return gl.load(pages + gl.minimum(index, gl.maximum(end - 1, 0)) // PAGE)


@gluon.jit
def _convert_one(number, ring, here, free, room, stage, arrived, STEP: gl.constexpr):
    """One piece to 16 bits, once it is here."""
    PIECES: gl.constexpr = ring.shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    at = number % PIECES
    mbarrier.wait(here.index(at), (number // PIECES) & 1)
    for i in gl.static_range(_KEYS // STEP):
        x = ring.index(at).slice(i * STEP, STEP).load(LAYOUT)
        room.index(stage).slice(i * STEP, STEP).store(_in_16_bits(x, room.dtype))
    fence_async_shared()
    _meet()  # one thread says it for all four warps
    mbarrier.arrive(free.index(at), count=1)
    mbarrier.arrive(arrived.index(stage), count=1)


@gluon.jit
def _convert(
    key_scales, value_scales, pages, ring, here, free, k_room, v_room, k_here, v_here, k_free, v_free,
    scales, facts, planned, read, NUM_KV_HEADS: gl.constexpr, PAGE: gl.constexpr,
    OVERLAP: gl.constexpr, STEP: gl.constexpr,
):  # fmt: skip
    """Four warps: all pieces to 16 bits, and the scales of their tokens beside them."""
    K_STAGES: gl.constexpr = k_room.shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    n = gl.arange(0, _KEYS, LAYOUT)
    take_over(OVERLAP)
    number = 0
    taken = 0
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        num_edges = _fact(facts, slot, _EDGES)
        num_before = _fact(facts, slot, _EDGES_BEFORE)
        start = _fact(facts, slot, _START)
        all_start = _fact(facts, slot, _ALL_START)
        all_end = _fact(facts, slot, _ALL_END)
        end = _fact(facts, slot, _END)
        page_at = pages + _fact(facts, slot, _PAGES)
        kv_head = _fact(facts, slot, _KV_HEAD)
        _meet()
        mbarrier.arrive(read.index(slot), count=1)
        # Scales are looked up one tile ahead, and their pages two.
        index = _key_of(0, start, num_before, all_start, all_end, num_edges) + n
        page = _page_of(page_at, index, end, PAGE)
        at = (page.to(gl.int64) * PAGE + index % PAGE) * NUM_KV_HEADS + kv_head
        key_scale = gl.load(key_scales + at, mask=index < end, other=0.0)
        value_scale = gl.load(value_scales + at, mask=index < end, other=0.0)
        index = _key_of(1, start, num_before, all_start, all_end, num_edges) + n
        page = _page_of(page_at, index, end, PAGE)
        for tile in range(num_tiles):
            at = (page.to(gl.int64) * PAGE + index % PAGE) * NUM_KV_HEADS + kv_head
            next_key_scale = gl.load(key_scales + at, mask=index < end, other=0.0)
            next_value_scale = gl.load(value_scales + at, mask=index < end, other=0.0)
            index = _key_of(tile + 2, start, num_before, all_start, all_end, num_edges) + n
            page = _page_of(page_at, index, end, PAGE)

            piece = 2 * (taken + tile)
            stage = (taken + tile) % K_STAGES
            phase = ((taken + tile) // K_STAGES) & 1
            mbarrier.wait(k_free.index(stage), phase ^ 1)
            place = (taken + tile) % _SCALED * 2
            scales.index(place).store(key_scale)
            scales.index(place + 1).store(value_scale)
            _convert_one(piece, ring, here, free, k_room, stage, k_here, STEP)
            stage = (taken + tile) % _V_STAGES
            phase = ((taken + tile) // _V_STAGES) & 1
            mbarrier.wait(v_free.index(stage), phase ^ 1)
            _convert_one(piece + 1, ring, here, free, v_room, stage, v_here, STEP)
            key_scale, value_scale = next_key_scale, next_value_scale
        taken += num_tiles
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit
def _tile(
    at, key, bound, low, last, largest, total, summed, weighted, queries, k_room, v_room, k_here,
    v_here, k_free, v_free, scales, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of one tile, while the values of the one before are summed."""
    K_STAGES: gl.constexpr = k_room.shape[0]
    DIM: gl.constexpr = k_room.shape[2]
    DTYPE: gl.constexpr = k_room.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    OF_KEYS: gl.constexpr = gl.SliceLayout(0, SCORES)
    OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)
    nothing = gl.zeros([_HALF_ROWS, _KEYS], gl.float32, SCORES)
    stage = at % K_STAGES
    before = (at - 1) % _V_STAGES
    mbarrier.wait(k_here.index(stage), (at // K_STAGES) & 1)
    keys = k_room.index(stage).permute((1, 0))
    asked = warpgroup_mma(queries, keys, nothing, use_acc=False, is_async=True)
    mbarrier.wait(v_here.index(before), ((at - 1) // _V_STAGES) & 1)
    adding = warpgroup_mma(weighted, v_room.index(before), summed, is_async=True)
    place = at % _SCALED * 2
    key_scale = scales.index(place).load(OF_KEYS)
    scores = warpgroup_mma_wait(1, deps=[asked])
    mbarrier.arrive(k_free.index(stage), count=1)
    scores = scores * key_scale[None, :]
    if MASKED:
        scores = _seen(scores, key, low, last, bound, SCORES)
    weights, largest, total, kept = _weights(scores, largest, total)
    value_scale = scales.index(place + 1).load(OF_KEYS)
    next_weighted = gl.convert_layout((weights * value_scale[None, :]).to(DTYPE), WEIGHTS)
    total = _held(total)
    # Results of the softmax are operands of the wait, lest it is taken to come after.
    summed, weighted, next_weighted, total = warpgroup_mma_wait(
        0, deps=[adding, weighted, next_weighted, total]
    )
    mbarrier.arrive(v_free.index(before), count=1)
    summed = summed * gl.convert_layout(kept, OF_SUMS)[:, None]
    return largest, total, summed, next_weighted


@gluon.jit
def _take_queries(who, at, slot, q, q_token, q_head, room, facts, GROUP: gl.constexpr):
    """Queries of one half of an item's rows, or of the first of these, to this place of `room`, as they stand (queries.py)."""
    ROWS: gl.constexpr = room.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    first_entry, count = _fact(facts, slot, _FIRST_ENTRY), _fact(facts, slot, _COUNT)
    m = who * _HALF_ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    entry = first_entry + gl.minimum(m // GROUP, count - 1)
    head = _fact(facts, slot, _KV_HEAD) * GROUP + m % GROUP
    d = gl.arange(0, room.shape[2], gl.SliceLayout(0, LAYOUT))
    queries = gl.load(q + (entry.to(gl.int64) * q_token + head * q_head)[:, None] + d[None, :])
    _meet()  # all warps have done with the queries of the item before
    room.index(at).store(queries)
    fence_async_shared()
    _meet()


@gluon.jit
def _item(
    who, slot, taken, num_tiles, q, partials, lses, q_token, q_head, q_room, k_room, v_room, k_here,
    v_here, k_free, v_free, scales, facts, of_rows, GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """64 rows of one item, through all its tiles."""
    K_STAGES: gl.constexpr = k_room.shape[0]
    DIM: gl.constexpr = k_room.shape[2]
    DTYPE: gl.constexpr = k_room.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    OF_KEYS: gl.constexpr = gl.SliceLayout(0, SCORES)
    OF_SCORES: gl.constexpr = gl.SliceLayout(1, SCORES)

    num_edges, num_before, start, all_start, all_end, end, _ = _keys_of(slot, facts)
    _take_queries(who, who, slot, q, q_token, q_head, q_room, facts, GROUP)
    queries = q_room.index(who)

    low = _half(of_rows, slot, _LOW, who).load(OF_SCORES)
    last = _half(of_rows, slot, _LAST, who).load(OF_SCORES)
    largest = gl.full([_HALF_ROWS], -1e30, gl.float32, OF_SCORES)
    total = gl.full([_HALF_ROWS], 0.0, gl.float32, OF_SCORES)
    summed = gl.zeros([_HALF_ROWS, DIM], gl.float32, SUMS)
    nothing = gl.zeros([_HALF_ROWS, _KEYS], gl.float32, SCORES)

    # The first tile is an edge, or may be taken for one.
    stage = taken % K_STAGES
    mbarrier.wait(k_here.index(stage), (taken // K_STAGES) & 1)
    keys = k_room.index(stage).permute((1, 0))
    asked = warpgroup_mma(queries, keys, nothing, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[asked])
    mbarrier.arrive(k_free.index(stage), count=1)
    place = taken % _SCALED * 2
    scores = scores * scales.index(place).load(OF_KEYS)[None, :]
    key = _key_of(0, start, num_before, all_start, all_end, num_edges)
    bound = gl.where(num_before > 0, gl.minimum(all_start, end), end)
    scores = _seen(scores, key, low, last, bound, SCORES)
    weights, largest, total, _ = _weights(scores, largest, total)
    value_scale = scales.index(place + 1).load(OF_KEYS)
    weighted = gl.convert_layout((weights * value_scale[None, :]).to(DTYPE), WEIGHTS)

    for tile in range(1, num_edges):
        key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
        bound = gl.where(tile < num_before, gl.minimum(all_start, end), end)
        largest, total, summed, weighted = _tile(
            taken + tile, key, bound, low, last, largest, total, summed, weighted, queries, k_room,
            v_room, k_here, v_here, k_free, v_free, scales, True,
        )  # fmt: skip
    for tile in range(gl.maximum(num_edges, 1), num_tiles):
        largest, total, summed, weighted = _tile(
            taken + tile, 0, 0, low, last, largest, total, summed, weighted, queries, k_room,
            v_room, k_here, v_here, k_free, v_free, scales, False,
        )  # fmt: skip

    at = taken + num_tiles - 1
    before = at % _V_STAGES
    mbarrier.wait(v_here.index(before), (at // _V_STAGES) & 1)
    adding = warpgroup_mma(weighted, v_room.index(before), summed, is_async=True)
    summed, weighted = warpgroup_mma_wait(0, deps=[adding, weighted])
    mbarrier.arrive(v_free.index(before), count=1)

    WHOLE: gl.constexpr = 0  # no dims of keys are rotated by themselves
    _leave(
        who, slot, largest, total, summed, partials, lses, partials, lses, facts, of_rows, GROUP,
        NUM_KV_HEADS, WHOLE, DIRECT,
    )  # fmt: skip


@gluon.jit
def _few_item(
    slot, taken, num_tiles, q, partials, lses, q_token, q_head, few_room, p_room, k_room, v_room,
    k_here, v_here, k_free, v_free, scales, facts, of_rows, GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr, DIRECT: gl.constexpr, FEW: gl.constexpr,
):  # fmt: skip
    """The FEW rows behind the first half of one item, through all its tiles, as in `specialised.py`: scores and sums transposed."""
    SECOND: gl.constexpr = 1
    K_STAGES: gl.constexpr = k_room.shape[0]
    DIM: gl.constexpr = k_room.shape[2]
    DTYPE: gl.constexpr = k_room.dtype
    TURNED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FEW, 16])
    OF_TURNED: gl.constexpr = gl.SliceLayout(0, TURNED)
    OF_KEYS: gl.constexpr = gl.SliceLayout(1, TURNED)

    num_edges, num_before, start, all_start, all_end, end, _ = _keys_of(slot, facts)
    _take_queries(SECOND, 0, slot, q, q_token, q_head, few_room, facts, GROUP)
    queries = few_room.index(0).permute((1, 0))

    low = _half(of_rows, slot, _LOW, SECOND, FEW).load(OF_TURNED)
    last = _half(of_rows, slot, _LAST, SECOND, FEW).load(OF_TURNED)
    largest = gl.full([FEW], -1e30, gl.float32, OF_TURNED)
    total = gl.zeros([_KEYS, FEW], gl.float32, TURNED)
    summed = gl.zeros([DIM, FEW], gl.float32, TURNED)
    nothing = gl.zeros([_KEYS, FEW], gl.float32, TURNED)
    edges = gl.maximum(num_edges, 1)  # the first tile may be taken for one
    for tile in range(num_tiles):
        at = taken + tile
        stage = at % K_STAGES
        place = at % _SCALED * 2
        mbarrier.wait(k_here.index(stage), (at // K_STAGES) & 1)
        asked = warpgroup_mma(k_room.index(stage), queries, nothing, use_acc=False, is_async=True)
        key_scale = scales.index(place).load(OF_KEYS)
        value_scale = scales.index(place + 1).load(OF_KEYS)
        scores = warpgroup_mma_wait(0, deps=[asked])
        mbarrier.arrive(k_free.index(stage), count=1)
        scores = scores * key_scale[:, None]
        if tile < edges:
            key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
            bound = gl.where(tile < num_before, gl.minimum(all_start, end), end)
            index = key + gl.arange(0, _KEYS, OF_KEYS)[:, None]
            seen = (index >= low[None, :]) & (index < gl.minimum(last, bound)[None, :])
            scores = gl.where(seen, scores, -float("inf"))
        new = gl.maximum(largest, gl.max(scores, 0))
        kept = gl.exp2(largest - new)
        weights = gl.exp2(scores - new[None, :])
        total = total * kept[None, :] + weights
        largest = new
        _meet()  # all warps have done with the weights of the tile before
        p_room.store((weights * value_scale[:, None]).to(DTYPE))
        fence_async_shared()
        _meet()
        before = at % _V_STAGES
        mbarrier.wait(v_here.index(before), (at // _V_STAGES) & 1)
        values = v_room.index(before).permute((1, 0))
        adding = warpgroup_mma(values, p_room, summed * kept[None, :], is_async=True)
        summed = warpgroup_mma_wait(0, deps=[adding])
        mbarrier.arrive(v_free.index(before), count=1)

    _leave_few(
        slot, largest, total, summed, partials, lses, lses, facts, of_rows, GROUP, NUM_KV_HEADS,
        DIRECT,
    )  # fmt: skip


@gluon.jit
def _multiply(
    who, q, partials, lses, q_token, q_head, q_room, few_room, p_room, k_room, v_room, k_here,
    v_here, k_free, v_free, scales, facts, of_rows, planned, read, GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr, DIRECT: gl.constexpr, FEW: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Four warps: 64 rows of every item, or its few."""
    take_over(OVERLAP)
    number = 0
    taken = 0  # tiles
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        if FEW * who > 0:
            _few_item(
                slot, taken, num_tiles, q, partials, lses, q_token, q_head, few_room, p_room, k_room,
                v_room, k_here, v_here, k_free, v_free, scales, facts, of_rows, GROUP, NUM_KV_HEADS,
                DIRECT, FEW,
            )  # fmt: skip
        else:
            _item(
                who, slot, taken, num_tiles, q, partials, lses, q_token, q_head, q_room, k_room,
                v_room, k_here, v_here, k_free, v_free, scales, facts, of_rows, GROUP, NUM_KV_HEADS,
                DIRECT,
            )  # fmt: skip
        _meet()  # one thread says it for all four warps
        mbarrier.arrive(read.index(slot), count=1)
        taken += num_tiles
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit(do_not_specialize=["num_pieces"])
def specialised_eight_bits_kernel(
    q,  # [E, H, D], standing as keys do, see queries.py
    key_map,
    value_map,
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
    num_pieces,  # I times key/value heads
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    PAGE: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    DIRECT: gl.constexpr,
    OVERLAP: gl.constexpr,
    GROUPS: gl.constexpr,  # of warps that multiply, for 64 rows each
    FEW: gl.constexpr,  # rows of the second group, if these are not as many
    K_STAGES: gl.constexpr,
    PIECES: gl.constexpr,
    REGISTERS: gl.constexpr,
    CONVERTING: gl.constexpr,
    STEP: gl.constexpr,
):
    """Programs of any number: each takes pieces, of an item and a key/value head, until there are no more."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    IN_16_BITS: gl.constexpr = gl.NVMMASharedLayout(128, 16)
    if FEW > 0:
        q_room = gl.allocate_shared_memory(DTYPE, [1, _HALF_ROWS, HEAD_DIM], IN_16_BITS)
        few_room = gl.allocate_shared_memory(DTYPE, [1, FEW, HEAD_DIM], IN_16_BITS)
        OF_WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(2 * FEW, 16)
        p_room = gl.allocate_shared_memory(DTYPE, [_KEYS, FEW], OF_WEIGHTS)
    else:
        q_room = gl.allocate_shared_memory(DTYPE, [GROUPS, _HALF_ROWS, HEAD_DIM], IN_16_BITS)
        few_room = q_room
        p_room = q_room
    k_room = gl.allocate_shared_memory(DTYPE, [K_STAGES, _KEYS, HEAD_DIM], IN_16_BITS)
    v_room = gl.allocate_shared_memory(DTYPE, [_V_STAGES, _KEYS, HEAD_DIM], IN_16_BITS)
    ring = gl.allocate_shared_memory(gl.int8, [PIECES, _KEYS, HEAD_DIM], key_map.layout)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    here = gl.allocate_shared_memory(gl.int64, [PIECES, 1], BARRIERS)
    free = gl.allocate_shared_memory(gl.int64, [PIECES, 1], BARRIERS)
    k_here = gl.allocate_shared_memory(gl.int64, [K_STAGES, 1], BARRIERS)
    v_here = gl.allocate_shared_memory(gl.int64, [_V_STAGES, 1], BARRIERS)
    k_free = gl.allocate_shared_memory(gl.int64, [K_STAGES, 1], BARRIERS)
    v_free = gl.allocate_shared_memory(gl.int64, [_V_STAGES, 1], BARRIERS)
    planned = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    read = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scales = gl.allocate_shared_memory(gl.float32, [_SCALED * 2, _KEYS], PLAIN)
    facts = gl.allocate_shared_memory(gl.int32, [_KNOWN * _FACTS, 1], PLAIN)
    of_rows = gl.allocate_shared_memory(gl.int32, [_KNOWN * _OF_ROWS, 2 * _HALF_ROWS], PLAIN)
    for i in gl.static_range(PIECES):
        mbarrier.init(here.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(K_STAGES):
        mbarrier.init(k_here.index(i), count=1)
        mbarrier.init(k_free.index(i), count=GROUPS)
    for i in gl.static_range(_V_STAGES):
        mbarrier.init(v_here.index(i), count=1)
        mbarrier.init(v_free.index(i), count=GROUPS)
    for i in gl.static_range(_KNOWN):
        mbarrier.init(planned.index(i), count=1)
        mbarrier.init(read.index(i), count=GROUPS + 2)
    fence_async_shared()

    # Gluon forgets that constants are constants in a tuple that has a name: hence in full.
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    FIRST, q, partials, lses, q_token, q_head, q_room, few_room, p_room, k_room,
                    v_room, k_here, v_here, k_free, v_free, scales, facts, of_rows, planned, read,
                    GROUP, NUM_KV_HEADS, DIRECT, FEW, OVERLAP,
                )),
                (_convert, (
                    key_scales, value_scales, pages, ring, here, free, k_room, v_room, k_here, v_here,
                    k_free, v_free, scales, facts, planned, read, NUM_KV_HEADS, PAGE, OVERLAP, STEP,
                )),
                (_bring, (
                    key_map, value_map, pages, ring, here, free, facts, planned, read, PAGE, OVERLAP,
                )),
                (_plan, (
                    entry_token, entry_offset, entry_low, entry_high, entry_partial, items, num_pieces,
                    window, facts, of_rows, planned, read, GROUP, NUM_KV_HEADS, HAS_WINDOW, DIRECT,
                )),
            ],
            [4, 1, 1],
            [CONVERTING, _FEW_REGISTERS, _FEW_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    FIRST, q, partials, lses, q_token, q_head, q_room, few_room, p_room, k_room,
                    v_room, k_here, v_here, k_free, v_free, scales, facts, of_rows, planned, read,
                    GROUP, NUM_KV_HEADS, DIRECT, FEW, OVERLAP,
                )),
                (_multiply, (
                    SECOND, q, partials, lses, q_token, q_head, q_room, few_room, p_room, k_room,
                    v_room, k_here, v_here, k_free, v_free, scales, facts, of_rows, planned, read,
                    GROUP, NUM_KV_HEADS, DIRECT, FEW, OVERLAP,
                )),
                (_convert, (
                    key_scales, value_scales, pages, ring, here, free, k_room, v_room, k_here, v_here,
                    k_free, v_free, scales, facts, planned, read, NUM_KV_HEADS, PAGE, OVERLAP, STEP,
                )),
                (_bring, (
                    key_map, value_map, pages, ring, here, free, facts, planned, read, PAGE, OVERLAP,
                )),
                (_plan, (
                    entry_token, entry_offset, entry_low, entry_high, entry_partial, items, num_pieces,
                    window, facts, of_rows, planned, read, GROUP, NUM_KV_HEADS, HAS_WINDOW, DIRECT,
                )),
            ],
            [4, 4, 1, 1],
            [REGISTERS, CONVERTING, _FEW_REGISTERS, _FEW_REGISTERS],
        )  # fmt: skip

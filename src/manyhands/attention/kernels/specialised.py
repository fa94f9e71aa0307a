"""Attention by specialised warps: one plans, one loads, others multiply, and softmax hides behind products (Hopper).

In the kernel of `attend.py` all warps of a program do everything, one thing after the other: while they
take exponentials, the matrix units wait. Here a program's warps are specialised, as in FlashAttention-3:

    one warp      looks up the program's next item and its rows (`_plan`)
    one warp      brings keys and values of the next tiles, by tensor maps (`_bring`)
    4 warps each  multiply for 64 of its 128 rows (`_multiply`), or, where it has 65 to 80, the second four for
                  the last sixteen, transposed (`_few_item`); the scores of a tile are on their way
                  while the values of the one before are summed

It is written in Gluon, the lower floor of Triton's language, where layouts, barriers and waits are
written out; Triton itself does none of this on Hopper. Gluon has no interpreter, so machines without
a GPU only compile this kernel; its values are tested on an H200.

Items are those of `attend.py`, and so is what they leave. A processor has room for one program, which takes
several of them if that shares the list evenly (`work.py`): while four warps end an item, the next one is known
and its keys are on their way. What is known of it stands in shared memory, twice.

Softmax does not ask for the order of keys: a program takes an item's edges first, tiles in which some rows do
not see some keys, then what all of them see. Shared memory has room for two tiles; barriers say when keys or
values are here, and when they are free.

Heads have 128 dims or 64. Keys of latents in the expanded form have 64 rotated dims in front of 128 others. Dims of a
product are a power of two, so the rotated ones have places of their own, and a tile's scores are two products.

Where a program leaves outputs and not partials, of all tokens or of some, a sink takes its share as an item ends.

    tile  128 keys, brought in boxes of 64 slots (which lie in one page each) and 64 dims
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
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from manyhands.attention.kernels.attend import LOG2E
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.launches import SPECIALISED_BOX, SPECIALISED_ROWS, SPECIALISED_WIDTH

_LOG2E = gl.constexpr(LOG2E.value)
_KEYS = gl.constexpr(128)  # of a tile
_BOX = gl.constexpr(SPECIALISED_BOX)  # slots that the copy engine brings at once
_HALF_ROWS = gl.constexpr(SPECIALISED_ROWS // 2)  # of one group of warps
_STAGES = gl.constexpr(2)  # tiles whose keys and values have room
_REGISTERS = gl.constexpr(232)  # of a thread that multiplies
_FEW_REGISTERS = gl.constexpr(40)  # of one that loads, and of one that plans
_KNOWN = gl.constexpr(2)  # items: the one that is worked at, and the next
# Facts of an item: numbers ...
_TILES = gl.constexpr(0)  # 0: there are no more items
_EDGES = gl.constexpr(1)
_EDGES_BEFORE = gl.constexpr(2)
_START = gl.constexpr(3)
_ALL_START = gl.constexpr(4)
_ALL_END = gl.constexpr(5)
_END = gl.constexpr(6)
_WRITTEN = gl.constexpr(7)  # the end of keys that there are
_PAGES = gl.constexpr(8)
_KV_HEAD = gl.constexpr(9)
_FIRST_ENTRY = gl.constexpr(10)
_COUNT = gl.constexpr(11)
_FACTS = gl.constexpr(12)
# ... and facts of each of its rows.
_TOKEN = gl.constexpr(0)
# Of its output, or partial. Of an output among partials all bits are turned.
_PLACE = gl.constexpr(1)
_LOW = gl.constexpr(2)
_LAST = gl.constexpr(3)
_OF_ROWS = gl.constexpr(4)
_WIDTH = gl.constexpr(SPECIALISED_WIDTH)  # dims in a box
# The first dims of queries, where these alone are rotated: pairs of numbers, as they are loaded.
_PAIRS = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))
# Output as it is stored, 16 bytes at a time: of heads of 128 dims, and of 64.
_OUT = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
_NARROW_OUT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
# Names that change between releases.
_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
_meet = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
_IS_OLD = gl.constexpr(hasattr(gl.shared_memory_descriptor, "_reinterpret"))


def boxes(x: Tensor) -> Any:
    """A tensor map of paged memory [S, G, dim]."""
    flat = x.view(len(x), -1)
    swizzled = gl.NVMMASharedLayout(128, 16)  # as matrix units read 16-bit numbers
    return TensorDescriptor(
        flat, list(flat.shape), list(flat.stride()), [SPECIALISED_BOX, _WIDTH.value], swizzled
    )


@gluon.jit
def _key_of(
    tile, start, num_before, all_start, all_end, num_edges, KEYS: gl.constexpr = _KEYS
):  # fmt: skip
    """First key of a tile: of the edge before, of the one behind, or of what every row sees all of."""
    behind = gl.where(
        tile < num_edges,
        all_end + (tile - num_before) * KEYS,
        all_start + (tile - num_edges) * KEYS,
    )
    return gl.where(tile < num_before, start + tile * KEYS, behind)


@gluon.jit
def _boxes_of(room, COUNT: gl.constexpr, HEIGHT: gl.constexpr):
    """Rows of 128 dims as they lie there: boxes of 64 dims."""
    if _IS_OLD:
        return room._reinterpret(room.dtype, [COUNT, HEIGHT, _WIDTH], room.layout)
    else:
        return room.reinterpret(room.dtype, [COUNT, HEIGHT, _WIDTH], room.layout)


@gluon.jit
def _bring_one(
    copy_map, pages, last_page, key, column, boxes, first_box, barrier, PAGE: gl.constexpr,
    WIDE: gl.constexpr,
):  # fmt: skip
    """The keys (or values) of one tile, box by box."""
    for high in gl.static_range(_KEYS // _BOX):
        at = key + high * _BOX
        slot = gl.load(pages + gl.minimum(at // PAGE, last_page)) * PAGE + at % PAGE
        for wide in gl.static_range(WIDE):
            box = boxes.index(first_box + wide * (_KEYS // _BOX) + high)
            _copy(copy_map, [slot, column + wide * _WIDTH], barrier, box)


@gluon.jit
def _fact(facts, slot, FACT: gl.constexpr):
    """One of the numbers that are known of an item."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(facts.index(slot * _FACTS + FACT).load(LAYOUT), 0)


@gluon.jit
def _half(of_rows, slot, FACT: gl.constexpr, who, ROWS: gl.constexpr = _HALF_ROWS):
    """A fact of each row of one half of an item's rows, or of the first of these."""
    return of_rows.index(slot * _OF_ROWS + FACT).slice(who * _HALF_ROWS, ROWS)


@gluon.jit
def _put(facts, slot, FACT: gl.constexpr, number):
    """Set one of these numbers."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    facts.index(slot * _FACTS + FACT).store(gl.full([1], 0, gl.int32, LAYOUT) + number)


@gluon.jit
def _plan(
    entry_token, entry_offset, entry_low, entry_high, entry_partial, items, num_pieces,
    window, facts, of_rows, planned, read, GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr,
    HAS_WINDOW: gl.constexpr, DIRECT: gl.constexpr, KEYS: gl.constexpr = _KEYS,
    LEAVES: gl.constexpr = False,
):  # fmt: skip
    """One warp: all facts of the program's items, one item ahead.

    Programs take items in turns, there and back again: the longest come first, so each has its share. The
    key/value heads of an item stand side by side.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    m = gl.arange(0, 2 * _HALF_ROWS, LAYOUT)
    at = gl.program_id(0)
    # To the next one; two steps are twice the number of programs.
    step = 2 * (gl.num_programs(0) - at) - 1
    number = 0
    count = 1
    while count > 0:
        slot = number % _KNOWN
        kv_head = at % NUM_KV_HEADS
        item = items + gl.minimum(at, num_pieces - 1) // NUM_KV_HEADS * 6
        first_entry = gl.load(item)
        count = gl.load(item + 1)  # 0: padding of the list
        key_start, key_end = gl.load(item + 2), gl.load(item + 3)
        page_at, split = gl.load(item + 4), gl.load(item + 5)
        count = gl.where(at < num_pieces, count, 0)
        mbarrier.wait(read.index(slot), (number // _KNOWN) & 1 ^ 1)
        if count > 0:
            # Keys that any row sees lie between `start` and `end`; what all of them see between
            # `all_start` and `all_end`, in whole tiles. Boxes begin at multiples of their size.
            spare = gl.minimum(m // GROUP, count - 1)  # rows to spare repeat the last entry
            entry = first_entry + spare
            token = gl.load(entry_token + entry)
            offset = gl.load(entry_offset + entry)
            low = gl.load(entry_low + entry)
            high = gl.load(entry_high + entry)
            place = token
            if not DIRECT:
                partial = gl.load(entry_partial + entry)
                place = partial + split
                if LEAVES:
                    place = gl.where(partial < 0, ~token, place)
            last = gl.minimum(high, offset + 1)
            start = key_start
            if HAS_WINDOW:
                low = gl.maximum(low, offset - window + 1)
                start = gl.maximum(start, gl.min(low, 0) // _BOX * _BOX)
            end = gl.minimum(key_end, gl.max(last, 0))
            all_start = (gl.maximum(gl.max(low, 0), start) + _BOX - 1) // _BOX * _BOX
            num_whole = gl.maximum((gl.minimum(gl.min(last, 0), end) - all_start) // KEYS, 0)
            all_end = all_start + num_whole * KEYS
            num_before = gl.maximum((gl.minimum(all_start, end) - start + KEYS - 1) // KEYS, 0)
            num_behind = gl.where(all_start < end, (end - all_end + KEYS - 1) // KEYS, 0)
            num_edges = num_before + num_behind
            # At least one, even if no row sees anything.
            _put(facts, slot, _TILES, gl.maximum(num_edges + num_whole, 1))
            _put(facts, slot, _EDGES, num_edges)
            _put(facts, slot, _EDGES_BEFORE, num_before)
            _put(facts, slot, _START, start)
            _put(facts, slot, _ALL_START, all_start)
            _put(facts, slot, _ALL_END, all_end)
            _put(facts, slot, _END, end)
            _put(facts, slot, _WRITTEN, gl.max(high, 0))
            _put(facts, slot, _PAGES, page_at)
            _put(facts, slot, _KV_HEAD, kv_head)
            _put(facts, slot, _FIRST_ENTRY, first_entry)
            _put(facts, slot, _COUNT, count)
            of_rows.index(slot * _OF_ROWS + _TOKEN).store(token)
            of_rows.index(slot * _OF_ROWS + _PLACE).store(place)
            of_rows.index(slot * _OF_ROWS + _LOW).store(low)
            of_rows.index(slot * _OF_ROWS + _LAST).store(last)
        else:
            _put(facts, slot, _TILES, 0)
        _meet()
        mbarrier.arrive(planned.index(slot), count=1)
        at += step
        step = 2 * gl.num_programs(0) - step
        number += 1


@gluon.jit
def _bring(
    key_map, value_map, pages, pe_room, k_room, v_room, k_here, v_here, k_free, v_free, facts,
    planned, read, ROTARY: gl.constexpr, PAGE: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """One warp: keys and values of all tiles of all items, each as soon as there is room."""
    DIM: gl.constexpr = v_room.shape[2]
    WIDE: gl.constexpr = DIM // _WIDTH
    HIGH: gl.constexpr = _KEYS // _BOX
    BOXES: gl.constexpr = WIDE * HIGH  # of a tile
    pe_boxes = _boxes_of(pe_room, _STAGES * (HIGH if ROTARY > 0 else BOXES), _BOX)
    k_boxes = _boxes_of(k_room, _STAGES * BOXES, _BOX)
    v_boxes = _boxes_of(v_room, _STAGES * BOXES, _BOX)
    take_over(OVERLAP)
    number = 0
    brought = 0
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
        kv_head = _fact(facts, slot, _KV_HEAD)
        column = kv_head * DIM
        k_column = kv_head * (ROTARY + DIM)
        mbarrier.arrive(read.index(slot), count=1)
        for tile in range(num_tiles):
            stage = brought % _STAGES
            phase = (brought // _STAGES) & 1
            key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
            at = stage * BOXES
            mbarrier.wait(k_free.index(stage), phase ^ 1)
            mbarrier.expect(k_here.index(stage), _KEYS * (ROTARY + DIM) * 2)
            here = k_here.index(stage)
            if ROTARY > 0:
                _bring_one(
                    key_map, page_at, last_page, key, k_column, pe_boxes, stage * HIGH, here, PAGE, 1
                )  # fmt: skip
            _bring_one(
                key_map, page_at, last_page, key, k_column + ROTARY, k_boxes, at, here, PAGE, WIDE
            )  # fmt: skip
            mbarrier.wait(v_free.index(stage), phase ^ 1)
            mbarrier.expect(v_here.index(stage), _KEYS * DIM * 2)
            here = v_here.index(stage)
            _bring_one(value_map, page_at, last_page, key, column, v_boxes, at, here, PAGE, WIDE)
            brought += 1
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit
def _held(x):
    """X [n] of numbers from 0 on as it is, but bound to its place in the program.

    The assembler would move a wait for a product in front of the softmax that is to hide it. It leaves
    alone what a store depends on, and this one, of numbers below 0, never happens.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .u32 a; mov.u32 a, 0; setp.lt.f32 p, $1, 0f00000000; "
        "@p st.volatile.shared.f32 [a], $1; mov.f32 $0, $1; }",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _weights(scores, largest, total):
    """The running softmax with one more tile: weights, largest score, sum, and what is kept of sums."""
    new = gl.maximum(largest, gl.max(scores, 1))
    kept = gl.exp2(largest - new)
    weights = gl.exp2(scores - new[:, None])
    return weights, new, total * kept + gl.sum(weights, 1), kept


@gluon.jit
def _seen(scores, key, low, last, bound, LAYOUT: gl.constexpr):
    """Scores [ROWS, KEYS] of keys that a row does not see, and of those from `bound` on, are no scores."""
    index = gl.arange(0, _KEYS, gl.SliceLayout(0, LAYOUT))[None, :]
    end = gl.minimum(last, bound)
    seen = (index >= (low - key)[:, None]) & (index < (end - key)[:, None])
    return gl.where(seen, scores, -float("inf"))


@gluon.jit
def _clean(v_room, stage, key, written):
    """Values that were never written are perhaps not even numbers, and 0 times them is not 0: now it is."""
    HIGH: gl.constexpr = _KEYS // _BOX
    BOXES: gl.constexpr = v_room.shape[2] // _WIDTH * HIGH
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    boxes = _boxes_of(v_room, _STAGES * BOXES, _BOX)
    for i in range(BOXES):
        box = boxes.index(stage * BOXES + i)
        index = key + i % HIGH * _BOX + gl.arange(0, _BOX, gl.SliceLayout(1, LAYOUT))
        x = box.load(LAYOUT)
        box.store(
            gl.where((index < written)[:, None], x, gl.zeros([_BOX, _WIDTH], x.dtype, LAYOUT))
        )
    fence_async_shared()


@gluon.jit
def _clean_last(who, at, key, written, v_room, v_here, cleaned, num_cleaned):
    """If a tile goes beyond what is written, the first group of warps cleans its values, and the other waits."""
    stage = at % _STAGES
    mbarrier.wait(v_here.index(stage), (at // _STAGES) & 1)
    if key + _KEYS > written:
        if who == 0:
            _clean(v_room, stage, key, written)
            _meet()
            mbarrier.arrive(cleaned.index(num_cleaned % 2), count=1)
        else:
            mbarrier.wait(cleaned.index(num_cleaned % 2), (num_cleaned // 2) & 1)
        num_cleaned += 1
    return num_cleaned


@gluon.jit
def _load_queries(
    who, slot, q, cos, sin, q_token, q_head, facts, of_rows, DIM: gl.constexpr,
    GROUP: gl.constexpr, INTERLEAVED: gl.constexpr, ROWS: gl.constexpr = _HALF_ROWS,
):  # fmt: skip
    """Queries of ROWS rows of one half of an item's, in two parts, and cosines and sines of their offsets.

    Neighbours of one entry are rotated alike: rows are [ROWS / ALIKE, ALIKE, DIM / 2]. Pairs are
    neighbours, or one dim from each half: pairs that are not rotated have an angle of 0.
    """
    ALIKE: gl.constexpr = 4 if GROUP % 4 == 0 else 2 if GROUP % 2 == 0 else 1
    RUNS: gl.constexpr = ROWS // ALIKE
    EACH: gl.constexpr = DIM // 16  # pairs of a thread: eight threads for a row
    PAIRS: gl.constexpr = gl.BlockedLayout(
        [4 // ALIKE, ALIKE, EACH], [4, 1, 8], [4, 1, 1], [2, 1, 0]
    )
    OF_RUNS: gl.constexpr = gl.SliceLayout(1, PAIRS)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([4, 8], [4, 8], [4, 1], [1, 0]))
    first_entry, count = _fact(facts, slot, _FIRST_ENTRY), _fact(facts, slot, _COUNT)
    kv_head = _fact(facts, slot, _KV_HEAD)

    m = who * _HALF_ROWS + gl.arange(0, ROWS, OF_ROWS)
    m = gl.convert_layout(gl.reshape(m, [RUNS, ALIKE]), gl.SliceLayout(2, PAIRS))
    token = gl.reshape(_half(of_rows, slot, _TOKEN, who, ROWS).load(OF_ROWS), [RUNS, ALIKE])
    token = gl.convert_layout(token, gl.SliceLayout(2, PAIRS)).to(gl.int64)
    at = (token * q_token + (kv_head * GROUP + m % GROUP) * q_head)[:, :, None]
    i = gl.arange(0, DIM // 2, gl.SliceLayout(0, gl.SliceLayout(1, PAIRS)))
    d = gl.expand_dims(gl.expand_dims(i, 0), 1)
    if INTERLEAVED:
        x = gl.load(q + at + 2 * d)
        y = gl.load(q + at + 2 * d + 1)
    else:
        x = gl.load(q + at + d)
        y = gl.load(q + at + d + DIM // 2)
    m = who * _HALF_ROWS + gl.arange(0, RUNS, gl.SliceLayout(1, OF_RUNS)) * ALIKE
    entry = first_entry + gl.minimum(m // GROUP, count - 1)
    at = (entry.to(gl.int64) * (DIM // 2))[:, None] + i[None, :]
    return x, y, gl.load(cos + at), gl.load(sin + at)


@gluon.jit
def _rotate(at, x, y, c, s, scaling, q_room, INTERLEAVED: gl.constexpr):
    """Queries, rotated, to this place of shared memory."""
    ROWS: gl.constexpr = q_room.shape[1]
    DIM: gl.constexpr = q_room.shape[2]
    DTYPE: gl.constexpr = q_room.dtype
    x, y = x.to(gl.float32), y.to(gl.float32)
    c, s = (c * scaling)[:, None, :], (s * scaling)[:, None, :]
    first, second = (x * c - y * s).to(DTYPE), (y * c + x * s).to(DTYPE)
    _meet()  # all warps have done with the queries of the item before
    if INTERLEAVED:
        q_room.index(at).store(gl.reshape(gl.join(first, second), [ROWS, DIM]))
    elif DIM == _WIDTH:  # both halves in one box
        halves = gl.permute(gl.join(first, second), (0, 1, 3, 2))
        q_room.index(at).store(gl.reshape(halves, [ROWS, DIM]))
    else:
        WIDE: gl.constexpr = DIM // _WIDTH
        HALVES: gl.constexpr = q_room.shape[0]
        boxes = _boxes_of(q_room, HALVES * WIDE, ROWS)  # a box is one half of the dims
        boxes.index(at * WIDE).store(gl.reshape(first, [ROWS, _WIDTH]))
        boxes.index(at * WIDE + 1).store(gl.reshape(second, [ROWS, _WIDTH]))
    fence_async_shared()
    _meet()


@gluon.jit
def _first_dims(
    q, at, entry, cos, sin, scaling, ROWS: gl.constexpr, INTERLEAVED: gl.constexpr
):  # fmt: skip
    """The first dims [ROWS, 64] of queries at `at`, rotated as their entries are, and scaled."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    HALF: gl.constexpr = _WIDTH // 2
    i = gl.arange(0, HALF, gl.SliceLayout(0, _PAIRS))[None, :]
    if INTERLEAVED:
        x, y = gl.load(q + at[:, None] + 2 * i), gl.load(q + at[:, None] + 2 * i + 1)
    else:
        x, y = gl.load(q + at[:, None] + i), gl.load(q + at[:, None] + i + HALF)
    table_at = (entry.to(gl.int64) * HALF)[:, None] + i
    c, s = gl.load(cos + table_at) * scaling, gl.load(sin + table_at) * scaling
    x, y = x.to(gl.float32), y.to(gl.float32)
    pairs = gl.join((x * c - y * s).to(DTYPE), (y * c + x * s).to(DTYPE))
    if not INTERLEAVED:
        pairs = gl.permute(pairs, (0, 2, 1))
    return gl.reshape(pairs, [ROWS, _WIDTH])


@gluon.jit
def _bring_queries(
    who, slot, q, cos, sin, q_token, q_head, scaling, q_pe, q_room, facts, of_rows,
    GROUP: gl.constexpr, INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """Queries of one half of an item's rows, scaled: their first dims rotated, to a place of their own, the others as they are."""
    DTYPE: gl.constexpr = q_room.dtype
    DIM: gl.constexpr = q_room.shape[2]
    OF_PAIRS: gl.constexpr = gl.SliceLayout(1, _PAIRS)
    WHOLE: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    OF_WHOLE: gl.constexpr = gl.SliceLayout(1, WHOLE)
    first_entry, count = _fact(facts, slot, _FIRST_ENTRY), _fact(facts, slot, _COUNT)
    kv_head = _fact(facts, slot, _KV_HEAD)

    m = who * _HALF_ROWS + gl.arange(0, _HALF_ROWS, OF_PAIRS)
    token = _half(of_rows, slot, _TOKEN, who).load(OF_PAIRS).to(gl.int64)
    at = token * q_token + (kv_head * GROUP + m % GROUP) * q_head
    entry = first_entry + gl.minimum(m // GROUP, count - 1)
    turned = _first_dims(q, at, entry, cos, sin, scaling, _HALF_ROWS, INTERLEAVED)

    m = who * _HALF_ROWS + gl.arange(0, _HALF_ROWS, OF_WHOLE)
    token = _half(of_rows, slot, _TOKEN, who).load(OF_WHOLE).to(gl.int64)
    at = token * q_token + (kv_head * GROUP + m % GROUP) * q_head + _WIDTH
    d = gl.arange(0, DIM, gl.SliceLayout(0, WHOLE))[None, :]
    rest = (gl.load(q + at[:, None] + d).to(gl.float32) * scaling).to(DTYPE)
    _meet()  # all warps have done with the queries of the item before
    q_pe.index(who).store(turned)
    q_room.index(who).store(rest)
    fence_async_shared()
    _meet()


@gluon.jit
def _keys_of(slot, facts):
    """The facts of an item that say which keys its tiles have."""
    num_edges = _fact(facts, slot, _EDGES)
    num_before = _fact(facts, slot, _EDGES_BEFORE)
    start = _fact(facts, slot, _START)
    all_start = _fact(facts, slot, _ALL_START)
    all_end = _fact(facts, slot, _ALL_END)
    end = _fact(facts, slot, _END)
    written = _fact(facts, slot, _WRITTEN)
    return num_edges, num_before, start, all_start, all_end, end, written


@gluon.jit
def _begin(
    who, at, slot, q, cos, sin, q_token, q_head, scaling, room, facts, of_rows, GROUP: gl.constexpr,
    INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """Queries of one half of an item's rows, or of the first of these, to this place of `room`; which keys its tiles have."""
    found = _keys_of(slot, facts)
    x, y, c, s = _load_queries(
        who, slot, q, cos, sin, q_token, q_head, facts, of_rows, room.shape[2], GROUP, INTERLEAVED,
        room.shape[1],
    )  # fmt: skip
    _rotate(at, x, y, c, s, scaling, room, INTERLEAVED)
    return found


@gluon.jit
def _share(
    sinks, head, largest, total, place, LEAVES: gl.constexpr, HAS_SINKS: gl.constexpr
):  # fmt: skip
    """The factor of some rows' sums, [n] float32: one over the weight; of outputs, over the weight and their head's sink."""
    share = 1.0 / gl.where(total > 0, total, 1.0)
    if HAS_SINKS:
        sink = gl.load(sinks + head).to(gl.float32) * _LOG2E
        new = gl.maximum(largest, sink)
        kept = gl.exp2(largest - new)
        beside = kept / (total * kept + gl.exp2(sink - new))
        share = gl.where(place < 0, beside, share) if LEAVES else beside
    return share


@gluon.jit
def _store_rows(
    target, x, who, slot, kv_head, count, of_rows, GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr,
    LAYOUT: gl.constexpr, LEAVES: gl.constexpr, ARE_OUTPUTS: gl.constexpr,
):  # fmt: skip
    """Store rows x [ROWS, DIM] of one half of an item at their places; if LEAVES, those of outputs alone or of partials."""
    DIM: gl.constexpr = x.shape[1]
    x = gl.convert_layout(x.to(target.dtype.element_ty), LAYOUT)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    m = who * _HALF_ROWS + gl.arange(0, _HALF_ROWS, OF_ROWS)
    is_row = m // GROUP < count
    place = _half(of_rows, slot, _PLACE, who).load(OF_ROWS)
    if LEAVES:
        if ARE_OUTPUTS:
            place = ~place
        is_row = is_row & (place >= 0)
    place = place.to(gl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    d = gl.arange(0, DIM, gl.SliceLayout(0, LAYOUT))
    gl.store(target + (place * DIM)[:, None] + d[None, :], x, mask=is_row[:, None])


@gluon.jit
def _leave(
    who, slot, largest, total, summed, partials, lses, out, sinks, facts, of_rows,
    GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr, ROTARY: gl.constexpr, DIRECT: gl.constexpr,
    LEAVES: gl.constexpr = False, HAS_SINKS: gl.constexpr = False,
):  # fmt: skip
    """Store the results of one half of an item's rows: their partials, or outputs.

    `out` and `sinks` are looked at if LEAVES and HAS_SINKS.
    """
    DIM: gl.constexpr = summed.shape[1]
    SUMS: gl.constexpr = summed.type.layout
    OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)
    kv_head, count = _fact(facts, slot, _KV_HEAD), _fact(facts, slot, _COUNT)
    largest = gl.convert_layout(largest, OF_SUMS)
    total = gl.convert_layout(total, OF_SUMS)
    m = who * _HALF_ROWS + gl.arange(0, _HALF_ROWS, OF_SUMS)
    head = kv_head * GROUP + m % GROUP
    place = _half(of_rows, slot, _PLACE, who).load(OF_SUMS)
    share = _share(sinks, head, largest, total, place, LEAVES, HAS_SINKS)
    results = summed * share[:, None]
    # To turn outputs takes shared memory, of which longer keys leave none.
    WHOLE: gl.constexpr = _OUT if DIM == 2 * _WIDTH else _NARROW_OUT
    TURNED: gl.constexpr = WHOLE if ROTARY == 0 else SUMS
    IS_OUTPUT: gl.constexpr = True
    IS_PARTIAL: gl.constexpr = False
    if LEAVES:
        _store_rows(
            out, results, who, slot, kv_head, count, of_rows, GROUP, NUM_KV_HEADS, TURNED, LEAVES,
            IS_OUTPUT,
        )  # fmt: skip
    if DIRECT:
        _store_rows(
            partials, results, who, slot, kv_head, count, of_rows, GROUP, NUM_KV_HEADS, TURNED,
            LEAVES, IS_OUTPUT,
        )  # fmt: skip
    else:
        lse = gl.where(total > 0, largest + gl.log2(gl.where(total > 0, total, 1.0)), -1e30)
        at = lses + place.to(gl.int64) * (NUM_KV_HEADS * GROUP) + head
        gl.store(at, lse, mask=(m // GROUP < count) & (place >= 0))
        _store_rows(
            partials, results, who, slot, kv_head, count, of_rows, GROUP, NUM_KV_HEADS, SUMS,
            LEAVES, IS_PARTIAL,
        )  # fmt: skip


@gluon.jit
def _ask(queries, turned, keys, pe_room, stage, nothing, ROTARY: gl.constexpr):
    """Scores of a tile, on their way: of all dims at once, or of the rotated ones and then of the others."""
    if ROTARY > 0:
        pe = pe_room.index(stage).permute((1, 0))
        asked = warpgroup_mma(turned, pe, nothing, use_acc=False, is_async=True)
        return warpgroup_mma(queries, keys, asked, is_async=True)
    else:
        return warpgroup_mma(queries, keys, nothing, use_acc=False, is_async=True)


@gluon.jit
def _item(
    who, slot, taken, num_tiles, num_cleaned, q, cos, sin, partials, lses, out, sinks, q_token, q_head,
    scaling, q_pe, q_room, pe_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned, facts, of_rows,
    GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr, ROTARY: gl.constexpr, INTERLEAVED: gl.constexpr,
    DIRECT: gl.constexpr, LEAVES: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    """One half of the rows of one item, through all its tiles."""
    DIM: gl.constexpr = v_room.shape[2]
    DTYPE: gl.constexpr = k_room.dtype
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    OF_SCORES: gl.constexpr = gl.SliceLayout(1, SCORES)
    OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)

    if ROTARY > 0:
        num_edges, num_before, start, all_start, all_end, end, written = _keys_of(slot, facts)
        _bring_queries(
            who, slot, q, cos, sin, q_token, q_head, scaling, q_pe, q_room, facts, of_rows, GROUP,
            INTERLEAVED,
        )  # fmt: skip
    else:
        num_edges, num_before, start, all_start, all_end, end, written = _begin(
            who, who, slot, q, cos, sin, q_token, q_head, scaling, q_room, facts, of_rows, GROUP,
            INTERLEAVED,
        )  # fmt: skip
    queries = q_room.index(who)
    turned = q_pe.index(who)

    low = _half(of_rows, slot, _LOW, who).load(OF_SCORES)
    last = _half(of_rows, slot, _LAST, who).load(OF_SCORES)
    largest = gl.full([_HALF_ROWS], -1e30, gl.float32, OF_SCORES)
    total = gl.full([_HALF_ROWS], 0.0, gl.float32, OF_SCORES)
    summed = gl.zeros([_HALF_ROWS, DIM], gl.float32, SUMS)
    nothing = gl.zeros([_HALF_ROWS, _KEYS], gl.float32, SCORES)

    # The first tile is an edge, or may be taken for one.
    stage = taken % _STAGES
    mbarrier.wait(k_here.index(stage), (taken // _STAGES) & 1)
    keys = k_room.index(stage).permute((1, 0))
    asked = _ask(queries, turned, keys, pe_room, stage, nothing, ROTARY)
    scores = warpgroup_mma_wait(0, deps=[asked])
    mbarrier.arrive(k_free.index(stage), count=1)
    key = _key_of(0, start, num_before, all_start, all_end, num_edges)
    bound = gl.where(num_before > 0, gl.minimum(all_start, end), end)
    scores = _seen(scores, key, low, last, bound, SCORES)
    weights, largest, total, kept = _weights(scores, largest, total)
    weighted = gl.convert_layout(weights.to(DTYPE), WEIGHTS)

    for tile in range(1, num_edges):
        at = taken + tile
        num_cleaned = _clean_last(who, at - 1, key, written, v_room, v_here, cleaned, num_cleaned)
        before = (at - 1) % _STAGES
        stage = at % _STAGES
        mbarrier.wait(k_here.index(stage), (at // _STAGES) & 1)
        keys = k_room.index(stage).permute((1, 0))
        asked = _ask(queries, turned, keys, pe_room, stage, nothing, ROTARY)
        adding = warpgroup_mma(weighted, v_room.index(before), summed, is_async=True)
        scores, summed, weighted = warpgroup_mma_wait(0, deps=[asked, adding, weighted])
        mbarrier.arrive(k_free.index(stage), count=1)
        mbarrier.arrive(v_free.index(before), count=1)
        key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
        bound = gl.where(tile < num_before, gl.minimum(all_start, end), end)
        scores = _seen(scores, key, low, last, bound, SCORES)
        weights, largest, total, kept = _weights(scores, largest, total)
        summed = summed * gl.convert_layout(kept, OF_SUMS)[:, None]
        weighted = gl.convert_layout(weights.to(DTYPE), WEIGHTS)

    last_edge = gl.maximum(num_edges, 1) - 1
    num_cleaned = _clean_last(
        who, taken + last_edge, key, written, v_room, v_here, cleaned, num_cleaned
    )
    for tile in range(last_edge + 1, num_tiles):
        at = taken + tile
        before = (at - 1) % _STAGES
        stage = at % _STAGES
        mbarrier.wait(k_here.index(stage), (at // _STAGES) & 1)
        keys = k_room.index(stage).permute((1, 0))
        asked = _ask(queries, turned, keys, pe_room, stage, nothing, ROTARY)
        mbarrier.wait(v_here.index(before), ((at - 1) // _STAGES) & 1)
        adding = warpgroup_mma(weighted, v_room.index(before), summed, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[asked])
        mbarrier.arrive(k_free.index(stage), count=1)
        weights, largest, total, kept = _weights(scores, largest, total)
        next_weighted = gl.convert_layout(weights.to(DTYPE), WEIGHTS)
        total = _held(total)
        # Results of the softmax are operands of the wait, lest it is taken to come after.
        summed, weighted, next_weighted, total = warpgroup_mma_wait(
            0, deps=[adding, weighted, next_weighted, total]
        )
        mbarrier.arrive(v_free.index(before), count=1)
        summed = summed * gl.convert_layout(kept, OF_SUMS)[:, None]
        weighted = next_weighted

    at = taken + num_tiles - 1
    before = at % _STAGES
    mbarrier.wait(v_here.index(before), (at // _STAGES) & 1)
    adding = warpgroup_mma(weighted, v_room.index(before), summed, is_async=True)
    summed, weighted = warpgroup_mma_wait(0, deps=[adding, weighted])
    mbarrier.arrive(v_free.index(before), count=1)

    _leave(
        who, slot, largest, total, summed, partials, lses, out, sinks, facts, of_rows, GROUP,
        NUM_KV_HEADS, ROTARY, DIRECT, LEAVES, HAS_SINKS,
    )  # fmt: skip
    return num_cleaned


@gluon.jit
def _leave_few(
    slot, largest, total, summed, partials, lses, sinks, facts, of_rows, GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr, DIRECT: gl.constexpr, HAS_SINKS: gl.constexpr = False,
):  # fmt: skip
    """Store the results of the few rows behind the first half of an item, from weights [KEYS, FEW] and sums [DIM, FEW]."""
    SECOND: gl.constexpr = 1
    DIM: gl.constexpr = summed.shape[0]
    FEW: gl.constexpr = summed.shape[1]
    kv_head, count = _fact(facts, slot, _KV_HEAD), _fact(facts, slot, _COUNT)
    sums = gl.sum(total, 0)
    m = _HALF_ROWS + gl.arange(0, FEW, gl.SliceLayout(0, summed.type.layout))
    LEAVES: gl.constexpr = False  # prompts have other tiles
    share = _share(sinks, kv_head * GROUP + m % GROUP, largest, sums, m, LEAVES, HAS_SINKS)
    out = summed * share[None, :]
    OUT: gl.constexpr = gl.BlockedLayout([4, 1], [32, 1], [1, 4], [0, 1])
    OF_OUT: gl.constexpr = gl.SliceLayout(0, OUT)
    out = gl.convert_layout(out.to(partials.dtype.element_ty), OUT)
    m = _HALF_ROWS + gl.arange(0, FEW, OF_OUT)
    is_row = m // GROUP < count
    place = _half(of_rows, slot, _PLACE, SECOND, FEW).load(OF_OUT).to(gl.int64)
    place = place * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + m % GROUP
    if not DIRECT:
        lse = gl.where(sums > 0, largest + gl.log2(gl.where(sums > 0, sums, 1.0)), -1e30)
        lse = gl.convert_layout(lse, OF_OUT)
        gl.store(lses + place, lse, mask=is_row)
    d = gl.arange(0, DIM, gl.SliceLayout(1, OUT))
    gl.store(partials + (place * DIM)[None, :] + d[:, None], out, mask=is_row[None, :])


@gluon.jit
def _few_item(
    slot, taken, num_tiles, num_cleaned, q, cos, sin, partials, lses, sinks, q_token, q_head, scaling,
    few_room, p_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned, facts, of_rows,
    GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr, INTERLEAVED: gl.constexpr, DIRECT: gl.constexpr,
    HAS_SINKS: gl.constexpr, FEW: gl.constexpr,
):  # fmt: skip
    """The FEW rows behind the first half of one item, through all its tiles: keys and values on the left of both products.

    The narrow side of a product is as wide as these rows, and 64 rows most of which are padding would keep the first half
    waiting for the matrix units. Scores and sums are transposed, [KEYS, FEW] and [DIM, FEW]; weights go through
    shared memory, where the right operand lies.
    """
    SECOND: gl.constexpr = 1
    DIM: gl.constexpr = k_room.shape[2]
    DTYPE: gl.constexpr = k_room.dtype
    TURNED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FEW, 16])
    OF_TURNED: gl.constexpr = gl.SliceLayout(0, TURNED)

    num_edges, num_before, start, all_start, all_end, end, written = _begin(
        SECOND, 0, slot, q, cos, sin, q_token, q_head, scaling, few_room, facts, of_rows, GROUP,
        INTERLEAVED,
    )  # fmt: skip
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
        stage = at % _STAGES
        mbarrier.wait(k_here.index(stage), (at // _STAGES) & 1)
        asked = warpgroup_mma(k_room.index(stage), queries, nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[asked])
        mbarrier.arrive(k_free.index(stage), count=1)
        if tile < edges:
            key = _key_of(tile, start, num_before, all_start, all_end, num_edges)
            bound = gl.where(tile < num_before, gl.minimum(all_start, end), end)
            index = key + gl.arange(0, _KEYS, gl.SliceLayout(1, TURNED))[:, None]
            seen = (index >= low[None, :]) & (index < gl.minimum(last, bound)[None, :])
            scores = gl.where(seen, scores, -float("inf"))
            num_cleaned = _clean_last(
                SECOND, at, key, written, v_room, v_here, cleaned, num_cleaned
            )
        new = gl.maximum(largest, gl.max(scores, 0))
        kept = gl.exp2(largest - new)
        weights = gl.exp2(scores - new[None, :])
        total = total * kept[None, :] + weights
        largest = new
        _meet()  # all warps have done with the weights of the tile before
        p_room.store(weights.to(DTYPE))
        fence_async_shared()
        _meet()
        mbarrier.wait(v_here.index(stage), (at // _STAGES) & 1)
        values = v_room.index(stage).permute((1, 0))
        adding = warpgroup_mma(values, p_room, summed * kept[None, :], is_async=True)
        summed = warpgroup_mma_wait(0, deps=[adding])
        mbarrier.arrive(v_free.index(stage), count=1)

    _leave_few(
        slot, largest, total, summed, partials, lses, sinks, facts, of_rows, GROUP, NUM_KV_HEADS,
        DIRECT, HAS_SINKS,
    )  # fmt: skip
    return num_cleaned


@gluon.jit
def _multiply(
    who, q, cos, sin, partials, lses, out, sinks, q_token, q_head, scaling, q_pe, q_room, few_room,
    p_room, pe_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned, facts, of_rows, planned, read,
    GROUP: gl.constexpr, NUM_KV_HEADS: gl.constexpr, ROTARY: gl.constexpr, INTERLEAVED: gl.constexpr,
    DIRECT: gl.constexpr, LEAVES: gl.constexpr, HAS_SINKS: gl.constexpr, FEW: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """Four warps: one half of the rows of every item, or its few."""
    take_over(OVERLAP)
    number = 0
    taken = 0  # tiles
    num_cleaned = 0
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        if FEW * who > 0:
            num_cleaned = _few_item(
                slot, taken, num_tiles, num_cleaned, q, cos, sin, partials, lses, sinks, q_token, q_head,
                scaling, few_room, p_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned,
                facts, of_rows, GROUP, NUM_KV_HEADS, INTERLEAVED, DIRECT, HAS_SINKS, FEW,
            )  # fmt: skip
        else:
            num_cleaned = _item(
                who, slot, taken, num_tiles, num_cleaned, q, cos, sin, partials, lses, out, sinks,
                q_token, q_head, scaling, q_pe, q_room, pe_room, k_room, v_room, k_here, v_here, k_free,
                v_free, cleaned, facts, of_rows, GROUP, NUM_KV_HEADS, ROTARY, INTERLEAVED, DIRECT,
                LEAVES, HAS_SINKS,
            )  # fmt: skip
        _meet()  # one thread says it for all four warps
        mbarrier.arrive(read.index(slot), count=1)
        taken += num_tiles
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit(do_not_specialize=["num_pieces"])
def specialised_kernel(
    q,
    key_map,
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
    partials,  # [P, H, D] float32; or the output [T, H, D] itself, if every token has one partial
    lses,  # [P, H] float32, in units of log 2
    q_token,
    q_head,
    scaling,
    window,
    out,  # [T, H, D], written to if LEAVES
    sinks,  # [H], read if HAS_SINKS
    num_pieces,  # I times key/value heads
    GROUP: gl.constexpr,
    NUM_KV_HEADS: gl.constexpr,
    HEAD_DIM: gl.constexpr,  # of a key
    ROTARY: gl.constexpr,  # its first dims, if these alone are rotated; 0: all are
    INTERLEAVED: gl.constexpr,
    PAGE: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    DIRECT: gl.constexpr,
    LEAVES: gl.constexpr,  # outputs of tokens whose partials are below 0
    HAS_SINKS: gl.constexpr,  # of outputs that are left at once; else merging knows them
    FEW: gl.constexpr,  # rows of an item beyond half of a tile at most, if these are not as many
    OVERLAP: gl.constexpr,
):
    """Programs of any number: each takes pieces, of an item and a key/value head, until there are no more."""
    DTYPE: gl.constexpr = q.dtype.element_ty
    LAYOUT: gl.constexpr = key_map.layout
    # Dims of a product are a power of two: rotated ones have places and a product of their own.
    REST: gl.constexpr = HEAD_DIM - ROTARY
    if FEW > 0:
        q_room = gl.allocate_shared_memory(DTYPE, [1, _HALF_ROWS, HEAD_DIM], LAYOUT)
        few_room = gl.allocate_shared_memory(DTYPE, [1, FEW, HEAD_DIM], LAYOUT)
        OF_WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(2 * FEW, 16)
        p_room = gl.allocate_shared_memory(DTYPE, [_KEYS, FEW], OF_WEIGHTS)
    else:
        q_room = gl.allocate_shared_memory(DTYPE, [2, _HALF_ROWS, REST], LAYOUT)
        few_room = q_room
        p_room = q_room
    k_room = gl.allocate_shared_memory(DTYPE, [_STAGES, _KEYS, REST], LAYOUT)
    v_room = gl.allocate_shared_memory(DTYPE, [_STAGES, _KEYS, REST], LAYOUT)
    if ROTARY > 0:
        q_pe = gl.allocate_shared_memory(DTYPE, [2, _HALF_ROWS, ROTARY], LAYOUT)
        pe_room = gl.allocate_shared_memory(DTYPE, [_STAGES, _KEYS, ROTARY], LAYOUT)
    else:
        q_pe = q_room
        pe_room = k_room
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    k_here = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    v_here = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    k_free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    v_free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    cleaned = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIERS)
    planned = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    read = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    facts = gl.allocate_shared_memory(gl.int32, [_KNOWN * _FACTS, 1], PLAIN)
    of_rows = gl.allocate_shared_memory(gl.int32, [_KNOWN * _OF_ROWS, 2 * _HALF_ROWS], PLAIN)
    for stage in gl.static_range(_STAGES):
        mbarrier.init(k_here.index(stage), count=1)
        mbarrier.init(v_here.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    for i in gl.static_range(2):
        mbarrier.init(cleaned.index(i), count=1)
    for i in gl.static_range(_KNOWN):
        mbarrier.init(planned.index(i), count=1)
        mbarrier.init(read.index(i), count=3)
    fence_async_shared()

    # Gluon forgets that constants are constants in a tuple that has a name: hence twice in full.
    FIRST: gl.constexpr = 0
    SECOND: gl.constexpr = 1
    gl.warp_specialize(
        [
            (_multiply, (
                FIRST, q, cos, sin, partials, lses, out, sinks, q_token, q_head, scaling, q_pe, q_room,
                few_room, p_room, pe_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned,
                facts, of_rows, planned, read, GROUP, NUM_KV_HEADS, ROTARY, INTERLEAVED, DIRECT,
                LEAVES, HAS_SINKS, FEW, OVERLAP,
            )),
            (_multiply, (
                SECOND, q, cos, sin, partials, lses, out, sinks, q_token, q_head, scaling, q_pe, q_room,
                few_room, p_room, pe_room, k_room, v_room, k_here, v_here, k_free, v_free, cleaned,
                facts, of_rows, planned, read, GROUP, NUM_KV_HEADS, ROTARY, INTERLEAVED, DIRECT,
                LEAVES, HAS_SINKS, FEW, OVERLAP,
            )),
            (_bring, (
                key_map, value_map, pages, pe_room, k_room, v_room, k_here, v_here, k_free, v_free,
                facts, planned, read, ROTARY, PAGE, OVERLAP,
            )),
            (_plan, (
                entry_token, entry_offset, entry_low, entry_high, entry_partial, items, num_pieces,
                window, facts, of_rows, planned, read, GROUP, NUM_KV_HEADS, HAS_WINDOW, DIRECT, _KEYS,
                LEAVES,
            )),
        ],
        [4, 1, 1],
        [_REGISTERS, _FEW_REGISTERS, _FEW_REGISTERS],
    )  # fmt: skip

"""Attention over latents by specialised warps: four score, eight sum up, two others plan and load (Hopper).

A latent (`attention/latents.py`) is key and value at once, and wide: the sums of 64 rows are 64 x 512 numbers, half of all
registers of a processor, and a tile of 64 latents takes 72 KiB of shared memory, a third of it. In the kernel of `attend.py` every
warp loads, through registers, and multiplies, one after the other. Here, beside the warps that plan and bring as in
`specialised.py`:

    four warps    make the scores of 64 rows, and their weights (`_score`)
    eight warps   sum up latents by these weights, each four for half of the dims (`_sum_up`)

A tile lies in shared memory once, [64, 64] rotated keys k_pe and [64, 512] latents c: both are the right operand of the scores,
c is that of the sums, too. Weights come to the eight warps through shared memory, where the tile's k_pe lay, which nothing reads any
more; what is kept of older sums stands beside them. While one tile is summed up, the scores of the next one are made. While
an item's sums are stored, the scores of the next item are.

Shared memory has room for two tiles beside the queries, so the matrix units wait while exponentials are taken: a third tile would be
needed to score ahead of that (docs/performance_layers.md, "Latents").

Items are those of `attend.py`, with parts of the query heads in the place of key/value heads, and so is what they leave.
Items with fewer rows have padding: reading a tile takes longer than the products of 64 rows.

    R, C  dims of k_pe and of c: 64, and 512 or 256
"""

# Kernels are written in Gluon, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.specialised import (
    _BOX,
    _COUNT,
    _EDGES,
    _FACTS,
    _FEW_REGISTERS,
    _FIRST_ENTRY,
    _HALF_ROWS,
    _KNOWN,
    _KV_HEAD,
    _LAST,
    _LOW,
    _OF_ROWS,
    _PAGES,
    _PAIRS,
    _PLACE,
    _STAGES,
    _TILES,
    _TOKEN,
    _WIDTH,
    _boxes_of,
    _copy,
    _fact,
    _first_dims,
    _key_of,
    _keys_of,
    _meet,
    _plan,
    _weights,
)
from manyhands.attention.launches import LATENT_ROWS

_KEYS = gl.constexpr(64)  # of a tile: one box
_ROWS = gl.constexpr(LATENT_ROWS)  # of an item
# Dims of one product of the sums: with twice as many it has more registers than the assembler allows 512 threads.
_DIMS = gl.constexpr(128)
_REGISTERS = gl.constexpr(136)  # of a thread that scores
# Facts of each row that stand beside the weights of a tile:
_KEPT = gl.constexpr(0)  # of older sums
_LARGEST = gl.constexpr(1)  # score
_TOTAL = gl.constexpr(2)  # of weights
_TOLD = gl.constexpr(3)


@gluon.jit
def _of_rows(of_rows, slot, FACT: gl.constexpr):
    """A fact of each row of an item."""
    return of_rows.index(slot * _OF_ROWS + FACT).slice(0, _ROWS)


@gluon.jit
def _bring(
    latent_map, pages, pe_room, c_room, here, free, facts, planned, read, PAGE: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """One warp: the latents of all tiles of all items, each as soon as there is room."""
    WIDE: gl.constexpr = c_room.shape[2] // _WIDTH
    c_boxes = _boxes_of(c_room, _STAGES * WIDE, _BOX)
    take_over(OVERLAP)
    number = 0
    brought = 0
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        num_edges, num_before, start, all_start, all_end, end, _written = _keys_of(slot, facts)
        last_page = gl.maximum(end - 1, 0) // PAGE
        page_at = pages + _fact(facts, slot, _PAGES)
        mbarrier.arrive(read.index(slot), count=1)
        for tile in range(num_tiles):
            stage = brought % _STAGES
            key = _key_of(tile, start, num_before, all_start, all_end, num_edges, _KEYS)
            slot_at = gl.load(page_at + gl.minimum(key // PAGE, last_page)) * PAGE + key % PAGE
            mbarrier.wait(free.index(stage), (brought // _STAGES) & 1 ^ 1)
            mbarrier.expect(here.index(stage), _KEYS * (WIDE + 1) * _WIDTH * 2)
            _copy(latent_map, [slot_at, 0], here.index(stage), pe_room.index(stage))
            for wide in gl.static_range(WIDE):
                box = c_boxes.index(stage * WIDE + wide)
                _copy(latent_map, [slot_at, (wide + 1) * _WIDTH], here.index(stage), box)
            brought += 1
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit
def _bring_queries(
    slot, q, cos, sin, q_token, q_head, scaling, q_pe, q_c, facts, of_rows, GROUP: gl.constexpr,
    INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """Queries of an item's rows to shared memory, scaled: their first R dims rotated, the others as they are."""
    DTYPE: gl.constexpr = q_c.dtype
    LATENT: gl.constexpr = q_c.shape[2]
    OF_PAIRS: gl.constexpr = gl.SliceLayout(1, _PAIRS)
    WHOLE: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    OF_WHOLE: gl.constexpr = gl.SliceLayout(1, WHOLE)
    first_entry, count = _fact(facts, slot, _FIRST_ENTRY), _fact(facts, slot, _COUNT)
    part = _fact(facts, slot, _KV_HEAD)

    m = gl.arange(0, _ROWS, OF_PAIRS)
    token = _of_rows(of_rows, slot, _TOKEN).load(OF_PAIRS).to(gl.int64)
    at = token * q_token + (part * GROUP + m % GROUP) * q_head
    entry = first_entry + gl.minimum(m // GROUP, count - 1)
    turned = _first_dims(q, at, entry, cos, sin, scaling, _ROWS, INTERLEAVED)

    m = gl.arange(0, _ROWS, OF_WHOLE)
    token = _of_rows(of_rows, slot, _TOKEN).load(OF_WHOLE).to(gl.int64)
    at = token * q_token + (part * GROUP + m % GROUP) * q_head + _WIDTH
    d = gl.arange(0, LATENT, gl.SliceLayout(0, WHOLE))[None, :]
    rest = (gl.load(q + at[:, None] + d).to(gl.float32) * scaling).to(DTYPE)
    # All four warps have done with the queries of the item before: they met behind its last tile.
    q_pe.index(0).store(turned)
    q_c.index(0).store(rest)
    fence_async_shared()
    _meet()


@gluon.jit
def _clean(c_room, stage, key, written):
    """Latents that were never written are perhaps not even numbers, and 0 times them is not 0: now it is."""
    WIDE: gl.constexpr = c_room.shape[2] // _WIDTH
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    boxes = _boxes_of(c_room, _STAGES * WIDE, _BOX)
    is_written = (key + gl.arange(0, _BOX, gl.SliceLayout(1, LAYOUT)) < written)[:, None]
    for wide in range(WIDE):
        box = boxes.index(stage * WIDE + wide)
        x = box.load(LAYOUT)
        box.store(gl.where(is_written, x, gl.zeros([_BOX, _WIDTH], x.dtype, LAYOUT)))


@gluon.jit
def _leave(
    slot, largest, total, summed, partials, lses, facts, of_rows, GROUP: gl.constexpr,
    NUM_PARTS: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """Store the results of an item's rows: their partials (see merge.py), or outputs."""
    LATENT: gl.constexpr = summed.shape[1]
    SUMS: gl.constexpr = summed.type.layout
    OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)
    FACTORS: gl.constexpr = not DIRECT and partials.dtype.element_ty == gl.float16
    seen_any = total > 0
    total = gl.where(seen_any, total, 1.0)
    m = gl.arange(0, _ROWS, OF_SUMS)
    is_row = m // GROUP < _fact(facts, slot, _COUNT)
    head = _fact(facts, slot, _KV_HEAD) * GROUP + m % GROUP
    place = _of_rows(of_rows, slot, _PLACE).load(OF_SUMS).to(gl.int64)
    place = place * (NUM_PARTS * GROUP) + head
    size = total
    if FACTORS:
        size = gl.sum(gl.abs(summed), 1)
        size = gl.where(size > 0, size, 1.0)
    if not DIRECT:
        lse = gl.where(seen_any, largest + gl.log2(total), -1e30)
        if FACTORS:
            gl.store(lses + 2 * place, lse, mask=is_row)
            gl.store(lses + 2 * place + 1, size / total, mask=is_row)
        else:
            gl.store(lses + place, lse, mask=is_row)
    d = gl.arange(0, LATENT, gl.SliceLayout(0, SUMS))
    out = (summed * (1.0 / size)[:, None]).to(partials.dtype.element_ty)
    gl.store(partials + (place * LATENT)[:, None] + d[None, :], out, mask=is_row[:, None])


@gluon.jit
def _seen(scores, slot, tile, stage, low, last, c_room, facts):
    """Scores of an edge: those of keys that a row does not see are no scores, and what is not written is cleaned."""
    SCORES: gl.constexpr = scores.type.layout
    num_edges, num_before, start, all_start, all_end, end, written = _keys_of(slot, facts)
    key = _key_of(tile, start, num_before, all_start, all_end, num_edges, _KEYS)
    bound = gl.where(tile < num_before, gl.minimum(all_start, end), end)
    index = key + gl.arange(0, _KEYS, gl.SliceLayout(0, SCORES))[None, :]
    seen = (index >= low[:, None]) & (index < gl.minimum(last, bound)[:, None])
    if key + _KEYS > written:
        _clean(c_room, stage, key, written)
    return gl.where(seen, scores, -float("inf"))


@gluon.jit
def _score_item(
    slot, taken, num_tiles, q, cos, sin, q_token, q_head, scaling, q_pe, q_c, pe_room, c_room, told,
    here, scored, facts, of_rows, GROUP: gl.constexpr, INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """The scores of one item's rows, and their weights, tile by tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    OF_SCORES: gl.constexpr = gl.SliceLayout(1, SCORES)
    _bring_queries(
        slot, q, cos, sin, q_token, q_head, scaling, q_pe, q_c, facts, of_rows, GROUP, INTERLEAVED
    )
    edges = gl.maximum(_fact(facts, slot, _EDGES), 1)  # the first tile may be taken for one
    low = _of_rows(of_rows, slot, _LOW).load(OF_SCORES)
    last = _of_rows(of_rows, slot, _LAST).load(OF_SCORES)
    largest = gl.full([_ROWS], -1e30, gl.float32, OF_SCORES)
    total = gl.full([_ROWS], 0.0, gl.float32, OF_SCORES)
    nothing = gl.zeros([_ROWS, _KEYS], gl.float32, SCORES)
    for tile in range(num_tiles):
        at = taken + tile
        stage = at % _STAGES
        mbarrier.wait(here.index(stage), (at // _STAGES) & 1)
        turned, latents = pe_room.index(stage), c_room.index(stage)
        asked = warpgroup_mma(
            q_pe.index(0), turned.permute((1, 0)), nothing, use_acc=False, is_async=True
        )
        asked = warpgroup_mma(q_c.index(0), latents.permute((1, 0)), asked, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[asked])
        _meet()  # all four warps have done with k_pe, whose place the weights take, and with what is not written
        if tile < edges:
            scores = _seen(scores, slot, tile, stage, low, last, c_room, facts)
        weights, largest, total, kept = _weights(scores, largest, total)
        turned.store(weights.to(turned.dtype))
        told.index(stage * _TOLD + _KEPT).store(kept)
        told.index(stage * _TOLD + _LARGEST).store(largest)
        told.index(stage * _TOLD + _TOTAL).store(total)
        fence_async_shared()
        _meet()  # one thread says it for all four warps
        mbarrier.arrive(scored.index(stage), count=1)


@gluon.jit
def _score(
    q, cos, sin, q_token, q_head, scaling, q_pe, q_c, pe_room, c_room, told, here, scored, facts,
    of_rows, planned, read, GROUP: gl.constexpr, INTERLEAVED: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Four warps: the scores of all items, and their weights."""
    take_over(OVERLAP)
    number = 0
    taken = 0  # tiles
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        _score_item(
            slot, taken, num_tiles, q, cos, sin, q_token, q_head, scaling, q_pe, q_c, pe_room,
            c_room, told, here, scored, facts, of_rows, GROUP, INTERLEAVED,
        )  # fmt: skip
        mbarrier.arrive(read.index(slot), count=1)
        taken += num_tiles
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit
def _sum_item(
    slot, taken, num_tiles, partials, lses, pe_room, c_room, told, scored, free, facts, of_rows,
    GROUP: gl.constexpr, NUM_PARTS: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """The sums of one item's rows, through all its tiles."""
    LATENT: gl.constexpr = c_room.shape[2]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, _DIMS, 16])
    OF_SUMS: gl.constexpr = gl.SliceLayout(1, SUMS)
    summed = gl.zeros([_ROWS, LATENT], gl.float32, SUMS)
    largest = gl.full([_ROWS], 0.0, gl.float32, OF_SUMS)
    total = gl.full([_ROWS], 0.0, gl.float32, OF_SUMS)
    for tile in range(num_tiles):
        at = taken + tile
        stage = at % _STAGES
        mbarrier.wait(scored.index(stage), (at // _STAGES) & 1)
        summed = summed * told.index(stage * _TOLD + _KEPT).load(OF_SUMS)[:, None]
        adding = warpgroup_mma(pe_room.index(stage), c_room.index(stage), summed, is_async=True)
        largest = told.index(stage * _TOLD + _LARGEST).load(OF_SUMS)
        total = told.index(stage * _TOLD + _TOTAL).load(OF_SUMS)
        summed = warpgroup_mma_wait(0, deps=[adding])
        _meet()  # one thread says it for all eight warps
        mbarrier.arrive(free.index(stage), count=1)
    _leave(slot, largest, total, summed, partials, lses, facts, of_rows, GROUP, NUM_PARTS, DIRECT)


@gluon.jit
def _sum_up(
    partials, lses, pe_room, c_room, told, scored, free, facts, of_rows, planned, read,
    GROUP: gl.constexpr, NUM_PARTS: gl.constexpr, DIRECT: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Eight warps: the sums of all items."""
    take_over(OVERLAP)
    number = 0
    taken = 0  # tiles
    mbarrier.wait(planned.index(0), 0)
    num_tiles = _fact(facts, 0, _TILES)
    while num_tiles > 0:
        slot = number % _KNOWN
        _sum_item(
            slot, taken, num_tiles, partials, lses, pe_room, c_room, told, scored, free, facts,
            of_rows, GROUP, NUM_PARTS, DIRECT,
        )  # fmt: skip
        _meet()
        mbarrier.arrive(read.index(slot), count=1)
        taken += num_tiles
        number += 1
        mbarrier.wait(planned.index(number % _KNOWN), (number // _KNOWN) & 1)
        num_tiles = _fact(facts, number % _KNOWN, _TILES)


@gluon.jit(do_not_specialize=["num_pieces"])
def specialised_latents_kernel(
    q,
    latent_map,
    cos,  # [E, R / 2] float32
    sin,
    entry_token,
    entry_offset,
    entry_low,
    entry_high,
    entry_partial,
    items,  # [I, 6], see work.py
    pages,
    partials,  # [P, H, C], see merge.py; or the output [T, H, C] itself, if every token has one partial
    lses,  # [P, H] float32, or [P, H, 2], see merge.py
    q_token,
    q_head,
    scaling,
    window,
    num_pieces,  # I times parts of the query heads
    GROUP: gl.constexpr,  # query heads of a part
    NUM_PARTS: gl.constexpr,
    HEAD_DIM: gl.constexpr,  # R
    LATENT: gl.constexpr,  # C
    INTERLEAVED: gl.constexpr,
    PAGE: gl.constexpr,
    HAS_WINDOW: gl.constexpr,
    DIRECT: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Programs of any number: each takes pieces, of an item and a part of the query heads, until there are no more."""
    gl.static_assert(HEAD_DIM == _WIDTH, "k_pe is one box wide")
    DTYPE: gl.constexpr = q.dtype.element_ty
    LAYOUT: gl.constexpr = latent_map.layout
    q_pe = gl.allocate_shared_memory(DTYPE, [1, _ROWS, _WIDTH], LAYOUT)
    q_c = gl.allocate_shared_memory(DTYPE, [1, _ROWS, LATENT], LAYOUT)
    pe_room = gl.allocate_shared_memory(DTYPE, [_STAGES, _KEYS, _WIDTH], LAYOUT)
    c_room = gl.allocate_shared_memory(DTYPE, [_STAGES, _KEYS, LATENT], LAYOUT)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    here = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    scored = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    free = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], BARRIERS)
    planned = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    read = gl.allocate_shared_memory(gl.int64, [_KNOWN, 1], BARRIERS)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    facts = gl.allocate_shared_memory(gl.int32, [_KNOWN * _FACTS, 1], PLAIN)
    of_rows = gl.allocate_shared_memory(gl.int32, [_KNOWN * _OF_ROWS, 2 * _HALF_ROWS], PLAIN)
    told = gl.allocate_shared_memory(gl.float32, [_STAGES * _TOLD, _ROWS], PLAIN)
    for stage in gl.static_range(_STAGES):
        mbarrier.init(here.index(stage), count=1)
        mbarrier.init(scored.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    for i in gl.static_range(_KNOWN):
        mbarrier.init(planned.index(i), count=1)
        mbarrier.init(read.index(i), count=3)
    fence_async_shared()

    gl.warp_specialize(
        [
            (_sum_up, (
                partials, lses, pe_room, c_room, told, scored, free, facts, of_rows, planned, read,
                GROUP, NUM_PARTS, DIRECT, OVERLAP,
            )),
            (_score, (
                q, cos, sin, q_token, q_head, scaling, q_pe, q_c, pe_room, c_room, told, here,
                scored, facts, of_rows, planned, read, GROUP, INTERLEAVED, OVERLAP,
            )),
            (_bring, (
                latent_map, pages, pe_room, c_room, here, free, facts, planned, read, PAGE, OVERLAP,
            )),
            (_plan, (
                entry_token, entry_offset, entry_low, entry_high, entry_partial, items, num_pieces,
                window, facts, of_rows, planned, read, GROUP, NUM_PARTS, HAS_WINDOW, DIRECT, _KEYS,
            )),
        ],
        [4, 1, 1],
        [_REGISTERS, _FEW_REGISTERS, _FEW_REGISTERS],
    )  # fmt: skip

"""Experts in mxfp4 that have twelve tokens each, or hundreds: a weight is unpacked once for up to 128 of them (Hopper).

The kernel for fewer (`kernels/mxfp4.py`) unpacks a weight anew for every 32 tokens, and multiplies with the instructions of one
warp. Here four warps multiply at once, by instructions that only Hopper has and that take their left operand from registers.
So what is unpacked goes through no memory: weights come through a ring in shared memory, as they lie, each thread unpacks its own, and
both kinds of instruction want the same share of them from it. Inputs of the tokens on an expert's list come through shared memory
as well, several steps ahead.

    while tensor cores multiply     the bits of the next span are put where a bfloat16 has them
    when they have ended            these are multiplied by their powers of two, one instruction for two weights

The second half stays behind the wait. An operand of the next product that is made in front of it would make the assembler wait
for each product alone.

With few tokens there is a program for every expert and every part of all tokens, and most of these end at once. From 513 tokens on
a launch in between lays the tiles of all experts one behind the other, as it does for experts of 16 bits (`experts_many.py`):

    list, lay out, gated, down, add up

All tokens of a pass go through one launch of each product: of parts of 1024 each expert's last tile would be half empty in every part.

Tensor cores read inputs in an order of their own, of each 32 the one in which a thread has its weights. The first product
is given x in this order, and leaves what is between both products in it. Columns of no token ask for no inputs: when
they all asked for the same ones, so many requests for one place took up to half of the time.

It is written in Gluon, which has no interpreter: machines without a GPU only compile it, its values are tested on one.

    T  tokens      E  experts      C  experts of a token      K  inputs      F  width inside an expert      N  outputs
"""

# Kernels are written in Gluon, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.work import cdiv
from manyhands.model import kernels
from manyhands.model.kernels import copies
from manyhands.model.kernels.experts import (
    MOST_CHOSEN,
    MOST_TOKENS,
    ExpertGate,
    add_up,
    clamped,
    list_pairs,
)
from manyhands.model.kernels.experts_many import lay_out
from manyhands.model.kernels.mxfp4 import (
    SCALE,
    SCALE_OPERANDS,
    SPREAD,
    SPREAD_OPERANDS,
    WORD_BYTES,
    PackedWeights,
)

_STEP = gl.constexpr(32)  # inputs that lie together
_SPAN = gl.constexpr(2)  # steps between two waits
_INPUTS = gl.constexpr(64)
_WORD_BYTES = gl.constexpr(WORD_BYTES.value)
_STAGE_BYTES = gl.constexpr(2 * WORD_BYTES.value + 64)  # of a warp: words, and 16 words of factors
_UNASKED = gl.constexpr(48 << 10)  # bytes of shared memory that every launch may have
# Names that change between releases.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
_meet = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: columns of tokens, warps of 32 outputs each, and stages of 64 inputs that are on their way."""

    columns: int = 64
    warps: int = 4
    stages: int = 4

    @property
    def ring_bytes(self) -> int:
        """Shared memory of the ring of weights."""
        return int(self.stages * self.warps * _STAGE_BYTES.value)


# Of gpt-oss-20b's and gpt-oss-120b's shapes the fastest ones (benchmarks/results/mxfp4_many.json, and mxfp4_laid_out.json).
_LEAST_LISTED = 9  # tokens
_LEAST_EACH = 12  # tokens of an expert, if all have as many
_LEAST_EACH_OF_MANY = 8
_LEAST_WIDE = 32
_LEAST_WIDEST, _PAIRS_OF_WIDEST = 256, 16384  # the same, and those of all experts
TILES = (
    _WIDEST := Tiles(columns=128),
    _WIDE := Tiles(),
    _NARROW := Tiles(columns=32, stages=5),
    _NARROW_OF_MANY := Tiles(columns=32, warps=8),
)
PROMPT_TILES = (_WIDEST, _WIDE)  # of more than 1024 tokens
_MANY_PROGRAMS = 8  # for each processor
_LEAST_BY_TILE, MOST_LISTED = 513, 8192  # tokens


@gluon.jit
def _scaled(bits, factors, R: gl.constexpr):
    """Bits (c, h) of words with this r, and factors (r, h) -> weights (c, h). Nothing moves it in front of a wait."""
    return gl.inline_asm_elementwise(
        SCALE[R], SCALE_OPERANDS, [bits, factors], dtype=gl.int32, is_pure=False, pack=4
    )


@gluon.jit
def _pair(one, other):
    """Weights (c, h), two e in a word, of two words -> (c, h, word, e)."""
    low = gl.join(one.to(gl.int16), other.to(gl.int16)).to(gl.bfloat16, bitcast=True)
    high = gl.join((one >> 16).to(gl.int16), (other >> 16).to(gl.int16))
    return gl.join(low, high.to(gl.bfloat16, bitcast=True))


@gluon.jit
def _left(one, other, LEFT: gl.constexpr, WARPS: gl.constexpr):
    """Weights (c, h, j, e) of two steps -> the left operand [16 * WARPS, 64]."""
    both = gl.join(one, other)
    both = gl.reshape(both, [WARPS, 8, 4, 2, 2, 2, 2, 2])  # warp, g, t, c, h, j, e, step
    both = gl.reshape(gl.permute(both, (0, 4, 1, 7, 5, 3, 2, 6)), [16 * WARPS, _INPUTS])
    return gl.convert_layout(both, LEFT, assert_trivial=True)


@gluon.jit
def _operands(bits, LEFT: gl.constexpr, WARPS: gl.constexpr):
    """Bits and factors of a span -> the left operands of r = 0 and 1."""
    a, b, c, d, one, e, f, g, h, other = bits
    first = _left(
        _pair(_scaled(a, one, 0), _scaled(b, one, 0)),
        _pair(_scaled(e, other, 0), _scaled(f, other, 0)),
        LEFT,
        WARPS,
    )
    second = _left(
        _pair(_scaled(c, one, 1), _scaled(d, one, 1)),
        _pair(_scaled(g, other, 1), _scaled(h, other, 1)),
        LEFT,
        WARPS,
    )
    return first, second


@gluon.jit
def _spread(words, factors):
    """Words (r, j) of one step and factors (r, h) -> of each (r, j) the bits (c, h), two e in a word; and the factors."""
    return gl.inline_asm_elementwise(
        SPREAD,
        SPREAD_OPERANDS,
        [words, factors],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=False,
        pack=4,
    )


@gluon.jit
def _came(slot, zeros, WORDS: gl.constexpr):
    """The bits and factors of a span, from what this warp has copied itself."""
    lane = gl.arange(0, zeros.shape[0], gl.SliceLayout(1, WORDS)) % 32
    at_words = (slot + lane * 16)[:, None] + zeros
    at_factors = (slot + _SPAN * _WORD_BYTES + lane // 4 * 4)[:, None] + zeros
    words = copies.read(copies.READ_4, at_words)
    factors = copies.read(copies.READ_1, at_factors)
    a, b, c, d, one = _spread(words, factors)
    words = copies.read(copies.READ_4, at_words + _WORD_BYTES)
    factors = copies.read(copies.READ_1, at_factors + 32)
    e, f, g, h, other = _spread(words, factors)
    return a, b, c, d, one, e, f, g, h, other


@gluon.jit
def _ask(x_room, stage, slot, at_x, is_its, at_words, at_factors, step, last):
    """Inputs, words and factors of a span; of one that is not there, those of the last one."""
    here = gl.minimum(step, last)
    lane = gl.arange(0, slot.shape[0], slot.type.layout) % 32
    for i in gl.static_range(_SPAN):
        words = slot + lane * 16 + i * _WORD_BYTES
        copies.copied(copies.COPY_16, words, at_words + (here + i) * 256, lane * 0 + 1)
    factors = slot + lane * 4 + _SPAN * _WORD_BYTES
    copies.copied(copies.COPY_4, factors, at_factors + here * 16, (lane < 16).to(gl.int32))
    # Columns of no token ask for nothing: they would all ask for the same.
    _copy(x_room.index(stage), at_x + here * _STEP, mask=is_its)
    async_copy.commit_group()


@gluon.jit
def _between(gate, up, bias, first, r, N, alpha, limit, BIAS: gl.constexpr, DTYPE: gl.constexpr):
    """The gate of both halves [rows (w, g), columns] of r, as numbers of DTYPE."""
    row = gl.arange(0, gate.shape[0], gl.SliceLayout(1, gate.type.layout))
    n = first + row // 16 * 64 + row % 8 * 8 + row // 8 % 2 * 4 + 2 * r
    if BIAS:
        gate += gl.load(bias + n, mask=n < N, other=0.0).to(gl.float32)[:, None]
        up += gl.load(bias + n + 1, mask=n < N, other=0.0).to(gl.float32)[:, None]
    gate, up = gate.to(DTYPE).to(gl.float32), up.to(DTYPE).to(gl.float32)
    return clamped(gate, up, alpha, limit).to(DTYPE)


@gluon.jit
def _halves(sums, WARPS: gl.constexpr):
    """Sums [rows, columns] -> those of h = 0 and 1, [rows (w, g), columns]."""
    COLUMNS: gl.constexpr = sums.shape[1]
    low, high = gl.split(gl.permute(gl.reshape(sums, [WARPS, 2, 8, COLUMNS]), (0, 2, 3, 1)))
    return gl.reshape(low, [8 * WARPS, COLUMNS]), gl.reshape(high, [8 * WARPS, COLUMNS])


@gluon.jit(do_not_specialize=["T"])
def _mxfp4_many(
    x,  # [T, K], or, of every pair, [T, C, K]; in the order of the tensor cores
    packed,
    factors_of,
    bias,  # [E, N], or nothing
    pairs,  # [E, T]
    counts,  # [E]
    laid_out,  # BY_TILE: [tiles, 2], expert, and the first of its tokens; expert -1: none
    shares,  # [T, C]
    out,  # GATED: [T, C, N / 2]; else [C, T, N]
    T,
    N,
    K,
    alpha,
    limit,
    C: gl.constexpr,
    GATED: gl.constexpr,  # x is one of tokens, outputs are gates and values in turns
    BIAS: gl.constexpr,
    BY_TILE: gl.constexpr,
    COLUMNS: gl.constexpr,
    WARPS: gl.constexpr,
    STAGES: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Program (tile of outputs, expert, part of its tokens), or, BY_TILE, (tile of outputs, tile of an expert's tokens)."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, COLUMNS, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [WARPS, 1], [1, 0])
    INPUTS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    tile, expert = gl.program_id(0), gl.program_id(1)
    take_over(OVERLAP)
    if BY_TILE:
        at_tile = laid_out + 2 * expert
        expert, begin = gl.load(at_tile), gl.load(at_tile + 1)
        if expert < 0:
            return
        count = gl.load(counts + expert)
    else:
        begin = gl.program_id(2) * COLUMNS
        count = gl.load(counts + expert)
        if begin >= count:
            return

    steps = K // _STEP
    last = steps - _SPAN
    blocks = (N + 63) // 64
    thread = gl.arange(0, 32 * WARPS, gl.SliceLayout(1, WORDS))
    zeros = gl.zeros([32 * WARPS, 4], gl.int32, WORDS)
    warp, lane = thread // 32, thread % 32
    block = gl.minimum(tile * (WARPS // 2) + warp // 2, blocks - 1)
    here = expert.to(gl.int64) * blocks * steps
    at_words = packed + here * 256 + (block * steps * 256 + warp % 2 * 128 + lane * 4)
    # A lane copies the factors of another step and other outputs than it multiplies.
    factor = warp % 2 * 8 + lane % 16 // 8 * 16 + lane % 8
    at_factors = factors_of + here * 16 + (block * steps * 16 + factor)

    column = begin + gl.arange(0, COLUMNS, gl.SliceLayout(1, INPUTS))
    is_its = column < count
    pair = gl.load(pairs + expert * T + column, mask=is_its, other=0)
    row = pair // C if GATED else pair
    is_its = is_its[:, None]
    k = gl.arange(0, _INPUTS, gl.SliceLayout(0, INPUTS))
    at_x = x + (row * K)[:, None] + k[None, :]
    ROOM: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    # With what Triton does not see a program has more than a launch may have without asking, so Triton has to ask.
    ASKED: gl.constexpr = _UNASKED // (COLUMNS * _INPUTS * 2) + 1
    ROOMS: gl.constexpr = ASKED if ASKED > STAGES else STAGES
    x_room = gl.allocate_shared_memory(gl.bfloat16, [ROOMS, COLUMNS, _INPUTS], ROOM)
    slot = copies.allocated(STAGES * WARPS * _STAGE_BYTES) + warp * _STAGE_BYTES
    for i in gl.static_range(STAGES - 1):
        ring = slot + i * (WARPS * _STAGE_BYTES)
        _ask(x_room, i, ring, at_x, is_its, at_words, at_factors, i * _SPAN, last)

    async_copy.wait_group(STAGES - 2)
    _meet()
    left, right = _operands(_came(slot, zeros, WORDS), LEFT, WARPS)
    first = gl.zeros([16 * WARPS, COLUMNS], gl.float32, SUMS)
    second = gl.zeros([16 * WARPS, COLUMNS], gl.float32, SUMS)
    stage, free = 0, STAGES - 1
    for step in range(0, steps, _SPAN):
        # The words of the next span have to be there as well. Triton lets all warps meet before inputs are overwritten.
        async_copy.wait_group(STAGES - 3)
        ahead = step + (STAGES - 1) * _SPAN
        ring = slot + free * (WARPS * _STAGE_BYTES)
        _ask(x_room, free, ring, at_x, is_its, at_words, at_factors, ahead, last)
        fence_async_shared()
        _meet()
        inputs = x_room.index(stage).permute((1, 0))
        first = warpgroup_mma(left, inputs, first, is_async=True)
        second = warpgroup_mma(right, inputs, second, is_async=True)
        free = stage
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        bits = _came(slot + stage * (WARPS * _STAGE_BYTES), zeros, WORDS)
        first, second = warpgroup_mma_wait(0, deps=[first, second])
        # Operands that are made before the wait make the assembler wait for every product.
        left, right = _operands(bits, LEFT, WARPS)
    async_copy.wait_group(0)
    _meet()

    DTYPE: gl.constexpr = out.dtype.element_ty
    at_out = tile * (32 * WARPS)
    zero0, one0 = _halves(first, WARPS)
    zero1, one1 = _halves(second, WARPS)
    if GATED:
        biases = bias + expert * N
        inner0 = _between(zero0, one0, biases, at_out, 0, N, alpha, limit, BIAS, DTYPE)
        inner1 = _between(zero1, one1, biases, at_out, 1, N, alpha, limit, BIAS, DTYPE)
        inner = gl.reshape(gl.join(inner0, inner1), [WARPS // 2, 2, 4, 2, COLUMNS, 2])
        # Block, p, t, j, column, r: of 32 inputs the one at (j, p, t, r) is 8 t + 4 j + 2 p + r.
        inner = gl.reshape(gl.permute(inner, (4, 0, 3, 1, 2, 5)), [COLUMNS, 16 * WARPS])
        OUT: gl.constexpr = gl.BlockedLayout([1, 8], [16 // WARPS, 2 * WARPS], [WARPS, 1], [1, 0])
        inner = gl.convert_layout(inner, OUT)
        column = begin + gl.arange(0, COLUMNS, gl.SliceLayout(1, OUT))
        pair = gl.load(pairs + expert * T + column, mask=column < count, other=0)
        f = at_out // 2 + gl.arange(0, 16 * WARPS, gl.SliceLayout(0, OUT))
        is_here = (column < count)[:, None] & (f < N // 2)[None, :]
        gl.store(out + (pair * (N // 2))[:, None] + f[None, :], inner, mask=is_here)
    else:
        sums = gl.join(gl.join(zero0, one0), gl.join(zero1, one1))  # w g, column, h, r
        sums = gl.reshape(sums, [WARPS // 2, 2, 8, COLUMNS, 2, 2])
        sums = gl.reshape(gl.permute(sums, (3, 0, 2, 1, 5, 4)), [COLUMNS, 32 * WARPS])
        column = begin + gl.arange(0, COLUMNS, gl.SliceLayout(1, sums.type.layout))
        is_its = column < count
        pair = gl.load(pairs + expert * T + column, mask=is_its, other=0)
        share = gl.load(shares + pair, mask=is_its, other=0.0).to(gl.float32)
        n = at_out + gl.arange(0, 32 * WARPS, gl.SliceLayout(0, sums.type.layout))
        if BIAS:
            sums += gl.load(bias + expert * N + n, mask=n < N, other=0.0).to(gl.float32)[None, :]
        sums = (sums * share[:, None]).to(DTYPE)
        if BY_TILE:  # so many that it pays to leave whole rows
            EACH: gl.constexpr = 128 // DTYPE.primitive_bitwidth
            LANES: gl.constexpr = 32 * WARPS // EACH if 32 * WARPS // EACH < 32 else 32
            ROWS: gl.constexpr = gl.BlockedLayout(
                [1, EACH], [32 // LANES, LANES], [WARPS, 1], [1, 0]
            )
            sums = gl.convert_layout(sums, ROWS)
            column = begin + gl.arange(0, COLUMNS, gl.SliceLayout(1, ROWS))
            is_its = column < count
            pair = gl.load(pairs + expert * T + column, mask=is_its, other=0)
            n = at_out + gl.arange(0, 32 * WARPS, gl.SliceLayout(0, ROWS))
        where = out + ((pair % C * T + pair // C) * N)[:, None] + n[None, :]
        gl.store(where, sums, mask=is_its[:, None] & (n < N)[None, :])


def in_order(x: Tensor) -> Tensor:
    """X [T, K] with each 32 inputs (t, j, c, e) in the order (j, c, t, e)."""
    words = x.view(torch.int32).view(len(x), -1, 4, 4)
    return words.transpose(2, 3).contiguous().view(x.dtype).view_as(x)


def experts(
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    gate_up: PackedWeights,
    down: PackedWeights,
    gate: ExpertGate,
    tiles: Tiles,
    *,
    in_parts: bool = False,
) -> Tensor:
    """The same as `mxfp4.experts`, for 9 to 8192 tokens; widths are multiples of 64.

    Of more than 1024 tokens what each expert gives is rounded on its way to the sum, as in `kernels/experts_many.py`, unless it is
    asked for `in_parts`.
    """
    tokens, inputs = x.shape
    chosen = index.shape[1]
    width, outputs = down.packed.shape[2] * _STEP.value, inputs
    assert gate.clamped is not None
    assert x.dtype == torch.bfloat16, x.dtype
    assert _LEAST_LISTED <= tokens <= MOST_LISTED, tokens
    assert chosen <= MOST_CHOSEN, chosen
    assert not inputs % _INPUTS.value, inputs
    assert not width % _INPUTS.value, width
    assert tiles.ring_bytes <= copies.MOST_KIB << 10, tiles
    x, index, shares = x.contiguous(), index.contiguous(), shares.contiguous()
    by_tile = tokens >= _LEAST_BY_TILE
    dtype = torch.float32 if in_parts or tokens <= MOST_TOKENS else x.dtype
    parts = torch.empty(chosen, tokens, outputs, dtype=dtype, device=x.device)
    inner = x.new_empty(tokens, chosen, width)
    num_experts = len(gate_up.packed)
    lists = list_pairs(index, num_experts)
    groups: tuple[int, ...] = num_experts, cdiv(tokens, tiles.columns)
    laid_out = lists[1]
    if by_tile:
        laid_out = lay_out(lists[1], tokens * chosen, tiles.columns)
        groups = (len(laid_out),)
    kernel: Any = _mxfp4_many
    for weights, rows, size, made in (
        (gate_up, in_order(x), 2 * width, inner),
        (down, inner, outputs, parts),
    ):
        kernel[(cdiv(size, 32 * tiles.warps), *groups)](
            *(rows, weights.packed, weights.factors),
            *(x if weights.bias is None else weights.bias, *lists, laid_out, shares, made),
            *(tokens, size, rows.shape[-1], *gate.clamped),
            C=chosen,
            GATED=made is inner,
            BIAS=weights.bias is not None,
            BY_TILE=by_tile,
            COLUMNS=tiles.columns,
            WARPS=tiles.warps,
            STAGES=tiles.stages,
            num_warps=tiles.warps,
            **launch_options(x.device),
        )
    return parts if in_parts else add_up(parts, x.new_empty(tokens, outputs))


def choose_tiles(
    tokens: int, chosen: int, num_experts: int, widths: tuple[int, int], device: torch.device
) -> Tiles | None:
    """The tiles for so many tokens through experts of these inputs and this width; None where `mxfp4.experts` is faster or the only one."""
    inputs, width = widths
    each = tokens * chosen / num_experts
    programs = cdiv(2 * width, 32 * _NARROW_OF_MANY.warps) * num_experts
    is_many = programs >= _MANY_PROGRAMS * kernels.num_processors(device)
    if each < (_LEAST_EACH_OF_MANY if is_many else _LEAST_EACH) or tokens < _LEAST_LISTED:
        return None
    if inputs % _INPUTS.value or width % _INPUTS.value:
        return None
    if each >= _LEAST_WIDEST and tokens * chosen >= _PAIRS_OF_WIDEST:
        return _WIDEST
    if each >= _LEAST_WIDE:
        return _WIDE
    return _NARROW_OF_MANY if is_many else _NARROW

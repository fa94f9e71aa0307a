"""Products with weights of four bits: x [T, K] times w [N, K] transposed, w = (q - zero) * scale.

With few tokens, reading the weights is all that takes time, so everything serves to keep many bytes on their way.
Weights are the *left* operand of the tensor cores, so that a handful of tokens fills the narrow side of their
smallest product, 16 outputs by 16 inputs by 8 tokens. Of such a product every thread of a warp holds eight weights,
at places that the hardware fixes, and in this order they lie in memory (`model/quantised/w4a16.py` has the formulas):
a thread loads 16 bytes at a time straight into registers, the warp 512 side by side, and a word of eight becomes
a thread's share of a product in eleven instructions. Which output or input a place stands for is free, as long as
both sides agree. It is chosen so that a thread's inputs lie side by side in x, and its outputs side by side in scales,
zeros and out: each of those is loaded or stored 16 bytes at a time too.

Inside the product a weight is an exact small integer, q - zero, and the scale comes in once per group:

    sum_k (q_k - zero) scale x_k  =  scale sum_k ((q_k + OFFSET) - (zero + OFFSET)) x_k

OFFSET is what makes unpacking cheap: 0x4300 with four bits set at its end is the bfloat16 number 128 + q
(0x6400 the float16 number 1024 + q), exactly, and so is the difference of two of them. Up to 16 tokens the sums of
one group are apart from those of all groups. More tokens have no registers for both (`compact`): there the sums of
all groups are held in units of the scale of the group at hand, and multiplied with a quotient where a group begins.

While a group of inputs is multiplied, the weights of the next one or two are on their way to registers. The
assembler would rather load them when the registers of the last ones are free, which is too late; `_hold` keeps it
from that. The first ones are asked for before the launch in front has ended. All programs of a launch are there at
once: a second round of a few would take as long as the first. For up to 16 tokens there is room for more on its way in
shared memory, if a processor has as much as Hopper's: weights and x then come through a ring of stages (`w4a16_ring`).

Where few tiles of outputs would leave processors idle, the inputs are cut into parts; the last program to arrive
adds up all parts, in their order, so that results repeat. Where there are more tiles, some processors would have one
more than others, and all would wait for these. So with a ring, programs have equal shares of the spans of all tiles
instead, one tile after the other, and every processor has as many programs.

Two halves of one product can go through an activation at once, rounded where two launches would round: half the
warps of a program have gates, the others the outputs that these gate, and they meet when both are done.

Products are written as assembly, one statement for each thread, which Triton has no other way to say: what a thread
holds is then for us to know. All operands are tensors [threads, 4], of which Triton gives every thread a row, and
only the tests on a GPU can tell that it does. The interpreter knows no assembly: each statement has a twin beside it
that does the same with whole tensors.

    T  tokens      N  outputs      K  inputs      F  width inside the MLP
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"
# Nor can it unpack a tuple into another one, so tuples are added.
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.work import cdiv
from manyhands.model.kernels import copies
from manyhands.model.kernels import w4a16_ring as ring
from manyhands.model.kernels.adding import is_last, sum_of_parts
from manyhands.model.kernels.fragments import column, halves, hold, multiplied, no_sums, two
from manyhands.model.kernels.gated import ACTIVATIONS, activated
from manyhands.model.kernels.w4a16_tiles import Tiles, choose_tiles


def _unpack_assembly(kind: str, offset: int, minus: int, one: int) -> str:
    """Four words and a word of four zeros -> 16 registers of two weights each."""
    lines = ["{", ".reg .b32 rest, one, zero0, zero1, zero2, zero3;", f"mov.b32 one, {one:#x};"]
    lines += [f"prmt.b32 zero{i}, $20, {minus:#x}, 0x4{i}4{i};" for i in range(4)]
    for word in range(4):
        for i in range(4):
            to, source = f"${4 * word + i}", f"${16 + word}"
            if i:
                lines.append(f"shr.u32 rest, {source}, {4 * i};")
                source = "rest"
            # 0xEA is (a & b) | c.
            lines.append(f"lop3.b32 {to}, {source}, 0x000F000F, {offset:#x}, 0xEA;")
            lines.append(f"fma.rn.{kind}x2 {to}, {to}, one, zero{word // 2 * 2 + i % 2};")
    return "\n".join([*lines, "}"])


UNPACK_BFLOAT16 = tl.constexpr(_unpack_assembly("bf16", 0x43004300, 0xC3C3C3C3, 0x3F803F80))
UNPACK_FLOAT16 = tl.constexpr(_unpack_assembly("f16", 0x64006400, 0xE4E4E4E4, 0x3C003C00))
UNPACK_OPERANDS = tl.constexpr(",".join(["=r"] * 16 + ["r"] * 8))


def _scales_assembly(kind: str, pair: int, guarded: bool) -> str:
    """Words (p, r) of two scales -> the four (r, h) of one p as float32; guarded: 2 ** -24 in place of 0."""
    lines = ["{", ".reg .b16 low, high;", ".reg .b32 bits;", ".reg .pred none;"]
    for r in range(2):
        word, low, high = f"${4 + 2 * pair + r}", f"${2 * r}", f"${2 * r + 1}"
        if kind == "f16":
            lines.append(f"mov.b32 {{low, high}}, {word};")
            lines += [f"cvt.f32.f16 {low}, low;", f"cvt.f32.f16 {high}, high;"]
        else:
            lines += [f"shl.b32 bits, {word}, 16;", f"mov.b32 {low}, bits;"]
            lines += [f"and.b32 bits, {word}, 0xFFFF0000;", f"mov.b32 {high}, bits;"]
    for i in range(4 if guarded else 0):
        lines.append(f"setp.eq.f32 none, ${i}, 0f00000000;")
        lines.append(f"selp.f32 ${i}, 0f33800000, ${i}, none;")
    return "\n".join([*lines, "}"])


_BOTH = [(pair, guarded) for guarded in (False, True) for pair in (0, 1)]
SCALES_BFLOAT16 = tl.constexpr(tuple(_scales_assembly("bf16", *each) for each in _BOTH))
SCALES_FLOAT16 = tl.constexpr(tuple(_scales_assembly("f16", *each) for each in _BOTH))
SCALES_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["r"] * 4))
# acc0, acc1 and sums0, sums1 (h, e), scales (r, h) -> acc + sums * scale
SCALE = tl.constexpr(
    "\n".join(f"fma.rn.f32 ${i}, ${16 + i}, ${24 + i // 2}, ${8 + i};" for i in range(8))
)
SCALE_OPERANDS = tl.constexpr(",".join(["=f"] * 8 + ["f"] * 20))
# sums0, sums1 (h, e), scales before and now (r, h) -> sums * before / now
CHANGE = tl.constexpr(
    "\n".join(
        [
            "{",
            ".reg .f32 by0, by1, by2, by3;",
            *(f"rcp.approx.f32 by{i}, ${20 + i};" for i in range(4)),
            *(f"mul.rn.f32 by{i}, by{i}, ${16 + i};" for i in range(4)),
            *(f"mul.rn.f32 ${i}, ${8 + i}, by{i // 2};" for i in range(8)),
            "}",
        ]
    )
)
CHANGE_OPERANDS = tl.constexpr(",".join(["=f"] * 8 + ["f"] * 16))


# -- what a thread does, each beside its twin ------------------------------------------------------


@triton.jit
def _unpacked(words, zeros, FAST: tl.constexpr, DTYPE: tl.constexpr):
    """Weights less their zeros: words (r, j) -> for each of the four (c, h), two weights in a word."""
    if not FAST:
        weights = (
            _unpacked_twin(words, zeros, 0, DTYPE),
            _unpacked_twin(words, zeros, 1, DTYPE),
            _unpacked_twin(words, zeros, 2, DTYPE),
            _unpacked_twin(words, zeros, 3, DTYPE),
        )
    else:
        weights = tl.inline_asm_elementwise(
            UNPACK_BFLOAT16 if tl.bfloat16 == DTYPE else UNPACK_FLOAT16,
            UNPACK_OPERANDS,
            [words, zeros],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=4,
        )
    return weights


@triton.jit
def _unpacked_twin(words, zeros, at, DTYPE: tl.constexpr):
    word = column(words, at)
    i = tl.arange(0, 4)[None, :]
    zero = (zeros >> (8 * (at // 2 * 2 + i % 2))) & 0xFF
    return two(((word >> (4 * i)) & 0xF) - zero, ((word >> (4 * i + 16)) & 0xF) - zero, DTYPE)


@triton.jit
def _scales(
    words,
    PAIR: tl.constexpr,
    GUARDED: tl.constexpr,
    FAST: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Words (p, r) of two scales -> those (r, h) of one p; guarded: fit to be divided by, never 0."""
    WHICH: tl.constexpr = PAIR + 2 * GUARDED
    if not FAST:
        low0, high0 = halves(column(words, 2 * PAIR), SCALES)
        low1, high1 = halves(column(words, 2 * PAIR + 1), SCALES)
        i = tl.arange(0, 4)[None, :]
        scales = tl.where(i < 2, tl.where(i == 0, low0, high0), tl.where(i == 2, low1, high1))
        if GUARDED:
            scales = tl.where(scales == 0, 2.0**-24, scales)
    else:
        scales = tl.inline_asm_elementwise(
            SCALES_BFLOAT16[WHICH] if tl.bfloat16 == SCALES else SCALES_FLOAT16[WHICH],
            SCALES_OPERANDS,
            [words],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    return scales


@triton.jit
def _scaled(acc0, acc1, sums0, sums1, scales, FAST: tl.constexpr):
    """Acc (h, e) of r = 0 and 1, and sums times the scales (r, h) of their outputs."""
    if not FAST:
        acc0 += sums0 * _of_outputs(scales, 0)
        acc1 += sums1 * _of_outputs(scales, 1)
    else:
        acc0, acc1 = tl.inline_asm_elementwise(
            SCALE,
            SCALE_OPERANDS,
            [acc0, acc1, sums0, sums1, scales],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=4,
        )
    return acc0, acc1


@triton.jit
def _changed(sums0, sums1, before, now, FAST: tl.constexpr):
    """Sums (h, e) of r = 0 and 1 in units of the scales before (r, h), in units of those now."""
    if not FAST:
        sums0 *= _of_outputs(before, 0) / _of_outputs(now, 0)
        sums1 *= _of_outputs(before, 1) / _of_outputs(now, 1)
    else:
        sums0, sums1 = tl.inline_asm_elementwise(
            CHANGE,
            CHANGE_OPERANDS,
            [sums0, sums1, before, now],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=4,
        )
    return sums0, sums1


@triton.jit
def _of_outputs(scales, r):
    """Of scales (r, h), those of one r for sums (h, e)."""
    below = tl.arange(0, 4)[None, :] < 2
    return tl.where(below, column(scales, 2 * r), column(scales, 2 * r + 1))


# -- the product -----------------------------------------------------------------------------------


@triton.jit
def _weights(at, span, end, STEPS: tl.constexpr, PAIRS: tl.constexpr):
    """The words (r, j) of one span before the end: a tensor for every 32 inputs and 32 outputs."""
    words = ()
    mask = tl.full((1, 4), span, tl.int32) < end
    for step in tl.static_range(STEPS):
        for p in tl.static_range(PAIRS):
            here = at + (span * STEPS + step) * 256 + p * 128
            words = words + (tl.load(here, mask=mask, eviction_policy="evict_first"),)
    return words


@triton.jit
def _factors(
    at_scales,
    at_zeros,
    span,
    half_width,
    quarter_width,
    GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Of every group of a span words (p, r) of two scales, and for every p a word of four zeros (r, h)."""
    found = ()
    for i in tl.static_range(GROUPS):
        group = span * GROUPS + i
        found = found + (tl.load(at_scales + group * half_width),)
        for p in tl.static_range(PAIRS):
            found = found + (tl.load(at_zeros + group * quarter_width + p),)
    return found


@triton.jit
def _all_scaled(acc, sums, scales, SUMS: tl.constexpr, PER_PAIR: tl.constexpr, FAST: tl.constexpr):
    """Acc and sums times scales, of all pairs and eights."""
    more = ()
    for i in tl.static_range(0, SUMS, 2):
        of_pair = scales[i // PER_PAIR]
        more = more + _scaled(acc[i], acc[i + 1], sums[i], sums[i + 1], of_pair, FAST)
    return more


@triton.jit
def _all_changed(sums, before, now, SUMS: tl.constexpr, PER_PAIR: tl.constexpr, FAST: tl.constexpr):
    """Sums in units of the scales now, of all pairs and eights."""
    more = ()
    for i in tl.static_range(0, SUMS, 2):
        old, new = before[i // PER_PAIR], now[i // PER_PAIR]
        more = more + _changed(sums[i], sums[i + 1], old, new, FAST)
    return more


@triton.jit
def _all_scales(
    words,
    PAIRS: tl.constexpr,
    GUARDED: tl.constexpr,
    FAST: tl.constexpr,
    SCALES: tl.constexpr,
):
    """Of every pair its scales (r, h)."""
    scales = ()
    for p in tl.static_range(PAIRS):
        scales = scales + (_scales(words, p, GUARDED, FAST, SCALES),)
    return scales


@triton.jit
def _gathered(a0, a1, b0, b1, PAIRS: tl.constexpr):
    """Acc (h, e) of r = 0 and 1, of one pair and of the other -> [threads, e, (p, r, h)]."""
    joined = tl.join(tl.join(a0, b0), tl.join(a1, b1)) if PAIRS == 2 else tl.join(a0, a1)
    joined = tl.reshape(joined, (a0.shape[0], 2, 2, PAIRS, 2))
    return tl.reshape(tl.permute(joined, (0, 2, 3, 4, 1)), (a0.shape[0], 2, PAIRS * 4))


@triton.jit
def _places(tile, thread, PAIRS: tl.constexpr, ROW_WARPS: tl.constexpr, GATED: tl.constexpr):
    """The first of a thread's outputs, counted from its half; and which half, of gates and of what they gate."""
    HALF_WARPS: tl.constexpr = ROW_WARPS // 2 if GATED else ROW_WARPS
    warp = thread // 32 % ROW_WARPS
    row_warp = tile * HALF_WARPS + warp % HALF_WARPS
    rows = row_warp * PAIRS // 2 * 64 + thread % 32 // 4 * 8 + row_warp * PAIRS % 2 * 4
    return rows, warp // HALF_WARPS


@triton.jit
def _store_gated(
    result,  # [threads, e, (p, r, h)]
    out,
    tile,
    start,  # the first token
    T,
    N,
    PAIRS: tl.constexpr,
    ROW_WARPS: tl.constexpr,
    TOKEN_WARPS: tl.constexpr,
    EIGHTS: tl.constexpr,
    ACT: tl.constexpr,
):
    """Half the warps have gates, the others what they gate; they meet here, and half as many threads store."""
    DTYPE: tl.constexpr = out.dtype.element_ty
    OF_ROWS: tl.constexpr = 16 * ROW_WARPS
    OUTPUTS: tl.constexpr = 4 * PAIRS
    apart = tl.reshape(result, (TOKEN_WARPS, 2, OF_ROWS, 2, OUTPUTS))
    gate, up = tl.split(tl.permute(apart, (0, 2, 3, 4, 1)))
    # Each is rounded, as a product by itself would be.
    act = activated(gate.to(DTYPE).to(tl.float32), ACT).to(DTYPE).to(tl.float32)
    gated = tl.reshape(act * up.to(DTYPE).to(tl.float32), (TOKEN_WARPS * OF_ROWS, 2, OUTPUTS))
    thread = tl.arange(0, TOKEN_WARPS * OF_ROWS)[:, None, None]
    rows, _ = _places(tile, thread % OF_ROWS, PAIRS, ROW_WARPS, True)
    rows += tl.arange(0, OUTPUTS)[None, None, :]
    tokens = start + thread // OF_ROWS * (8 * EIGHTS) + thread % 4 * 2
    tokens += tl.arange(0, 2)[None, :, None]
    tl.store(out + tokens * N + rows, gated.to(DTYPE), mask=(tokens < T) & (rows < N))


@triton.jit
def _of_tile(
    x, packed, scales_of, zeros_of, bias, out, partial, arrived, T, N, K, half_inputs, half_width,
    quarter_width, tile_t, tile_n, begin, end, part, parts, tiles, GROUP: tl.constexpr,
    SPAN: tl.constexpr, PAIRS: tl.constexpr, ROW_WARPS: tl.constexpr, TOKEN_WARPS: tl.constexpr,
    EIGHTS: tl.constexpr, AHEAD: tl.constexpr, HOLDS: tl.constexpr, COMPACT: tl.constexpr,
    STAGES: tl.constexpr, SHARED: tl.constexpr, IN_PARTS: tl.constexpr, FAST: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr,
    SCALES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Spans from begin to before end of one tile. Part and parts are of it, or shares of all spans of so many tiles."""
    THREADS: tl.constexpr = 32 * ROW_WARPS * TOKEN_WARPS
    STEPS: tl.constexpr = SPAN // 32
    GROUPS: tl.constexpr = SPAN // GROUP
    PER_PAIR: tl.constexpr = 2 * EIGHTS
    SUMS: tl.constexpr = PAIRS * PER_PAIR
    OTHER: tl.constexpr = SUMS - PER_PAIR  # from a sum to that of the other pair
    HOLD: tl.constexpr = FAST and HOLDS
    RING: tl.constexpr = FAST and STAGES > 0
    thread = tl.arange(0, THREADS)[:, None]
    four = tl.arange(0, 4)[None, :]
    g, t = thread % 32 // 4, thread % 4
    spans = K // SPAN

    # A warp has 32 outputs of a block or all 64. Beyond the last block it has the last one again, for nothing.
    rows, half = _places(tile_n, thread, PAIRS, ROW_WARPS, GATED)
    block = tl.minimum(rows // 64, tl.cdiv(N, 64) - 1) + half * (N // 64)
    pair = rows // 4 % 2
    at_words = packed + (block * (spans * STEPS) * 2 + pair) * 128 + thread % 32 * 4
    eight = tl.minimum(block * 8 + g, half_width // 4 - 1)
    at_scales = scales_of + eight * 4 + pair * 2
    at_zeros = zeros_of + eight * 2 + pair
    if RING:
        tl.static_assert(PAIRS == 1 and TOKEN_WARPS == 1 and not COMPACT)
        PLANES: tl.constexpr = STEPS * EIGHTS
        STAGE: tl.constexpr = 4 * THREADS * (4 * STEPS + GROUPS) + 512 * PLANES
        memory = copies.allocated(STAGES * STAGE)
        source = (at_words, at_scales, at_zeros, half_width, quarter_width)
        for i in tl.static_range(STAGES - 1):
            ring.ask_weights(memory + i * STAGE, thread, source, begin + i, end, STEPS, GROUPS)
    else:
        at_words += four
        at_scales += four % (2 * PAIRS)
        words = _weights(at_words, begin, end, STEPS, PAIRS)
        next_words = words
        if AHEAD == 2:
            next_words = _weights(at_words, begin + 1, end, STEPS, PAIRS)
        factors = _factors(at_scales, at_zeros, begin, half_width, quarter_width, GROUPS, PAIRS)
    take_over(OVERLAP)

    first = (tile_t * TOKEN_WARPS + thread // (32 * ROW_WARPS)) * (8 * EIGHTS)
    at_x = ()
    if RING:
        for i in tl.static_range((PLANES + ROW_WARPS - 1) // ROW_WARPS):
            plane = i * ROW_WARPS + thread // 32
            token = tl.minimum(tile_t * (8 * EIGHTS) + plane // STEPS * 8 + g, T - 1)
            at_x = at_x + (x + token * half_inputs + plane % STEPS * 16 + t * 4,)
        for i in tl.static_range(STAGES - 1):
            ring.ask_inputs(memory + i * STAGE, thread, at_x, begin + i, end, STEPS, GROUPS, PLANES)
            copies.commit()
        stage, free = memory, memory + (STAGES - 1) * STAGE
        held = copies.held(x, thread, T)
    else:
        for n in tl.static_range(EIGHTS):
            token = tl.minimum(first + 8 * n + g, T - 1)
            at_x = at_x + (x + token * half_inputs + t * 4,)
    acc = no_sums(SUMS, THREADS)
    if COMPACT:
        scales = _all_scales(factors[0], PAIRS, True, FAST, SCALES)
    for span in range(begin, end):
        if RING:
            copies.arrived(STAGES)
            after = span + STAGES - 1
            ring.ask_weights(free, thread, source, after, end, STEPS, GROUPS)
            ring.ask_inputs(free, thread, at_x, after, end, STEPS, GROUPS, PLANES)
            copies.commit()
            words, factors = ring.weights(stage + held, thread, STEPS, GROUPS)
        else:
            ahead = _weights(at_words, span + AHEAD, end, STEPS, PAIRS)
            after = tl.minimum(span + 1, end - 1)
            next_factors = _factors(
                at_scales, at_zeros, after, half_width, quarter_width, GROUPS, PAIRS
            )
            hold(HOLD)
        for step in tl.static_range(STEPS):
            words_of_scales = factors[step * 32 // GROUP * (1 + PAIRS)]
            if step * 32 % GROUP == 0:  # a group begins
                if COMPACT:
                    now = _all_scales(words_of_scales, PAIRS, True, FAST, SCALES)
                    sums = _all_changed(acc, scales, now, SUMS, PER_PAIR, FAST)
                    scales = now
                else:
                    sums = no_sums(SUMS, THREADS)
            inputs = ()
            for n in tl.static_range(EIGHTS):
                if RING:
                    inputs = inputs + (
                        ring.inputs(stage + held, thread, n * STEPS + step, STEPS, GROUPS),
                    )
                else:
                    inputs = inputs + (tl.load(at_x[n] + four + (span * STEPS + step) * 16),)
            more = ()
            for p in tl.static_range(PAIRS):
                zero = factors[step * 32 // GROUP * (1 + PAIRS) + 1 + p]
                zero = tl.broadcast_to(zero, (THREADS, 4))
                weights = _unpacked(words[step * PAIRS + p], zero, FAST, DTYPE)
                for n in tl.static_range(EIGHTS):
                    for r in tl.static_range(2):
                        more = more + (
                            multiplied(
                                sums[(p * EIGHTS + n) * 2 + r],
                                weights[2 * r],
                                weights[2 * r + 1],
                                inputs[n],
                                FAST,
                                DTYPE,
                            ),
                        )
            sums = more
            if COMPACT:
                acc = sums
            elif (step + 1) * 32 % GROUP == 0:
                now = _all_scales(words_of_scales, PAIRS, False, FAST, SCALES)
                acc = _all_scaled(acc, sums, now, SUMS, PER_PAIR, FAST)
        if RING:
            free = stage
            stage = tl.where(stage == memory + (STAGES - 1) * STAGE, memory, stage + STAGE)
        else:
            factors = next_factors
            words = next_words if AHEAD == 2 else ahead
            next_words = ahead
    if COMPACT:
        acc = _all_scaled(no_sums(SUMS, THREADS), acc, scales, SUMS, PER_PAIR, FAST)

    thread = tl.arange(0, THREADS)[:, None, None]
    rows, half = _places(tile_n, thread, PAIRS, ROW_WARPS, GATED)
    rows += tl.arange(0, 4 * PAIRS)[None, None, :]
    first = (tile_t * TOKEN_WARPS + thread // (32 * ROW_WARPS)) * (8 * EIGHTS)
    tokens = first + thread % 4 * 2 + tl.arange(0, 2)[None, :, None]
    counter = arrived + tile_n * tl.num_programs(0) + tile_t
    results = ()
    for n in tl.static_range(EIGHTS):
        results = results + (
            _gathered(
                acc[2 * n],
                acc[2 * n + 1],
                acc[2 * n + OTHER],
                acc[2 * n + 1 + OTHER],
                PAIRS,
            ),
        )
    if SHARED:
        # The share with a span is the last one that begins at it or in front of it.
        whole = tiles * spans
        first_share = ((tile_n * spans + 1) * parts - 1) // whole
        part -= first_share
        parts = ((tile_n + 1) * spans * parts - 1) // whole - first_share + 1
    HALVES: tl.constexpr = 2 if GATED else 1
    last = True
    if IN_PARTS:
        for n in tl.static_range(EIGHTS):
            where = (tokens + 8 * n) * (HALVES * N) + half * N + rows
            mask = (tokens + 8 * n < T) & (rows < N)
            tl.store(partial + part * (HALVES * T * N) + where, results[n], mask=mask)
        last = is_last(counter, parts)
    if last:
        for n in tl.static_range(EIGHTS):
            mask = (tokens + 8 * n < T) & (rows < N)
            result = results[n]
            if IN_PARTS:
                where = (tokens + 8 * n) * (HALVES * N) + half * N + rows
                size = HALVES * T * N
                result = sum_of_parts(partial, where, mask, size, parts, BATCH=8 // PAIRS)
            if BIAS:
                result += tl.load(bias + half * N + rows, mask=rows < N, other=0.0).to(tl.float32)
            if GATED:
                start = tile_t * (8 * EIGHTS * TOKEN_WARPS) + 8 * n
                _store_gated(
                    result, out, tile_n, start, T, N, PAIRS, ROW_WARPS, TOKEN_WARPS, EIGHTS, ACT
                )
            else:
                where = (tokens + 8 * n) * N + rows
                tl.store(out + where, result.to(out.dtype.element_ty), mask=mask)
        if IN_PARTS:
            tl.store(counter, 0)  # ready for the next product


@triton.jit(do_not_specialize=("T", "parts", "tiles"))
def _w4a16_product(
    x,  # [T, K / 2] int32, of two numbers each
    packed,  # [N / 64, K / 32, 256] int32
    scales_of,  # [K / GROUP, width / 2] int32
    zeros_of,  # [K / GROUP, width / 4] int32
    bias,
    out,
    partial,
    arrived,
    T,
    N,
    K,
    half_inputs,  # K / 2; of an argument the compiler sees that it is a multiple of 16
    half_width,
    quarter_width,
    parts,  # of each tile; if SHARED, the most that one has
    tiles,  # of outputs
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,  # inputs of one round; groups do not go beyond it
    PAIRS: tl.constexpr,  # of 16 outputs that a warp has
    ROW_WARPS: tl.constexpr,
    TOKEN_WARPS: tl.constexpr,
    EIGHTS: tl.constexpr,  # of tokens that a warp has
    AHEAD: tl.constexpr,  # spans whose weights are on their way
    HOLDS: tl.constexpr,
    COMPACT: tl.constexpr,  # sums of all groups are one set of registers, in units of the scales now
    STAGES: tl.constexpr,  # of the ring; 0: weights and x go straight to registers
    SHARED: tl.constexpr,  # programs have equal shares of all spans of all tiles; otherwise, parts of one tile
    IN_PARTS: tl.constexpr,
    FAST: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,  # N is that of one half: the first half gates the second
    ACT: tl.constexpr,
    DTYPE: tl.constexpr,
    SCALES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    tile_t, tile_n, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    spans = K // SPAN
    if SHARED:
        shares, whole = tl.num_programs(2), tiles * spans
        start, stop = part * whole // shares, (part + 1) * whole // shares
        for tile in range(start // spans, (stop - 1) // spans + 1):
            _of_tile(
                x, packed, scales_of, zeros_of, bias, out, partial, arrived, T, N, K, half_inputs,
                half_width, quarter_width, tile_t, tile, tl.maximum(start - tile * spans, 0),
                tl.minimum(stop - tile * spans, spans), part, shares, tiles, GROUP, SPAN, PAIRS,
                ROW_WARPS, TOKEN_WARPS, EIGHTS, AHEAD, HOLDS, COMPACT, STAGES, SHARED, IN_PARTS,
                FAST, BIAS, GATED, ACT, DTYPE, SCALES, OVERLAP,
            )  # fmt: skip
    else:
        _of_tile(
            x, packed, scales_of, zeros_of, bias, out, partial, arrived, T, N, K, half_inputs,
            half_width, quarter_width, tile_t, tile_n, part * spans // parts,
            (part + 1) * spans // parts, part, parts, tiles, GROUP, SPAN, PAIRS, ROW_WARPS,
            TOKEN_WARPS, EIGHTS, AHEAD, HOLDS, COMPACT, STAGES, SHARED, IN_PARTS, FAST, BIAS,
            GATED, ACT, DTYPE, SCALES, OVERLAP,
        )  # fmt: skip


@triton.jit
def _w4a16_unpack(
    packed,
    scales,
    zeros,
    out,
    N,
    K,
    GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Of one block of outputs and one group of inputs, threads numbered (g, step, t)."""
    take_over(OVERLAP)
    STEPS: tl.constexpr = GROUP // 32
    block, group = tl.program_id(0), tl.program_id(1)
    thread = tl.arange(0, 32 * STEPS)
    g, step, t = thread // (4 * STEPS), group * STEPS + thread // 4 % STEPS, thread % 4
    r, j = tl.arange(0, 2)[None, :, None], tl.arange(0, 2)[None, None, :]
    eight = tl.arange(0, 8)  # h c e
    shifts = eight % 2 * 16 + eight // 2 % 2 * 8 + eight // 4 * 4
    four = tl.arange(0, 4)  # r h
    inputs = (step * 32 + t * 8)[:, None, None] + eight[None, None, :]  # eight: j c e
    for p in tl.static_range(2):
        at = ((block * (K // 32) + step) * 2 + p) * 128 + (4 * g + t) * 4
        words = tl.load(packed + at[:, None, None] + 2 * r + j)
        numbers = (words[:, :, :, None] >> shifts[None, None, None, :]) & 0xF
        numbers = tl.reshape(numbers, (32 * STEPS, 2, 2, 2, 4))  # thread, r j, h, c e
        numbers = tl.permute(numbers, (0, 1, 3, 2, 4))
        numbers = tl.reshape(numbers, (32 * STEPS, 4, 8))
        rows = (block * 64 + g * 8 + p * 4)[:, None] + four[None, :]
        mask = rows < N
        scale = tl.load(scales + group * N + rows, mask=mask, other=0.0).to(tl.float32)
        zero = tl.load(zeros + group * N + rows, mask=mask, other=0).to(tl.float32)
        weights = (numbers.to(tl.float32) - zero[:, :, None]) * scale[:, :, None]
        at = out + rows.to(tl.int64)[:, :, None] * K + inputs
        tl.store(at, weights.to(out.dtype.element_ty), mask=mask[:, :, None])


# -- launching -------------------------------------------------------------------------------------


_SPANS = (128, 64, 32)  # inputs of one, the first that divides those of the product


def product(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    group: int,
    arrived: Tensor,
    tiles: Tiles | None = None,
    *,
    activation: str | None = None,
    fast: bool = True,
) -> Tensor:
    """X [T, K] of 16 bits, packed int32 [N / 64, K / 32, 256], scales and zeros [K / group, N], bias [N] -> [T, N].

    With an `activation` the outputs are 2 F, gates first, and the result act(gate) * up [T, F]; F is a multiple of 64.

    `arrived` are integers of 0, as many as there are tiles or more; they are 0 again afterwards.
    `fast` is with instructions of the GPU, which Triton's interpreter does not have.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = scales.shape[1]
    halves = 1 if activation is None else 2
    width = outputs // halves
    assert halves == 1 or width % 64 == 0, width  # a block has outputs of one half alone
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    if outputs % 8:  # no network that we know of
        scales, zeros = (functional.pad(each, (0, -outputs % 8)) for each in (scales, zeros))
    span = next(span for span in _SPANS if inputs % span == 0)
    tiles = tiles or choose_tiles(tokens, outputs, inputs // span, x.device, span, group)
    stage = ring.stage_bytes(span, group, tiles.eights, tiles.row_warps)
    assert tiles.stages * stage <= copies.MOST_KIB << 10, tiles.stages
    rows, parts = cdiv(outputs, tiles.outputs), tiles.parts
    grid = (cdiv(tokens, tiles.tokens), rows, parts)
    if tiles.programs:
        shares = min(tiles.programs, rows * (inputs // span))
        parts = shares // rows if shares % rows == 0 else shares // rows + 2
        grid = (grid[0], 1, shares)
    in_parts = parts > 1
    shape = (parts, tokens, outputs) if in_parts else (1,)
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    types = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    words = [_words(each) for each in (x, packed, scales, zeros)]
    kernel: Any = _w4a16_product
    kernel[grid](
        *(*words, x if bias is None else bias, out, partial, arrived),
        *(tokens, width, inputs, inputs // 2),
        *(scales.shape[1] // 2, scales.shape[1] // 4, parts, rows),
        GROUP=group,
        SPAN=span,
        PAIRS=tiles.pairs,
        ROW_WARPS=tiles.row_warps,
        TOKEN_WARPS=tiles.token_warps,
        EIGHTS=tiles.eights,
        AHEAD=tiles.ahead,
        HOLDS=tiles.hold,
        COMPACT=tiles.compact,
        STAGES=tiles.stages,
        SHARED=tiles.programs > 0,
        IN_PARTS=in_parts,
        FAST=fast,
        BIAS=bias is not None,
        GATED=activation is not None,
        ACT=0 if activation is None else ACTIVATIONS[activation],
        DTYPE=types[x.dtype],
        SCALES=types[scales.dtype],
        num_warps=tiles.row_warps * tiles.token_warps,
        num_stages=1,
        **launch_options(x.device),
    )
    return out


def _words(numbers: Tensor) -> Tensor:
    """As int32 in a row, 16 bytes at a time; copied if they begin between two of these, as an x cut out may."""
    whole = numbers if numbers.data_ptr() % 16 == 0 else numbers.clone()
    return whole.reshape(-1).view(torch.int32)


def dequantise(
    packed: Tensor, scales: Tensor, zeros: Tensor, group: int, dtype: torch.dtype
) -> Tensor:
    """The weight [N, K] as ordinary numbers of `dtype`."""
    blocks, steps, _ = packed.shape
    outputs, inputs = scales.shape[1], steps * 32
    out = torch.empty((outputs, inputs), dtype=dtype, device=packed.device)
    kernel: Any = _w4a16_unpack
    kernel[(blocks, inputs // group)](
        *(packed, scales, zeros, out),
        *(outputs, inputs),
        GROUP=group,
        **launch_options(packed.device),
    )
    return out

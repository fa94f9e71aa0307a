"""Experts whose weights have four bits, as gpt-oss is published (mxfp4): 16 numbers, and a power of two for 32 of them.

Like `kernels/experts.py`: a program is for one expert and a tile of its outputs, and finds its tokens in one of two ways. The weights
lie as tensor cores want them from each thread (`kernels/fragments.py`, `model/quantised/mxfp4.py` has the formulas): a thread loads
16 bytes straight into registers, a warp 512 side by side.

A weight has a sign, two bits of an exponent and one of a mantissa. At the end of a bfloat16's exponent and at the beginning of its
mantissa, in front of nothing but zeros, these three bits are the number times 2 ** -126, also where the exponent is 0, because
bfloat16 has such small numbers too. One multiplication with 2 ** 126 and the power of two of 32 inputs makes the weight,
exactly. So a word of eight takes thirteen instructions: the bits lie in it so that three pairs of four need one shift at most.

With few tokens the warps of a program share the inputs, one span after the other, so that reading is spread over many of them,
and their sums meet at the end. With more tokens each warp has outputs of its own.

Where an expert has twelve tokens or more, Hopper has a faster way (`mxfp4_many.py`).

Weights come through a ring in shared memory (`copies.py`), if a processor has as much as Hopper's and registers are not wanted for
sums of many tokens. Every warp copies for itself what it reads: of a span 16 bytes of words for each thread and step, and for each
lane one word of factors. Inputs, which are few, are loaded a span ahead. What the second product wants before its inputs was
known two launches ago: its weights are asked for while the first one ends.

    T  tokens      E  experts      C  experts of a token      K  inputs      F  width inside an expert      N  outputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"
# Nor can it unpack a tuple into another one, so tuples are added.
# ruff: noqa: RUF005

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv
from manyhands.model.kernels import copies
from manyhands.model.kernels.experts import (
    MOST_CHOSEN,
    MOST_TOKENS,
    ExpertGate,
    add_up,
    clamped,
    columns_of,
    list_pairs,
)
from manyhands.model.kernels.fragments import column, halves, hold, multiplied, no_sums, two


def _spread(word: str, to: Sequence[str]) -> list[str]:
    """The bits of a word's numbers put where a bfloat16 has them, two in each of four registers; `moved` and `part` are free."""
    first, second, third, fourth = to
    return [
        f"and.b32 {first}, {word}, 0x81C081C0;",
        f"shl.b32 moved, {word}, 6;",
        f"and.b32 {second}, moved, 0x81C081C0;",
        f"shf.l.wrap.b32 moved, {word}, {word}, 12;",
        f"and.b32 {third}, moved, 0x81C081C0;",
        f"shl.b32 part, {word}, 2;",
        "and.b32 part, part, 0x80C080C0;",
        f"shf.l.wrap.b32 moved, {word}, {word}, 10;",
        # 0xEA is (a & b) | c.
        f"lop3.b32 {fourth}, moved, 0x01000100, part, 0xEA;",
    ]


def _exponents(factors: str, to: Sequence[str]) -> list[str]:
    """A word of four factors as numbers, each twice in a register."""
    return [
        line
        for i, each in enumerate(to)
        for line in (f"prmt.b32 {each}, {factors}, 0, 0x4{i}4{i};", f"shl.b32 {each}, {each}, 7;")
    ]


def _scaled(bits: str, factor: str, to: str) -> str:
    return f"fma.rn.bf16x2 {to}, {bits}, {factor}, none;"


_NONE = ".reg .b32 none;\nmov.b32 none, 0x80008000;"


def _unpack_assembly() -> str:
    """Four words and a word of four factors (r, h), as exponents -> 16 registers of two weights each."""
    by = [f"by{i}" for i in range(4)]
    lines = ["{", ".reg .b32 moved, part, by0, by1, by2, by3;", _NONE, *_exponents("$20", by)]
    for word in range(4):
        to = [f"${4 * word + i}" for i in range(4)]
        lines += _spread(f"${16 + word}", to)
        lines += [_scaled(each, by[word // 2 * 2 + i % 2], each) for i, each in enumerate(to)]
    return "\n".join([*lines, "}"])


def _spread_assembly() -> str:
    """The same in front of the multiplication: 16 registers of bits, and four of factors."""
    lines = ["{", ".reg .b32 moved, part;", *_exponents("$24", [f"${16 + i}" for i in range(4)])]
    for word in range(4):
        lines += _spread(f"${20 + word}", [f"${4 * word + i}" for i in range(4)])
    return "\n".join([*lines, "}"])


def _scale_assembly(r: int) -> str:
    """Four registers of bits (c, h) of a word with this r, and four of factors (r, h) -> four of weights."""
    lines = [_scaled(f"${4 + i}", f"${8 + 2 * r + i % 2}", f"${i}") for i in range(4)]
    return "\n".join(["{", _NONE, *lines, "}"])


WORD_BYTES = tl.constexpr(512)  # of a step, of a warp
_FACTOR_BYTES = tl.constexpr(128)  # of a span, of a warp: a word for each lane
_MOST_RINGED = tl.constexpr(4)  # steps of a span: the lanes' words of factors are eights of a step
_UNPACK = tl.constexpr(_unpack_assembly())
_UNPACK_OPERANDS = tl.constexpr(",".join(["=r"] * 16 + ["r"] * 8))
# Of tiles for many tokens (`mxfp4_many.py`), in two statements.
SPREAD = tl.constexpr(_spread_assembly())
SPREAD_OPERANDS = tl.constexpr(",".join(["=r"] * 20 + ["r"] * 8))
SCALE = tl.constexpr(tuple(_scale_assembly(r) for r in range(2)))
SCALE_OPERANDS = tl.constexpr(",".join(["=r"] * 4 + ["r"] * 8))


@dataclass(frozen=True)
class Tiles:
    """How the work is cut.

    Pairs of 16 outputs of a warp (1 or 2), warps along outputs and along inputs, steps of 32 inputs that a warp asks for at a time,
    and stages of its ring (0: none).
    """

    pairs: int = 1
    row_warps: int = 1
    input_warps: int = 4
    span: int = 2
    stages: int = 0

    @property
    def halves(self) -> int:
        """Halves of blocks of 64 outputs that a program has."""
        return self.pairs * self.row_warps

    @property
    def ring_bytes(self) -> int:
        """Shared memory of the ring."""
        warps = self.row_warps * self.input_warps
        return int(self.stages * warps * (WORD_BYTES.value * self.span + _FACTOR_BYTES.value))


# Of gpt-oss-20b's shapes the fastest ones, or within a twentieth of them (benchmarks/results/mxfp4_rings.json; of tiles without a
# ring mxfp4_tiles.json).
_MOST_LOOKED_UP = 8  # tokens: one eight of columns
_ROOM = 200 << 10  # bytes of a processor's shared memory from which on there are rings
_MOST_RINGED_EIGHTS = 2
_WIDE_RING = Tiles(row_warps=4, input_warps=1, span=4, stages=5)
_SHARED_RING = Tiles(row_warps=2, input_warps=2, span=3, stages=4)
_RINGED = {  # by the most tokens
    1: (_SHARED_RING, Tiles(span=3)),
    4: (_WIDE_RING, _SHARED_RING),
    8: (_WIDE_RING, _WIDE_RING),
    32: (_WIDE_RING, _SHARED_RING),
    MOST_TOKENS: (Tiles(row_warps=4, input_warps=1, span=3, stages=6), _WIDE_RING),
}
_SINGLE = Tiles(row_warps=2, input_warps=2, span=3), Tiles(span=3)  # up to two tokens
_FEW = Tiles(row_warps=2, input_warps=2, span=3)  # up to sixteen
_MORE = Tiles(row_warps=4, input_warps=1, span=3)  # up to 32, of which an expert has an eight
_MANY = Tiles(row_warps=4, input_warps=1)


class PackedWeights(NamedTuple):
    """The weights of all experts of one product, and the biases [E, N], if there are any."""

    packed: Tensor  # int32 [E, N / 64, K / 32, 256], see `quantised/mxfp4.py`
    factors: Tensor  # int32 [E, N / 64, K / 32, 16]
    bias: Tensor | None = None


@triton.jit
def _unpacked(words, factors, FAST: tl.constexpr):
    """Weights: words (r, j) and exponents of their factors (r, h) -> for each of the four (c, h), two weights in a word."""
    if not FAST:
        weights = (
            _unpacked_twin(words, factors, 0),
            _unpacked_twin(words, factors, 1),
            _unpacked_twin(words, factors, 2),
            _unpacked_twin(words, factors, 3),
        )
    else:
        weights = tl.inline_asm_elementwise(
            _UNPACK,
            _UNPACK_OPERANDS,
            [words, factors],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=4,
        )
    return weights


@triton.jit
def _unpacked_twin(words, factors, at):
    word = column(words, at).to(tl.uint32, bitcast=True)
    i = tl.arange(0, 4)[None, :]
    by = (0x2C60 >> (4 * i)) & 0xF
    most = _turned(word, by) & 0x80C080C0
    exponent = _turned(word, tl.where(i < 3, by, 10)) & 0x01000100
    low, high = halves((most | exponent).to(tl.int32, bitcast=True), tl.bfloat16)
    factor = ((factors >> (8 * (at // 2 * 2 + i % 2))) & 0xFF) << 23
    factor = factor.to(tl.float32, bitcast=True)
    return two(low * factor, high * factor, tl.bfloat16)


@triton.jit
def _turned(word, by):
    """Bits of a word moved to the left, the first ones to its end."""
    return (word << by) | (word >> ((32 - by) & 31))


@triton.jit
def _words(at, left, SPAN: tl.constexpr, PAIRS: tl.constexpr):
    """The words (r, j) of one span, as far as steps are left: a tensor for every 32 inputs and 32 outputs."""
    words = ()
    for step in tl.static_range(SPAN):
        for p in tl.static_range(PAIRS):
            here = at + (step * 256 + p * 128)
            # A step that is not there may have any words: its factors are 0.
            words = words + (tl.load(here, mask=step < left, eviction_policy="evict_first"),)
    return words


@triton.jit
def _factors(at, left, SPAN: tl.constexpr, PAIRS: tl.constexpr):
    """As many words of four factors (r, h)."""
    factors = ()
    for step in tl.static_range(SPAN):
        for p in tl.static_range(PAIRS):
            factors = factors + (tl.load(at + (step * 16 + p * 8), mask=step < left, other=0),)
    return factors


@triton.jit
def _inputs(at_x, left, SPAN: tl.constexpr, EIGHTS: tl.constexpr):
    """Inputs (j, c) of one span, as far as steps are left: a tensor for every 32 inputs and eight columns."""
    inputs = ()
    for step in tl.static_range(SPAN):
        for n in tl.static_range(EIGHTS):
            inputs = inputs + (tl.load(at_x[n] + step * 16, mask=step < left, other=0),)
    return inputs


@triton.jit
def _ask(stage, thread, at_words, at_factors, left, SPAN: tl.constexpr):
    """Ask for words and factors of one span, as far as steps are left; of a step that is not there, for factors of 0."""
    THREADS: tl.constexpr = thread.shape[0]
    for step in tl.static_range(SPAN):
        slot = stage + thread * 16 + step * (16 * THREADS)
        copies.copied_once(step, slot, at_words, (step < left).to(tl.int32))
    step = thread % 32 // 8
    is_there = (step < SPAN) & (step < left)
    slot = stage + thread * 4 + 16 * SPAN * THREADS
    copies.copied(copies.COPY_4_OR_ZERO, slot, at_factors, is_there.to(tl.int32))
    copies.commit()


@triton.jit
def _came(stage, thread, SPAN: tl.constexpr):
    """Of a stage [threads, 4] the words (r, j) and, of four factors (r, h) each, those of every step."""
    THREADS: tl.constexpr = thread.shape[0]
    words, factors = (), ()
    for step in tl.static_range(SPAN):
        words = words + (copies.read(copies.READ_4, stage + thread * 16 + step * (16 * THREADS)),)
        lane = thread // 32 * 32 + step * 8 + thread % 32 // 4
        slot = stage + lane * 4 + 16 * SPAN * THREADS
        factors = factors + (copies.read(copies.READ_1, slot),)
    return words, factors


@triton.jit
def _pair_of(
    column,
    index,
    pairs,
    counts,
    T,
    expert,
    group,
    C: tl.constexpr,
    LISTED: tl.constexpr,
    FROM: tl.constexpr,
):
    """Of columns of any shape the pair of a token and a place, 0 for one that is not the expert's; and whether it is."""
    if LISTED:
        is_its = column < tl.load(counts + group, cache_modifier=FROM)
        at = pairs + group * T + column
        pair = tl.load(at, mask=is_its, other=0, cache_modifier=FROM)
    else:
        pair = column * 0
        is_its = column < 0
        for number in tl.static_range(C):
            at = index + column * C + number
            chosen = tl.load(at, mask=column < T, other=-1, cache_modifier=FROM).to(tl.int32)
            pair = tl.where(chosen == expert, column * C + number, pair)
            is_its = is_its | (chosen == expert)
    return pair, is_its


@triton.jit
def _summed(a, b, ROW_WARPS: tl.constexpr, INPUT_WARPS: tl.constexpr):
    """Sums (h, e) of r = 0 and 1 of all warps along the inputs -> [row warps * 32, h, e, r]."""
    both = tl.join(a, b)
    if INPUT_WARPS > 1:
        both = tl.sum(tl.reshape(both, (ROW_WARPS, INPUT_WARPS, 256)), axis=1)
    return tl.reshape(both, (ROW_WARPS * 32, 2, 2, 2))


@triton.jit(do_not_specialize=("T",))
def _mxfp4_product(
    x,  # [T, K / 2] int32, of two numbers each; or, of every pair, [T, C, K / 2]
    packed,
    factors_of,
    bias,  # [E, N], or nothing
    index,  # [T, C]
    pairs,
    counts,
    shares,  # [T, C], or nothing
    out,  # GATED: [T, C, N / 2]; else [C, T, N] float32
    T,
    N,
    half_inputs,
    steps,  # K / 32
    alpha,
    limit,
    C: tl.constexpr,
    BY_PAIR: tl.constexpr,
    LISTED: tl.constexpr,
    GATED: tl.constexpr,  # x is one of tokens, outputs are gates and values in turns
    BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROW_WARPS: tl.constexpr,
    INPUT_WARPS: tl.constexpr,
    EIGHTS: tl.constexpr,
    SPAN: tl.constexpr,
    STAGES: tl.constexpr,  # of the ring; 0: weights go straight to registers
    FAST: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, group, part of the group's tokens), see `experts.py`."""
    THREADS: tl.constexpr = 32 * ROW_WARPS * INPUT_WARPS
    SUMS: tl.constexpr = 2 * PAIRS * EIGHTS
    ROUND: tl.constexpr = SPAN * INPUT_WARPS  # steps
    RING: tl.constexpr = FAST and STAGES > 0
    STAGE: tl.constexpr = ROW_WARPS * INPUT_WARPS * (WORD_BYTES * SPAN + _FACTOR_BYTES)
    tile, group = tl.program_id(0), tl.program_id(1)
    thread = tl.arange(0, THREADS)[:, None]
    four = tl.arange(0, 4)[None, :]
    g, t = thread % 32 // 4, thread % 4
    # The second product finds its tokens as the first one did: they were known before that. In front of its wait the first-level
    # cache may hold what lay there before.
    FROM: tl.constexpr = "" if GATED else ".cg"
    if GATED:
        take_over(OVERLAP)
    expert, _, _, is_chosen = columns_of(
        index, pairs, counts, T, C, BY_PAIR, LISTED, 8 * EIGHTS, FROM
    )
    if tl.max(is_chosen.to(tl.int32)) == 0:
        return

    blocks = tl.cdiv(N, 64)
    half = tile * (PAIRS * ROW_WARPS) + thread // (32 * INPUT_WARPS) * PAIRS  # of blocks
    block = tl.minimum(half // 2, blocks - 1)
    begin = thread // 32 % INPUT_WARPS * SPAN
    at = block * steps + begin
    here = expert.to(tl.int64) * blocks * steps
    at_words = packed + here * 256 + (at * 256 + half % 2 * 128 + thread % 32 * 4)
    left = steps - begin
    at_factors = factors_of + here * 16 + (at * 16 + half % 2 * 8)
    if RING:
        # A lane copies those of another step and other outputs than it multiplies.
        at_factors += thread % 32 // 8 * 16 + thread % 8
        tl.static_assert(PAIRS == 1 and SPAN <= _MOST_RINGED)
        memory = copies.allocated(STAGES * STAGE)
        for i in tl.static_range(STAGES - 1):
            _ask(memory + i * STAGE, thread, at_words, at_factors, left - i * ROUND, SPAN)
            at_words += ROUND * 256
            at_factors += ROUND * 16
    else:
        at_factors += g
    first = tl.program_id(2) * (8 * EIGHTS) if LISTED else 0
    at_x = ()
    for n in tl.static_range(EIGHTS):
        pair, _ = _pair_of(
            first + 8 * n + g, index, pairs, counts, T, expert, group, C, LISTED, FROM
        )
        if not GATED:
            row = pair
        elif LISTED:
            row = pair // C
        else:
            row = tl.minimum(first + 8 * n + g, T - 1)
        at_x = at_x + (x + (row * half_inputs + begin * 16 + t * 4) + four,)
    if not GATED:
        take_over(OVERLAP)

    sums = no_sums(SUMS, THREADS)
    if RING:
        stage, free = memory, memory + (STAGES - 1) * STAGE
        held = copies.held(x, thread, T)
        inputs = _inputs(at_x, left, SPAN, EIGHTS)
    else:
        at_words += four
        words = _words(at_words, left, SPAN, PAIRS)
        factors = _factors(at_factors, left, SPAN, PAIRS)
    for _ in range(tl.cdiv(steps, ROUND)):
        further = ()
        for n in tl.static_range(EIGHTS):
            further = further + (at_x[n] + ROUND * 16,)
        if RING:
            copies.arrived_in_warp(STAGES)
            _ask(free, thread, at_words, at_factors, left - (STAGES - 1) * ROUND, SPAN)
            words, factors = _came(stage + held, thread, SPAN)
            next_inputs = _inputs(further, left - ROUND, SPAN, EIGHTS)
        at_words += ROUND * 256
        at_factors += ROUND * 16
        if not RING:
            next_words = _words(at_words, left - ROUND, SPAN, PAIRS)
            next_factors = _factors(at_factors, left - ROUND, SPAN, PAIRS)
        hold(FAST)
        if not RING:
            inputs = _inputs(at_x, left, SPAN, EIGHTS)
        for step in tl.static_range(SPAN):
            more = ()
            for p in tl.static_range(PAIRS):
                factor = tl.broadcast_to(factors[step * PAIRS + p], (THREADS, 4))
                weights = _unpacked(words[step * PAIRS + p], factor, FAST)
                for n in tl.static_range(EIGHTS):
                    for r in tl.static_range(2):
                        more = more + (
                            multiplied(
                                sums[(p * EIGHTS + n) * 2 + r],
                                weights[2 * r],
                                weights[2 * r + 1],
                                inputs[step * EIGHTS + n],
                                FAST,
                                tl.bfloat16,
                            ),
                        )
            sums = more
        if RING:
            free = stage
            stage = tl.where(stage == memory + (STAGES - 1) * STAGE, memory, stage + STAGE)
            inputs = next_inputs
        else:
            words = next_words
            factors = next_factors
        left -= ROUND
        at_x = further

    thread = tl.arange(0, 32 * ROW_WARPS)[:, None, None]
    r = tl.arange(0, 2)[None, None, :]
    DTYPE: tl.constexpr = out.dtype.element_ty
    for n in tl.static_range(EIGHTS):
        columns = first + 8 * n + thread % 4 * 2 + tl.arange(0, 2)[None, :, None]
        pair, is_its = _pair_of(columns, index, pairs, counts, T, expert, group, C, LISTED, FROM)
        if not GATED:
            share = tl.load(shares + pair, mask=is_its, other=0.0).to(tl.float32)
        for p in tl.static_range(PAIRS):
            result = _summed(
                sums[(p * EIGHTS + n) * 2], sums[(p * EIGHTS + n) * 2 + 1], ROW_WARPS, INPUT_WARPS
            )
            half = tile * (PAIRS * ROW_WARPS) + thread // 32 * PAIRS + p
            low = half // 2 * 64 + thread % 32 // 4 * 8 + half % 2 * 4 + 2 * r
            even, odd = tl.split(tl.permute(result, (0, 2, 3, 1)))
            is_here = low < N
            if BIAS:
                at_bias = bias + expert * N + low
                even += tl.load(at_bias, mask=is_here, other=0.0).to(tl.float32)
                odd += tl.load(at_bias + 1, mask=is_here, other=0.0).to(tl.float32)
            if GATED:
                gate, up = even.to(DTYPE).to(tl.float32), odd.to(DTYPE).to(tl.float32)
                inner = clamped(gate, up, alpha, limit)
                where = out + pair * (N // 2) + low // 2
                tl.store(where, inner.to(DTYPE), mask=is_here & is_its)
            else:
                where = out + (pair % C * T + pair // C) * N + low
                tl.store(where, even * share, mask=is_here & is_its)
                tl.store(where + 1, odd * share, mask=is_here & is_its)


def experts(
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    gate_up: PackedWeights,
    down: PackedWeights,
    gate: ExpertGate,
    *,
    in_parts: bool = False,
    tiles: tuple[Tiles, Tiles] | None = None,
    eights: int | None = None,
    fast: bool = True,
) -> Tensor:
    """X [T, K] in bfloat16 through the experts `index` [T, C] of each token, weighed by `shares` [T, C] -> [T, N], up to 1024 tokens.

    `in_parts`: what each of them gives instead, weighed, [C, T, N] in float32, whose sum that is.
    Outputs of the first product are gates and values in turns, and the gate is clamped. The experts of a token are different ones.
    `fast` is with instructions of the GPU, which Triton's interpreter does not have.
    """
    tokens, inputs = x.shape
    num_experts, chosen = len(gate_up.packed), index.shape[1]
    width, outputs = down.packed.shape[2] * 32, inputs
    assert gate.clamped is not None
    assert x.dtype == torch.bfloat16, x.dtype
    assert tokens <= MOST_TOKENS, tokens
    assert chosen <= MOST_CHOSEN, chosen
    parts = torch.empty(chosen, tokens, outputs, dtype=torch.float32, device=x.device)
    out = parts if in_parts else x.new_empty(tokens, outputs)
    if not tokens:
        return out
    x, index, shares = x.contiguous(), index.contiguous(), shares.contiguous()
    inner = x.new_empty(tokens, chosen, width)
    listed = tokens > _MOST_LOOKED_UP
    lists = list_pairs(index, num_experts) if listed else (index, index)
    groups = num_experts if listed else min(num_experts, tokens * chosen)
    eights = eights or _eights(tokens, chosen, num_experts)
    num_parts = cdiv(tokens, 8 * eights) if listed else 1
    alpha, limit = gate.clamped
    first, second = tiles or choose_tiles(tokens, eights, x.device)
    assert max(first.ring_bytes, second.ring_bytes) <= copies.MOST_KIB << 10, (first, second)
    kernel: Any = _mxfp4_product
    for each, weights, rows, size, made in (
        (first, gate_up, x, 2 * width, inner),
        (second, down, inner, outputs, parts),
    ):
        is_gated = made is inner
        kernel[(cdiv(2 * cdiv(size, 64), each.halves), groups, num_parts)](
            *(rows.view(torch.int32), weights.packed, weights.factors),
            *(x if weights.bias is None else weights.bias, index, *lists, shares, made),
            *(tokens, size, rows.shape[-1] // 2, rows.shape[-1] // 32, alpha, limit),
            C=chosen,
            BY_PAIR=groups < num_experts,
            LISTED=listed,
            GATED=is_gated,
            BIAS=weights.bias is not None,
            PAIRS=each.pairs,
            ROW_WARPS=each.row_warps,
            INPUT_WARPS=each.input_warps,
            EIGHTS=eights,
            SPAN=each.span,
            STAGES=each.stages,
            FAST=fast,
            num_warps=each.row_warps * each.input_warps,
            **launch_options(x.device),
        )
    return out if in_parts else add_up(parts, out)


def choose_tiles(tokens: int, eights: int, device: torch.device) -> tuple[Tiles, Tiles]:
    """The tiles of both products for so many tokens, in so many eights of columns."""
    if eights <= _MOST_RINGED_EIGHTS and shared_memory(device) >= _ROOM:
        return next(tiles for most, tiles in _RINGED.items() if tokens <= most)
    if tokens <= 2:
        return _SINGLE
    if tokens <= 2 * _MOST_LOOKED_UP:
        return _FEW, _FEW
    is_more = eights == 1 and tokens <= 4 * _MOST_LOOKED_UP
    return (_MORE, _MORE) if is_more else (_MANY, _MANY)


def _eights(tokens: int, chosen: int, num_experts: int) -> int:
    """Eights of columns: of all tokens, or of listed ones half as many again as an expert has if all have as many."""
    if tokens <= _MOST_LOOKED_UP:
        return 1
    wanted = 1.5 * tokens * chosen / num_experts
    return next((eights for eights in (1, 2) if 8 * eights >= wanted), 4)

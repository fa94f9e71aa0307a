"""Products of 33 to 128 tokens by specialised warps: one brings weights and inputs, others multiply (Hopper).

Where all warps do everything, tiles that are on their way wait for those that are multiplied. Here a program has a
processor to itself. One warp keeps a ring of tiles on their way, by tensor maps, in nearly all of the shared memory;
groups of four warps multiply 64 rows of the weight each, the left operand, with all tokens. A program has as many groups
as it takes for all programs to have a processor at once, so each reads an equal share of the weight. Weights of the
first stages are asked for before the launch in front has ended, inputs when it has. Sums and norms around the product
overlap with it: they find room in the rest of the shared memory and of the registers.

A product comes in one of three forms:

    whole      x times w transposed, rounded
    gated      act(gate) * up: eight rows of gate and eight of up lie in turns, so a thread has both halves of an output.
               Values are rounded where the modelling code rounds: each half, the activation, the product
    in parts   two halves of the inputs, in float32, which the residual sum behind the product adds up (`norms.join`):
               few outputs make few tiles, 4096 of them 64, for 132 processors

It is written in Gluon, which has no interpreter: machines without a GPU only compile it, its values are tested on one.

    T  tokens      N  outputs      K  inputs      F  width inside the MLP
"""

# Kernels are written in Gluon, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"

from __future__ import annotations

from typing import Any

import torch
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

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import has_gluon, shared_memory
from manyhands.attention.work import cdiv
from manyhands.model import kernels
from manyhands.model.kernels.gated import ACTIVATIONS, activated

LEAST_TOKENS, MOST_TOKENS = 33, 128
PARTS = 2
_ROWS = gl.constexpr(64)  # of the weight, of one group of warps
_INPUTS = gl.constexpr(64)  # of a stage: the widest box that can be swizzled
_MOST_GROUPS = 3
_BOX = 16  # tokens that are brought at once, at least
_SHARE = 0.7  # of the processors, from which on programs are worth it
_SHARE_IN_PARTS = 0.9
_EARLY = 2  # stages whose weights are asked for early; more of them delay the launch in front
_REGISTERS = 104  # of a thread, when a program begins
_MANY_REGISTERS = gl.constexpr(112)  # of one that multiplies
_FEW_REGISTERS = gl.constexpr(32)  # of one that loads
_RESERVED = 1024  # bytes of shared memory for barriers
_ALIGNED = 16  # bytes at whose multiples a tensor map begins
# Names that change between releases.
_copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
_IS_OLD = gl.constexpr(hasattr(gl.shared_memory_descriptor, "_reinterpret"))


@gluon.jit
def _ask_weights(weight, w_room, here, stage, first, at, GROUPS: gl.constexpr):
    """Weights of one stage, for all groups: `first` is the first row, of those of gate if the map has both halves."""
    STAGES: gl.constexpr = here.shape[0]
    BOX: gl.constexpr = weight.block_shape
    mbarrier.expect(here.index(stage), GROUPS * _ROWS * _INPUTS * 2)
    for group in gl.static_range(GROUPS):
        room = w_room.index(group * STAGES + stage)
        if len(BOX) == 2:
            _copy(weight, [first + group * _ROWS, at], here.index(stage), room)
        else:
            if _IS_OLD:
                box = room._reinterpret(room.dtype, BOX, weight.layout)
            else:
                box = room.reinterpret(room.dtype, BOX, weight.layout)
            _copy(weight, [first // 8 + group * BOX[0], 0, 0, at], here.index(stage), box)


@gluon.jit
def _bring(
    inputs, weight, w_room, x_room, here, free, first, begin, end, early, GROUPS: gl.constexpr,
    BOXES: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """One warp: weights and inputs of every stage, as soon as there is room."""
    STAGES: gl.constexpr = here.shape[0]
    BOX: gl.constexpr = inputs.block_shape[0]
    count = end - begin
    early = gl.minimum(count, early)
    for step in range(early):
        _ask_weights(weight, w_room, here, step, first, (begin + step) * _INPUTS, GROUPS)
    take_over(OVERLAP)
    for step in range(count):
        stage = step % STAGES
        at = (begin + step) * _INPUTS
        mbarrier.wait(free.index(stage), (step // STAGES) & 1 ^ 1)
        if step >= early:
            _ask_weights(weight, w_room, here, stage, first, at, GROUPS)
        mbarrier.expect(here.index(stage), BOXES * BOX * _INPUTS * 2)
        for i in gl.static_range(BOXES):
            box = x_room.index(stage).slice(i * BOX, BOX)
            _copy(inputs, [i * BOX, at], here.index(stage), box)


@gluon.jit
def _leave(sums, bias, out, first, T, N, is_first, BIAS: gl.constexpr):
    """Sums [rows, tokens] of one group to out [T, N], one half of the tokens after the other."""
    WIDE: gl.constexpr = sums.shape[1] // 2
    OUT: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1])
    low, high = gl.split(gl.permute(gl.reshape(sums, [_ROWS, 2, WIDE]), (0, 2, 1)))
    n = first + gl.arange(0, _ROWS, gl.SliceLayout(1, OUT))
    for half in gl.static_range(2):
        x = gl.convert_layout(low if half == 0 else high, OUT)
        if BIAS:
            x += gl.where(is_first, gl.load(bias + n).to(gl.float32), 0.0)[:, None]
        t = half * WIDE + gl.arange(0, WIDE, gl.SliceLayout(0, OUT))
        at = out + (t * N)[None, :] + n[:, None]
        gl.store(at, x.to(out.dtype.element_ty), mask=(t < T)[None, :])


@gluon.jit
def _leave_gated(sums, bias, out, first, T, F, BIAS: gl.constexpr, ACT: gl.constexpr):
    """act(gate) * up of one group, from sums [rows of both, tokens], to out [T, F]."""
    HALF: gl.constexpr = _ROWS // 2
    WIDE: gl.constexpr = sums.shape[1]
    DTYPE: gl.constexpr = out.dtype.element_ty
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, 4], [0, 1])
    pairs = gl.reshape(sums, [HALF // 8, 2, 8, WIDE])
    gate, up = gl.split(gl.permute(pairs, (0, 2, 3, 1)))
    gate, up = gl.reshape(gate, [HALF, WIDE]), gl.reshape(up, [HALF, WIDE])
    if BIAS:
        f = first + gl.arange(0, HALF, gl.SliceLayout(1, gate.type.layout))
        gate += gl.load(bias + f, mask=f < F, other=0.0).to(gl.float32)[:, None]
        up += gl.load(bias + F + f, mask=f < F, other=0.0).to(gl.float32)[:, None]
    gate, up = gate.to(DTYPE).to(gl.float32), up.to(DTYPE).to(gl.float32)
    both = (activated(gate, ACT).to(DTYPE).to(gl.float32) * up).to(DTYPE)
    f = first + gl.arange(0, HALF, gl.SliceLayout(1, OUT))
    t = gl.arange(0, WIDE, gl.SliceLayout(0, OUT))
    at = out + (t * F)[None, :] + f[:, None]
    gl.store(at, gl.convert_layout(both, OUT), mask=(f < F)[:, None] & (t < T)[None, :])


@gluon.jit
def _multiply(
    who, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
    GATED: gl.constexpr, BIAS: gl.constexpr, ACT: gl.constexpr,
):  # fmt: skip
    """Four warps: 64 rows of the weight with all tokens; a product is on its way while the next stage is waited for."""
    STAGES: gl.constexpr = here.shape[0]
    BLOCK_T: gl.constexpr = x_room.shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_T, 16])
    sums = gl.zeros([_ROWS, BLOCK_T], gl.float32, SUMS)
    for step in range(end - begin):
        stage = step % STAGES
        mbarrier.wait(here.index(stage), (step // STAGES) & 1)
        x = x_room.index(stage).permute((1, 0))
        adding = warpgroup_mma(w_room.index(who * STAGES + stage), x, sums, is_async=True)
        sums = warpgroup_mma_wait(1, deps=[adding])
        before = (step + STAGES - 1) % STAGES
        mbarrier.arrive(free.index(before), count=1, pred=step > 0)
    sums = warpgroup_mma_wait(0, deps=[sums])
    if GATED:
        _leave_gated(sums, bias, out, first + who * (_ROWS // 2), T, N, BIAS, ACT)
    else:
        _leave(sums, bias, out + part * T * N, first + who * _ROWS, T, N, part == 0, BIAS)


@gluon.jit(do_not_specialize=["T", "early"])
def _ring(
    inputs,  # tensor maps of x [T, K] and the weight: [N, K], or, gated, [F / 8, 2, 8, K]
    weight,
    bias,  # [N] or [2 F], or nothing
    out,  # [T, N], [T, F], or parts [P, T, N] in float32
    T,
    N,  # F if gated
    K,
    early,  # stages whose weights are asked for before the wait
    PARTS: gl.constexpr,
    GROUPS: gl.constexpr,
    STAGES: gl.constexpr,
    BOXES: gl.constexpr,  # of tokens
    BLOCK_T: gl.constexpr,  # all tokens
    GATED: gl.constexpr,
    BIAS: gl.constexpr,
    ACT: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """Program (tile of outputs, part of the inputs)."""
    DTYPE: gl.constexpr = inputs.dtype
    LAYOUT: gl.constexpr = inputs.layout
    w_room = gl.allocate_shared_memory(DTYPE, [GROUPS * STAGES, _ROWS, _INPUTS], LAYOUT)
    x_room = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_T, _INPUTS], LAYOUT)
    BARRIERS: gl.constexpr = mbarrier.MBarrierLayout()
    here = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(here.index(stage), count=2)  # weights and inputs
        mbarrier.init(free.index(stage), count=GROUPS)
    fence_async_shared()

    part = gl.program_id(1)
    begin, end = part * (K // _INPUTS) // PARTS, (part + 1) * (K // _INPUTS) // PARTS
    first = gl.program_id(0) * GROUPS * (_ROWS // 2 if GATED else _ROWS)
    # Gluon forgets that constants are constants in a tuple that has a name: hence each time in full.
    A: gl.constexpr = 0
    B: gl.constexpr = 1
    C: gl.constexpr = 2
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    A, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_bring, (
                    inputs, weight, w_room, x_room, here, free, first, begin, end, early, GROUPS,
                    BOXES, OVERLAP,
                )),
            ],
            [1],
            [_FEW_REGISTERS],
        )  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (
                    A, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_multiply, (
                    B, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_bring, (
                    inputs, weight, w_room, x_room, here, free, first, begin, end, early, GROUPS,
                    BOXES, OVERLAP,
                )),
            ],
            [4, 1],
            [_MANY_REGISTERS, _FEW_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    A, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_multiply, (
                    B, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_multiply, (
                    C, bias, out, w_room, x_room, here, free, first, begin, end, part, T, N,
                    GATED, BIAS, ACT,
                )),
                (_bring, (
                    inputs, weight, w_room, x_room, here, free, first, begin, end, early, GROUPS,
                    BOXES, OVERLAP,
                )),
            ],
            [4, 4, 1],
            [_MANY_REGISTERS, _MANY_REGISTERS, _FEW_REGISTERS],
        )  # fmt: skip


def groups_for(weight: Tensor, *, parts: int = 1, gated: bool = False) -> int:
    """How many groups of warps share a program of a product with this weight [N, K], contiguous; 0 where another way is faster.

    Programs fill most of the processors and each has one to itself.
    """
    rows, inputs = weight.shape
    if not has_gluon(weight.device) or weight.data_ptr() % _ALIGNED:
        return 0
    if rows % _ROWS.value or inputs % _INPUTS.value or inputs < parts * _INPUTS.value:
        return 0
    processors = kernels.num_processors(weight.device)
    for groups in range(1, _MOST_GROUPS + 1 if gated else 2):
        programs = parts * cdiv(rows // _ROWS.value, groups)
        if programs <= processors:
            share = _SHARE_IN_PARTS if parts > 1 else _SHARE
            return groups if programs >= share * processors else 0
    return 0


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X [T, K], weight [N, K] and bias [N] -> [T, N], for up to 128 tokens; N and K are multiples of 64."""
    out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device)
    return _launched(x, weight, bias, out, 1, early=_EARLY)


def product_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X [T, K], weight [N, K] and bias [N] -> [2, T, N] float32, whose sum is the product, for up to 128 tokens.

    N and K are multiples of 64.
    """
    outputs, inputs = weight.shape
    out = torch.empty((PARTS, len(x), outputs), dtype=torch.float32, device=x.device)
    # In front of a product that has more inputs than outputs mostly stands another one, that of gate and up. The last
    # programs of that one leave memory idle, and no small launch is there that weights could delay.
    early = None if inputs > outputs else _EARLY
    return _launched(x, weight, bias, out, 1, parts=PARTS, early=early)


def gated_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, groups: int
) -> Tensor:
    """X [T, K], weight [2 F, K] and bias [2 F], gates first -> act(gate) * up [T, F], for up to 128 tokens.

    F is a multiple of 32 and K one of 64.
    """
    out = torch.empty((len(x), len(weight) // 2), dtype=x.dtype, device=x.device)
    return _launched(x, weight, bias, out, groups, activation=activation, early=_EARLY)


def _launched(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    groups: int,
    *,
    early: int | None,
    parts: int = 1,
    activation: str | None = None,
) -> Tensor:
    """`out`, filled; weights of so many stages are asked for early, or of as many as there are."""
    x = x.contiguous()
    tokens, inputs = x.shape
    assert tokens <= MOST_TOKENS, tokens
    if not tokens:
        return out
    is_gated = activation is not None
    rows, wide = _ROWS.value, _INPUTS.value
    block = 64 if tokens <= 64 else MOST_TOKENS
    # The copy engine is slow where a box goes far beyond the tokens, so boxes are low. Rows of a tile that no box reaches
    # hold anything; they belong to no token.
    boxed = -(-tokens // _BOX) * _BOX
    box = boxed & -boxed
    # Results pass through shared memory: those of one half of the rows in 16 bits, or half of the sums.
    passing = groups * rows * block * (1 if is_gated else 2)
    room = shared_memory(x.device) - _RESERVED - passing
    stages = room // (x.element_size() * wide * (groups * rows + block))
    if is_gated:
        halves = weight.view(2, -1, 8, inputs).transpose(0, 1)
        weight_map = _map(halves, [rows // 16, 2, 8, wide])
    else:
        weight_map = _map(weight, [rows, wide])
    outputs = out.shape[-1]
    kernel: Any = _ring
    kernel[(cdiv(len(weight) // rows, groups), parts)](
        _map(x, [box, wide]),
        weight_map,
        x if bias is None else bias,
        out,
        *(tokens, outputs, inputs, stages if early is None else early),
        PARTS=parts,
        GROUPS=groups,
        STAGES=stages,
        BOXES=boxed // box,
        BLOCK_T=block,
        GATED=is_gated,
        BIAS=bias is not None,
        ACT=ACTIVATIONS[activation] if activation is not None else 0,
        num_warps=4,
        maxnreg=_REGISTERS,
        **launch_options(x.device),
    )
    return out


def _map(x: Tensor, box: list[int]) -> Any:
    """A tensor map whose boxes lie in shared memory as matrix units read 16-bit numbers."""
    swizzled = gl.NVMMASharedLayout(128, 16, rank=x.dim())
    return TensorDescriptor(x, list(x.shape), list(x.stride()), box, swizzled)

"""Products with weights of four bits: x [T, K] times w [N, K] transposed, w = (q - zero) * scale.

Weights are the *left* operand of the tensor cores, so that a handful of tokens fills the narrow side
of a tile instead of leaving the wide one empty, and unpacked weights go from registers into the
product. They are packed in words of 16 bits over a span of inputs (`model/quantised/w4a16.py`): word j holds, from its lowest
four bits up, the inputs j of the span's four quarters. So every quarter meets a contiguous piece of x, and
words lie in registers just as the 16-bit numbers do that they become: nothing is moved around.

Inside the product a weight is an exact small integer, q - zero, and the scale comes in once per group:

    sum_k (q_k - zero) scale x_k  =  scale sum_k ((q_k + OFFSET) - (zero + OFFSET)) x_k

OFFSET is what makes unpacking cheap: 0x4300 with four bits set at its end is the bfloat16 number 128 + q
(0x6400 the float16 number 1024 + q), exactly, and so is the difference of two of them.

Where few tiles of outputs would leave processors idle, the inputs are cut into parts; the last program to arrive
adds up all parts, in their order, so that results repeat.

    T  tokens      N  outputs      K  inputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.model import kernels
from manyhands.model.kernels.adding import add_up

# Two words at a time; 0xEA is (a & b) | c.
_UNPACK = """
{
.reg .b32 rest;
lop3.b32 $0, $4, 0x000F000F, MAGIC, 0xEA;
shr.u32 rest, $4, 4;
lop3.b32 $1, rest, 0x000F000F, MAGIC, 0xEA;
shr.u32 rest, $4, 8;
lop3.b32 $2, rest, 0x000F000F, MAGIC, 0xEA;
shr.u32 rest, $4, 12;
lop3.b32 $3, rest, 0x000F000F, MAGIC, 0xEA;
}
"""
UNPACK_BFLOAT16 = tl.constexpr(_UNPACK.replace("MAGIC", "0x43004300"))
UNPACK_FLOAT16 = tl.constexpr(_UNPACK.replace("MAGIC", "0x64006400"))
_LEAST_DIMS = 16  # of a product; shorter quarters are padded


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: outputs and tokens of a tile, parts of the inputs, warps, stages."""

    outputs: int = 64
    tokens: int = 16
    parts: int = 1
    warps: int = 4
    stages: int = 3

    def fitted(self, span: int, room: int) -> Tiles:
        """With as many stages as shared memory of `room` bytes holds."""
        stage = span * self.tokens * 2 + self.outputs * span // 2  # bytes of x and of words
        return replace(self, stages=max(1, min(self.stages, room // stage)))


@triton.jit
def _quarters(words, FAST: tl.constexpr, DTYPE: tl.constexpr):
    """The four numbers in every word; FAST adds the dtype's OFFSET to them."""
    if not FAST:
        bits = words.to(tl.int32)
        quarters = (
            (bits & 0xF).to(DTYPE),
            ((bits >> 4) & 0xF).to(DTYPE),
            ((bits >> 8) & 0xF).to(DTYPE),
            ((bits >> 12) & 0xF).to(DTYPE),
        )
    elif tl.bfloat16 == DTYPE:
        quarters = tl.inline_asm_elementwise(
            UNPACK_BFLOAT16,
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        quarters = tl.inline_asm_elementwise(
            UNPACK_FLOAT16,
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return quarters


@triton.jit(do_not_specialize=("T",))
def _w4a16_product(
    x,
    packed,  # [N, K / 4] int16
    scales,
    zeros,
    bias,
    out,
    partial,
    arrived,
    T,
    N,
    K,
    words_per_row,  # K / 4; of an argument the compiler sees that it is a multiple of 16
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    QUARTER: tl.constexpr,  # of a span, padded
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
    OFFSET: tl.constexpr,
    BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    take_over(OVERLAP)
    tile_n, tile_t, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tile_t * BLOCK_T + tl.arange(0, BLOCK_T)
    j = tl.arange(0, QUARTER)
    n_mask, t_mask = n < N, t < T
    word_mask, x_mask = n_mask[:, None], t_mask[None, :]
    if QUARTER * 4 > SPAN:
        word_mask &= (j < SPAN // 4)[None, :]
        x_mask &= (j < SPAN // 4)[:, None]
    spans = K // SPAN
    share = tl.cdiv(spans, PARTS)
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    for span in range(part * share, tl.minimum(part * share + share, spans)):
        at = packed + n[:, None] * words_per_row + span * (SPAN // 4) + j[None, :]
        quarters = _quarters(tl.load(at, mask=word_mask, other=0), FAST, DTYPE)
        at = x + t[None, :] * K + span * SPAN + j[:, None]
        for i in tl.static_range(4):
            if i * SPAN // 4 % GROUP == 0:  # a group begins
                group = (span * SPAN + i * (SPAN // 4)) // GROUP
                zero = tl.load(zeros + group * N + n, mask=n_mask, other=0).to(tl.float32) + OFFSET
                scale = tl.load(scales + group * N + n, mask=n_mask, other=0.0).to(tl.float32)
                dot = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
            x_i = tl.load(at + i * (SPAN // 4), mask=x_mask, other=0.0).to(DTYPE)
            dot = tl.dot(quarters[i] - zero.to(DTYPE)[:, None], x_i, dot, input_precision="ieee")
            if (i + 1) * SPAN // 4 % GROUP == 0:
                acc += scale[:, None] * dot
    where = t[None, :] * N + n[:, None]
    mask = n_mask[:, None] & t_mask[None, :]
    last = True
    if PARTS > 1:
        counter = arrived + tile_t * tl.num_programs(0) + tile_n
        acc, last = add_up(acc, partial, where, mask, T * N, counter, part, PARTS)
    if last:
        if BIAS:
            acc += tl.load(bias + n, mask=n_mask, other=0.0).to(tl.float32)[:, None]
        tl.store(out + where, acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _w4a16_unpack(
    packed,
    scales,
    zeros,
    out,
    N,
    K,
    GROUP: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    take_over(OVERLAP)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    span = tl.program_id(1)
    j = tl.arange(0, SPAN // 4)
    n_mask = n < N
    mask = n_mask[:, None] & (j < SPAN // 4)[None, :]
    words = tl.load(packed + n[:, None] * (K // 4) + span * (SPAN // 4) + j[None, :], mask=mask)
    quarters = _quarters(words, False, tl.float32)
    at = out + n[:, None].to(tl.int64) * K + span * SPAN + j[None, :]
    for i in tl.static_range(4):
        group = (span * SPAN + i * (SPAN // 4)) // GROUP
        scale = tl.load(scales + group * N + n, mask=n_mask, other=0.0).to(tl.float32)[:, None]
        zero = tl.load(zeros + group * N + n, mask=n_mask, other=0).to(tl.float32)[:, None]
        weight = (quarters[i] - zero) * scale
        tl.store(at + i * (SPAN // 4), weight.to(out.dtype.element_ty), mask=mask)


def choose_tiles(tokens: int, outputs: int, spans: int, device: torch.device) -> Tiles:
    """Tiles that fill the processors a few times over; inputs are cut into parts for few tokens only."""
    wide = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    tiles = triton.cdiv(outputs, 64) * triton.cdiv(tokens, wide)
    wanted = 5 * kernels.num_processors(device)  # as tuned on an H200, with four tokens
    parts = 1
    while parts < 16 and tiles * parts * 2 <= wanted and spans // (parts * 2) >= 4:
        parts *= 2
    return Tiles(tokens=wide, parts=parts if tokens <= 64 else 1)


def product(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    group: int,
    span: int,
    arrived: Tensor,
    tiles: Tiles | None = None,
    *,
    fast: bool = True,
) -> Tensor:
    """X [T, K], packed int16 [N, K / 4], scales and zeros [K / group, N], bias [N] -> [T, N].

    `arrived` are integers of 0, as many as there are tiles or more; they are 0 again afterwards.
    `fast` unpacks with instructions of the GPU, which Triton's interpreter does not have.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    tiles = tiles or choose_tiles(tokens, outputs, inputs // span, x.device)
    tiles = tiles.fitted(span, shared_memory(x.device))
    grid = (triton.cdiv(outputs, tiles.outputs), triton.cdiv(tokens, tiles.tokens), tiles.parts)
    in_parts = tiles.parts > 1
    shape = (tiles.parts, tokens, outputs) if in_parts else (1,)
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    dtype, offset = {
        torch.bfloat16: (tl.bfloat16, 128.0),
        torch.float16: (tl.float16, 1024.0),
    }.get(x.dtype if fast else torch.float32, (tl.float32, 0.0))
    kernel: Any = _w4a16_product
    kernel[grid](
        *(x, packed, scales, zeros, x if bias is None else bias, out, partial, arrived),
        *(tokens, outputs, inputs, inputs // 4),
        GROUP=group,
        SPAN=span,
        QUARTER=max(_LEAST_DIMS, span // 4),
        BLOCK_N=tiles.outputs,
        BLOCK_T=tiles.tokens,
        PARTS=tiles.parts,
        FAST=fast and dtype != tl.float32,
        OFFSET=offset,
        BIAS=bias is not None,
        DTYPE=dtype,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **launch_options(x.device),
    )
    return out


def dequantise(
    packed: Tensor, scales: Tensor, zeros: Tensor, group: int, span: int, dtype: torch.dtype
) -> Tensor:
    """The weight [N, K] as ordinary numbers of `dtype`."""
    outputs, inputs = packed.shape[0], packed.shape[1] * 4
    out = torch.empty((outputs, inputs), dtype=dtype, device=packed.device)
    kernel: Any = _w4a16_unpack
    kernel[(triton.cdiv(outputs, 32), inputs // span)](
        *(packed, scales, zeros, out),
        *(outputs, inputs),
        GROUP=group,
        SPAN=span,
        BLOCK_N=32,
        **launch_options(packed.device),
    )
    return out

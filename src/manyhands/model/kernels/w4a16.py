"""Products with weights of four bits: x [T, K] times w [N, K] transposed, w = (q - zero) * scale.

Weights are the *left* operand of the tensor cores, so that a handful of tokens fills the narrow side
of a tile instead of leaving the wide one empty, and unpacked weights go from registers into the
product. They are packed in spans of one group of inputs: byte j of a span holds its input j in the
low half and input j + GROUP / 2 in the high half, so both halves meet contiguous pieces of x.

Inside the product a weight is an exact small integer, q - zero, and the scale comes in once per group:

    sum_k (q_k - zero) scale x_k  =  scale sum_k ((q_k + OFFSET) - (zero + OFFSET)) x_k

OFFSET is what makes unpacking cheap: a byte 0x43 put above four bits is the bfloat16 number 128 + q (a
byte 0x64 the float16 number 1024 + q), exactly, and so is the difference of two of them.

Where few tiles of outputs would leave processors idle, the inputs are split; the last program to arrive
adds up all parts, in their order, so that results repeat.

    T  tokens      N  outputs      K  inputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.model import kernels
from manyhands.model.kernels.split import add_up

_UNPACK = """
{
.reg .b32 low, high;
and.b32 low, $4, 0x0F0F0F0F;
shr.u32 high, $4, 4;
and.b32 high, high, 0x0F0F0F0F;
prmt.b32 $0, low, MAGIC, 0x4140;
prmt.b32 $1, low, MAGIC, 0x4342;
prmt.b32 $2, high, MAGIC, 0x4140;
prmt.b32 $3, high, MAGIC, 0x4342;
}
"""
UNPACK_BFLOAT16 = tl.constexpr(_UNPACK.replace("MAGIC", "0x43434343"))
UNPACK_FLOAT16 = tl.constexpr(_UNPACK.replace("MAGIC", "0x64646464"))


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: outputs and tokens of a tile, parts of the inputs, warps, stages."""

    outputs: int = 64
    tokens: int = 16
    parts: int = 1
    warps: int = 4
    stages: int = 4


@triton.jit
def _halves(packed, FAST: tl.constexpr, DTYPE: tl.constexpr):
    """The numbers in the low and the high halves of bytes; FAST adds the dtype's OFFSET to them."""
    if not FAST:
        low = (packed & 0xF).to(DTYPE)
        high = (packed >> 4).to(DTYPE)
    elif tl.bfloat16 == DTYPE:
        low, high = tl.inline_asm_elementwise(
            UNPACK_BFLOAT16,
            "=r,=r,=r,=r,r",
            [packed],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        low, high = tl.inline_asm_elementwise(
            UNPACK_FLOAT16,
            "=r,=r,=r,=r,r",
            [packed],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    return low, high


@triton.jit
def _w4a16_product(
    x,
    packed,
    scales,
    zeros,
    bias,
    out,
    partial,
    arrived,
    T,
    N,
    K,
    GROUP: tl.constexpr,
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
    j = tl.arange(0, GROUP // 2)
    n_mask, t_mask = n < N, t < T
    groups = K // GROUP
    share = tl.cdiv(groups, PARTS)
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    for group in range(part * share, tl.minimum(part * share + share, groups)):
        at = packed + n[:, None] * (K // 2) + group * (GROUP // 2) + j[None, :]
        low, high = _halves(tl.load(at, mask=n_mask[:, None], other=0), FAST, DTYPE)
        zero = tl.load(zeros + group * N + n, mask=n_mask, other=0).to(tl.float32) + OFFSET
        low, high = low - zero.to(DTYPE)[:, None], high - zero.to(DTYPE)[:, None]
        at = x + t[None, :] * K + group * GROUP + j[:, None]
        x_low = tl.load(at, mask=t_mask[None, :], other=0.0)
        x_high = tl.load(at + GROUP // 2, mask=t_mask[None, :], other=0.0)
        dot = tl.dot(low, x_low.to(DTYPE), input_precision="ieee")
        dot = tl.dot(high, x_high.to(DTYPE), dot, input_precision="ieee")
        scale = tl.load(scales + group * N + n, mask=n_mask, other=0.0).to(tl.float32)
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
    BLOCK_N: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    take_over(OVERLAP)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = tl.program_id(1)
    j = tl.arange(0, GROUP // 2)
    mask = (n < N)[:, None] & (j < GROUP // 2)[None, :]
    byte = tl.load(packed + n[:, None] * (K // 2) + group * (GROUP // 2) + j[None, :], mask=mask)
    scale = tl.load(scales + group * N + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    zero = tl.load(zeros + group * N + n, mask=n < N, other=0).to(tl.float32)[:, None]
    at = out + n[:, None].to(tl.int64) * K + group * GROUP + j[None, :]
    low = ((byte & 0xF).to(tl.float32) - zero) * scale
    high = ((byte >> 4).to(tl.float32) - zero) * scale
    tl.store(at, low.to(out.dtype.element_ty), mask=mask)
    tl.store(at + GROUP // 2, high.to(out.dtype.element_ty), mask=mask)


def choose_tiles(tokens: int, outputs: int, groups: int, device: torch.device) -> Tiles:
    """Tiles that fill the processors a few times over; inputs are split for few tokens only."""
    wide = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    tiles = triton.cdiv(outputs, 64) * triton.cdiv(tokens, wide)
    wanted = 4 * kernels.num_processors(device)
    parts = 1
    while parts < 16 and tiles * parts * 2 <= wanted and groups // (parts * 2) >= 4:
        parts *= 2
    return Tiles(tokens=wide, parts=parts if tokens <= 64 else 1)


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
    fast: bool = True,
) -> Tensor:
    """X [T, K], packed [N, K / 2] bytes, scales and zeros [K / group, N], bias [N] -> [T, N].

    `arrived` are integers of 0, as many as there are tiles or more; they are 0 again afterwards.
    `fast` unpacks with instructions of the GPU, which Triton's interpreter does not have.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = packed.shape[0]
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    tiles = tiles or choose_tiles(tokens, outputs, inputs // group, x.device)
    grid = (triton.cdiv(outputs, tiles.outputs), triton.cdiv(tokens, tiles.tokens), tiles.parts)
    split = tiles.parts > 1
    shape = (tiles.parts, tokens, outputs) if split else (1,)
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    dtype, offset = {
        torch.bfloat16: (tl.bfloat16, 128.0),
        torch.float16: (tl.float16, 1024.0),
    }.get(x.dtype if fast else torch.float32, (tl.float32, 0.0))
    kernel: Any = _w4a16_product
    kernel[grid](
        *(x, packed, scales, zeros, x if bias is None else bias, out, partial, arrived),
        *(tokens, outputs, inputs),
        GROUP=group,
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
    packed: Tensor, scales: Tensor, zeros: Tensor, group: int, dtype: torch.dtype
) -> Tensor:
    """The weight [N, K] as ordinary numbers of `dtype`."""
    outputs, inputs = packed.shape[0], packed.shape[1] * 2
    out = torch.empty((outputs, inputs), dtype=dtype, device=packed.device)
    kernel: Any = _w4a16_unpack
    kernel[(triton.cdiv(outputs, 32), inputs // group)](
        *(packed, scales, zeros, out),
        *(outputs, inputs),
        GROUP=group,
        BLOCK_N=32,
        **launch_options(packed.device),
    )
    return out

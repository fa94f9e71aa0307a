"""The share of a product that a thread of a warp holds: words of two numbers each, as tensor cores want them from it.

A product of 16 outputs by 16 inputs by 8 tokens is one statement of assembly for a warp, and fixes which of its numbers each
of 32 threads holds. All operands are tensors [threads, 4], of which Triton gives every thread a row:

    words of weights    (c, h), two numbers e each      output 8 h + g        input 8 c + 2 t + e
    words of x          (j, c), two numbers e each      token g               input 16 j + 8 c + 2 t + e
    sums                (h, e)                          output 8 h + g        token 2 t + e

with g = lane // 4 and t = lane % 4. Which output or input a place stands for is free, as long as both sides agree. The
interpreter knows no assembly: each statement has a twin beside it that does the same with whole tensors.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"
# Nor can it unpack a tuple into another one, so tuples are added.
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl


def _product_assembly(kind: str) -> str:
    """Sums of 16 outputs and 8 tokens, and weights and x of 32 inputs in two halves -> sums."""
    product = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32"
    return f"""
{product} {{$0, $1, $2, $3}}, {{$8, $9, $10, $11}}, {{$16, $17}}, {{$4, $5, $6, $7}};
{product} {{$0, $1, $2, $3}}, {{$12, $13, $14, $15}}, {{$18, $19}}, {{$0, $1, $2, $3}};
"""


_PRODUCT_BFLOAT16 = tl.constexpr(_product_assembly("bf16"))
_PRODUCT_FLOAT16 = tl.constexpr(_product_assembly("f16"))
_PRODUCT_OPERANDS = tl.constexpr(",".join(["=f"] * 4 + ["f"] * 4 + ["r"] * 12))


@triton.jit
def two(low, high, DTYPE: tl.constexpr):
    """Two small whole numbers in a word, as numbers of DTYPE."""
    if tl.bfloat16 == DTYPE:  # the upper half of a float32
        below = (low.to(tl.float32).to(tl.int32, bitcast=True) >> 16) & 0xFFFF
        above = high.to(tl.float32).to(tl.int32, bitcast=True) & -0x10000
    else:
        below = low.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        above = high.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return below | above


@triton.jit
def halves(words, DTYPE: tl.constexpr):
    """The numbers of DTYPE in the lower and in the upper half of words."""
    if tl.bfloat16 == DTYPE:
        low = (words << 16).to(tl.float32, bitcast=True)
        high = (words & -0x10000).to(tl.float32, bitcast=True)
    else:
        low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def column(words, at):
    """One of the four columns of words [threads, 4]: [threads, 1]."""
    return tl.sum(tl.where(tl.arange(0, 4)[None, :] == at, words, 0), axis=1)[:, None]


@triton.jit
def multiplied(sums, first, second, x, FAST: tl.constexpr, DTYPE: tl.constexpr):
    """Sums (h, e) of 16 outputs and 8 tokens, and the product of weights (c, h) of both j with x (j, c)."""
    if not FAST:
        sums += _multiplied_twin(first, second, x, DTYPE)
    else:
        sums = tl.inline_asm_elementwise(
            _PRODUCT_BFLOAT16 if tl.bfloat16 == DTYPE else _PRODUCT_FLOAT16,
            _PRODUCT_OPERANDS,
            [sums, first, second, x],
            dtype=tl.float32,
            is_pure=True,
            pack=4,
        )
    return sums


@triton.jit
def _multiplied_twin(first, second, x, DTYPE: tl.constexpr):
    WARPS: tl.constexpr = first.shape[0] // 32
    low, high = halves(tl.join(first, second), DTYPE)
    weights = tl.reshape(tl.join(low, high), (WARPS, 8, 4, 2, 2, 2, 2))  # warp, g t, c h, j, e
    weights = tl.reshape(tl.permute(weights, (0, 4, 1, 5, 3, 2, 6)), (WARPS, 16, 32))
    low, high = halves(x, DTYPE)
    inputs = tl.reshape(tl.join(low, high), (WARPS, 8, 4, 2, 2, 2))  # warp, token t, j c, e
    inputs = tl.reshape(tl.permute(inputs, (0, 3, 4, 2, 5, 1)), (WARPS, 32, 8))
    product = tl.sum(weights[:, :, :, None] * inputs[:, None, :, :], axis=2)
    product = tl.reshape(product, (WARPS, 2, 8, 4, 2))  # warp, h g, t e
    return tl.reshape(tl.permute(product, (0, 2, 3, 1, 4)), (WARPS * 32, 4))


@triton.jit
def hold(HOLD: tl.constexpr):
    """Loads in front of this are begun in front of it: the assembler moves none of them behind."""
    if HOLD:
        tl.inline_asm_elementwise(
            "bar.warp.sync 0xffffffff; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def no_sums(SUMS: tl.constexpr, THREADS: tl.constexpr):
    """So many sums of nothing."""
    sums = ()
    for _ in tl.static_range(SUMS):
        sums = sums + (tl.zeros((THREADS, 4), dtype=tl.float32),)
    return sums

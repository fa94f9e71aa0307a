"""Numbers to integers of eight bits with one scale, as `attention/eight_bits.py` rounds them, and back.

Back is what reading costs. Matrix units want 16-bit numbers, and shared memory turns 16-bit numbers over to
them, not bytes: values would be picked up byte by byte. So two neighbours of memory travel as one word of 16 bits, and are
parted in registers: one product with the even dims, and one with the odd ones.

They are parted by arithmetic. An integer is put into the mantissa of a number whose exponent fits, for two at a time, and what
that adds is taken away again: exact, and at most four instructions for two numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def largest(x, AXIS: tl.constexpr):
    """The largest magnitude of x in float32 along an axis, or one that is no number if x has such.

    As integers, bits of magnitudes have their order, and those of a number that is none come behind all others. A maximum of numbers
    would leave it out.
    """
    magnitudes = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(magnitudes, AXIS).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x):
    """Integers, still in float32 [n, D], and scales [n] of the rows of x [n, D]; of a row with a number that is none, such a scale."""
    scale = largest(x, 1) / 127.0
    integers = tl.floor(x / tl.maximum(scale, 1.1754944e-38)[:, None] + 0.5)
    return tl.minimum(tl.maximum(integers, -127.0), 127.0), scale


# Of two words, in one register: their low bytes and their high bytes x as pairs of numbers. In a bfloat16 whose exponent counts
# from 128 on, the low seven bits of x add themselves, and the sign alone makes it 256. The one less the other is x.
_BFLOAT16 = tl.constexpr("""{
    .reg .b32 bits, signs, high, one;
    mov.b32 one, 0x3f803f80;
    shr.u32 high, $2, 8;
    lop3.b32 bits, $2, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, $2, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 $0, bits, one, signs;
    lop3.b32 bits, high, 0x007f007f, 0x43004300, 0x6a;
    lop3.b32 signs, high, 0x00800080, 0xc300c300, 0x6a;
    fma.rn.bf16x2 $1, bits, one, signs;
}""")
# A float16 has bits enough for x + 128 behind 1024.
_FLOAT16 = tl.constexpr("""{
    .reg .b32 bits, high, bias;
    mov.b32 bias, 0x64806480;
    shr.u32 high, $2, 8;
    lop3.b32 bits, $2, 0x00ff00ff, 0x64806480, 0x6a;
    sub.rn.f16x2 $0, bits, bias;
    lop3.b32 bits, high, 0x00ff00ff, 0x64806480, 0x6a;
    sub.rn.f16x2 $1, bits, bias;
}""")


@triton.jit
def parted(words, DTYPE: tl.constexpr):
    """Even and odd dims of int16 words [n, D / 2], as numbers of the dtype that products are made in."""
    if tl.bfloat16 == DTYPE:
        return tl.inline_asm_elementwise(
            _BFLOAT16, "=r,=r,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    elif tl.float16 == DTYPE:
        return tl.inline_asm_elementwise(
            _FLOAT16, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    else:
        even = (words << 8).to(tl.int16) >> 8
        return even.to(DTYPE), (words >> 8).to(DTYPE)

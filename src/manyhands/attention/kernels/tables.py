"""Cosines and sines of offsets: once per pass, for all kernels that rotate."""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.overlap import take_over


@triton.jit(do_not_specialize=["N", "F"])
def tables_kernel(
    offsets,  # [N] int32
    frequencies,  # [F] float32; pairs of dims from there on are not rotated
    cos,  # [N, HALF] float32
    sin,
    N,
    F,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of two, not below HALF
    ROWS: tl.constexpr,  # offsets of a program
    OVERLAP: tl.constexpr,
):
    """Every program makes ROWS rows."""
    take_over(OVERLAP)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, WIDTH)
    offset = tl.load(offsets + row, mask=row < N, other=0).to(tl.float32)
    frequency = tl.load(frequencies + pair, mask=pair < F, other=0.0)
    radians = offset[:, None] * frequency[None, :]
    at = row[:, None] * HALF + pair[None, :]
    is_there = (row < N)[:, None] & (pair < HALF)[None, :]
    tl.store(cos + at, tl.cos(radians), mask=is_there)
    tl.store(sin + at, tl.sin(radians), mask=is_there)

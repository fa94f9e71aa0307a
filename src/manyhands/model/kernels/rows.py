"""Activations to float8, one scale per token, in one launch.

A token's largest value is mapped to 448, the largest number of e4m3. A token with a number that is none has no other ones
either, nor has its scale: bounds leave it what it is.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.eight_bits import largest
from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.work import power_of_two


@triton.jit
def _quantise(x, out, scales, N, TOP: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    ALL: tl.constexpr = tl.PropagateNan.ALL
    scale = tl.maximum(largest(v, 0), 1e-12, propagate_nan=ALL) / TOP
    v = tl.maximum(v / scale, -TOP, propagate_nan=ALL)
    v = tl.minimum(v, TOP, propagate_nan=ALL)
    tl.store(out + row * N + n, v.to(out.dtype.element_ty), mask=n < N)
    tl.store(scales + row, scale)


def quantise_rows(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Values [T, N] in float8 (e4m3) and scales [T, 1] in float32 whose product is x [T, N].

    Triton's interpreter rounds to float8 wrongly; there the values can be looked at in float32.
    """
    x = x.contiguous()
    rows, width = x.shape
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = power_of_two(width)
    if rows:
        kernel: Any = _quantise
        kernel[(rows,)](
            x,
            values,
            scales,
            width,
            TOP=448.0,
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
            **launch_options(x.device),
        )
    return values, scales

"""The dims of heads, mixed by a Hadamard matrix as `attention/eight_bits.py` does it: the same sums in the same order.

n  heads      D  head dim, a power of two
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mixed(x, DIM: tl.constexpr, STAGES: tl.constexpr):
    """X float32 [n, DIM] in the order of memory, mixed; DIM is two to the power of STAGES."""
    for _ in tl.static_range(STAGES):
        first, second = tl.split(tl.reshape(x, (x.shape[0], DIM // 2, 2)))
        both = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(both, (0, 2, 1)), (x.shape[0], DIM))
    FACTOR: tl.constexpr = DIM**-0.5
    return x * FACTOR

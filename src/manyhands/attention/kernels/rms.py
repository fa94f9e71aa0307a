"""RMS norms inside kernels: sums in float32, values rounded exactly where the families' code does it.

Families differ in one thing, the FORM: when the normed value is rounded, and whether 1 is added to the weight.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def weighed(v, w, mean_square, eps, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """The norm of numbers `v` whose mean square is known; `w` are their weights. All float32.

    The result is float32, holding values of DTYPE.
    """
    v = v * tl.rsqrt(mean_square + eps)
    if FORM == 0:  # round, then weigh
        v = w * v.to(DTYPE).to(tl.float32)
    elif FORM == 1:  # weigh, then round
        v = w * v
    else:
        v = v * (1.0 + w)
    return v.to(DTYPE).to(tl.float32)


@triton.jit
def rms(v, w, N, eps, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """The norm of the last dim, which `v` and `w` hold N numbers of, and 0 beyond."""
    return weighed(v, w, tl.sum(v * v, axis=-1, keep_dims=True) / N, eps, FORM, DTYPE)

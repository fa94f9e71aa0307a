"""Tokens that the pass in front chooses, put among those of the next one: one launch.

The host has not seen them yet, and has written which row chooses each: row r as -1 - r (`engine/passes.py::Late`,
where the twin is).
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.work import cdiv

_TILE = 1024  # tokens of a program


@triton.jit(do_not_specialize=["T"])
def _fill(token_ids, chosen, T, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    token = tl.load(token_ids + at, mask=at < T, other=0)
    found = tl.load(chosen - 1 - token.to(tl.int64), mask=token < 0, other=0)
    tl.store(token_ids + at, found.to(token_ids.dtype.element_ty), mask=token < 0)


def fill(token_ids: Tensor, chosen: Tensor) -> None:
    """Put the tokens of `chosen` [R] int64 in the places of `token_ids` [T] int32 that are marked with their rows."""
    kernel: Any = _fill
    kernel[(cdiv(len(token_ids), _TILE),)](
        *(token_ids, chosen, len(token_ids)),
        TILE=_TILE,
        enable_fp_fusion=True,  # nothing is added here, and Triton 3.9 warns where a launch leaves it open
    )

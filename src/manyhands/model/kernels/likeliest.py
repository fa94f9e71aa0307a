"""The likeliest token of each row of logits, in two launches that begin early.

    search    programs share a row's tokens, and each leaves the best of its part
    settle    one program takes the best of all parts, row by row, and looks whether all rows are sound

What is left of a part is one number, its *key*: the bits of the score, rising as scores do, and behind them the token's id,
falling. So the largest key is the largest score's, of equals the first token's. A row is sound if its largest score
is below infinity; what is no number is larger still. The twin is `engine/sampling.py::likeliest`.

    R  rows      V  vocabulary      P  parts of a row
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.work import cdiv
from manyhands.model import kernels

_TILE = 4096  # tokens that a program looks at together
_PROGRAMS = 4  # for each processor, about
_MOST_PARTS = 32
_ROWS = 32  # that are settled together

_LEAST = tl.constexpr(-(1 << 31))  # below the bits of all scores
_MOST = tl.constexpr((1 << 31) - 1)
_INFINITE = tl.constexpr(0x7F800000)
_LAST = tl.constexpr((1 << 32) - 1)


@triton.jit
def _rising(scores):
    """The bits of scores as int32 that rise with them; one for both zeros, the largest for what is no number."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    rising = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(scores != scores, _MOST, rising)


@triton.jit
def _search(logits, keys, V, stride, TILE: tl.constexpr, OVERLAP: tl.constexpr):
    """Program (row, part): every P-th tile of the row, from tile `part` on."""
    take_over(OVERLAP)
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    inside = part * TILE + tl.arange(0, TILE)
    best = tl.full([TILE], float("-inf"), tl.float32)
    token = inside
    for first in range(0, V, parts * TILE):
        here = first + inside
        at = logits + row * stride + here
        scores = tl.load(at, mask=here < V, other=float("-inf")).to(tl.float32)
        is_better = (scores > best) | (
            scores != scores
        )  # no number is better than one that is none
        best = tl.where(is_better, scores, best)
        token = tl.where(is_better, here, token)
    rising = tl.where(inside < V, _rising(best), _LEAST)
    highest = tl.max(rising, axis=0)
    first_token = tl.min(tl.where(rising == highest, token, _MOST), axis=0)
    key = (highest.to(tl.int64) << 32) | (~first_token.to(tl.int64) & _LAST)
    tl.store(keys + row * parts + part, key)


@triton.jit(do_not_specialize=["R", "P"])
def _settle(keys, out, R, P, ROWS: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr):
    """All rows, ROWS at a time."""
    take_over(OVERLAP)
    part = tl.arange(0, PARTS)[None, :]
    num_unsound = 0
    for first in range(0, R, ROWS):
        row = first + tl.arange(0, ROWS)
        is_key = (row < R)[:, None] & (part < P)
        found = tl.load(keys + row[:, None] * P + part, mask=is_key, other=_LEAST << 32)
        key = tl.max(found, axis=1)
        tl.store(out + 1 + row, ~key & _LAST, mask=row < R)
        num_unsound += tl.sum(((key >> 32) >= _INFINITE).to(tl.int32), axis=0)
    tl.store(out, tl.where(num_unsound == 0, 1, 0))


def likeliest(logits: Tensor) -> Tensor:
    """1 if all rows of logits [R, V] are sound, else 0; behind it the likeliest token of each, the first of equals: int64 [R + 1].

    Of logits in bfloat16, float16 or float32, whose vocabulary stands in one piece.
    """
    count, size = logits.shape
    assert size < 1 << 31, "a token's id has 32 bits"
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    most = _PROGRAMS * kernels.num_processors(logits.device)
    parts = max(1, min(cdiv(size, _TILE), most // max(1, count), _MOST_PARTS))
    keys = torch.empty(count, parts, dtype=torch.int64, device=logits.device)
    out = torch.empty(1 + count, dtype=torch.int64, device=logits.device)
    launches: tuple[Any, ...] = (_search, _settle)
    search, settle = launches
    options = launch_options(logits.device)
    if count:
        search[(count, parts)](logits, keys, size, logits.stride(0), TILE=_TILE, **options)
    settle[(1,)](keys, out, count, parts, ROWS=_ROWS, PARTS=_MOST_PARTS, **options)
    return out

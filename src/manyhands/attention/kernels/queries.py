"""Queries for keys in eight bits, rotated, mixed and scaled, in front of the launches that attend: one launch a layer.

Keys in eight bits are mixed (`attention/eight_bits.py`), so queries are, too, and a query is rotated anew for every strip that it
reads. Tiles would each mix them once more: with four workers a tile of keys is read by thirty programs. So a query
stands here once for each entry (`kernels/strips.py`), and tiles take it as it is.

E  entries      H  query heads      D  head dim
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.mixing import mixed
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import columns, rotated


@triton.jit
def queries_kernel(
    q,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,  # [E]
    out,  # [E, H, D]
    q_token,
    q_head,
    scaling,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,  # heads of one program
    HALF: tl.constexpr,
    MIXINGS: tl.constexpr,  # stages of mixing; 0: dims are not mixed
    OVERLAP: tl.constexpr,
):
    """Program (entry, block of heads)."""
    entry = tl.program_id(0)
    token = tl.load(entry_token + entry).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    is_head = head < NUM_HEADS
    take_over(OVERLAP)
    source = q + token * q_token + head * q_head
    table_at = entry.to(tl.int64) * (HEAD_DIM // 2)
    query = rotated(
        *(source, is_head, cos + table_at, sin + table_at),
        *(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF),
    )
    if MIXINGS:
        query = mixed(query, HEAD_DIM, MIXINGS)
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)[None, :]
    at = out + (entry.to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + dim
    tl.store(at, (query * scaling).to(out.dtype.element_ty), mask=is_head & (dim < HEAD_DIM))

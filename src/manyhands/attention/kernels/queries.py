"""Queries for keys in eight bits: rotated, mixed and scaled once, in front of the launches that attend.

Keys in eight bits are mixed (`attention/eight_bits.py`), so queries are, too, and a query is rotated anew for every strip that it
reads. Tiles would each mix them once more: with four workers the tiles of thirty programs have the same rows. So a query
stands here once for each entry (`kernels/strips.py`), and tiles take it as it is.

The launch that appends makes them (`kernels/append.py`). Where a layer appends nothing, or its queries are scaled by their
positions in between, a launch of its own does.

E  entries      H  query heads      D  head dim
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.mixing import mixed
from manyhands.attention.kernels.overlap import take_over
from manyhands.attention.kernels.pairs import columns, loaded, turned
from manyhands.attention.kernels.rms import weighed

ENTRIES = tl.constexpr(8)  # that one program looks at


@triton.jit
def stand(
    q,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,  # [E]
    standing,  # [E, H, D]
    q_token,
    q_head,
    scaling,
    weight,  # [D], and the next: read by nothing unless NORMED
    eps,
    entry,
    head,  # [n]
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    MIXINGS: tl.constexpr,  # stages of mixing; 0: dims are not mixed
    NORMED: tl.constexpr,  # norms of heads were left to this launch
    FORM: tl.constexpr,  # of these, see rms.py
    OVERLAP: tl.constexpr,
):
    """Some heads of one entry's query."""
    token = tl.load(entry_token + entry).to(tl.int64)
    is_head = (head < NUM_HEADS)[:, None]
    if NORMED:
        one = tl.zeros([1, 1], dtype=tl.int32)
        w_x, w_y = loaded(weight + one, one == 0, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    take_over(OVERLAP)
    source = q + token * q_token + head[:, None] * q_head
    x, y = loaded(source, is_head, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    if NORMED:
        mean_square = tl.sum(x * x + y * y, axis=1, keep_dims=True) / HEAD_DIM
        x = weighed(x, w_x, mean_square, eps, FORM, q.dtype.element_ty)
        y = weighed(y, w_y, mean_square, eps, FORM, q.dtype.element_ty)
    table_at = entry.to(tl.int64) * (HEAD_DIM // 2)
    query = turned(x, y, is_head, cos + table_at, sin + table_at, HEAD_DIM, INTERLEAVED, HALF)
    if MIXINGS:
        query = mixed(query, HEAD_DIM, MIXINGS)
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)[None, :]
    at = standing + (entry.to(tl.int64) * NUM_HEADS + head[:, None]) * HEAD_DIM + dim
    query = (query * scaling).to(standing.dtype.element_ty)
    tl.store(at, query, mask=is_head & (dim < HEAD_DIM))


@triton.jit
def stand_some(
    entry_high,  # [E]; 0: padding, which does not stand
    first,
    apart,
    num_entries,
    q,
    cos,
    sin,
    entry_token,
    standing,
    q_token,
    q_head,
    scaling,
    weight,
    eps,
    head,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    MIXINGS: tl.constexpr,
    NORMED: tl.constexpr,
    FORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Some heads of every `apart`-th entry from `first` on, ENTRIES at most. All padding among them costs one look.

    A recording has room for several times as many entries as there are, and a program for each took longer than the queries.
    """
    n = tl.arange(0, ENTRIES)
    entries = first + n * apart
    highs = tl.load(entry_high + entries, mask=entries < num_entries, other=0)
    end = tl.max(tl.where(highs > 0, n + 1, 0), 0)
    for place in range(end):
        if tl.sum(tl.where(n == place, highs, 0), 0) > 0:
            stand(
                *(q, cos, sin, entry_token, standing, q_token, q_head, scaling, weight, eps),
                *(first + place * apart, head, NUM_HEADS, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF),
                *(MIXINGS, NORMED, FORM, OVERLAP),
            )


@triton.jit(do_not_specialize=["num_entries"])
def queries_kernel(
    q,
    cos,  # [E, D / 2] float32
    sin,
    entry_token,  # [E]
    entry_high,  # [E]; 0: padding, which does not stand
    standing,  # [E, H, D]
    q_token,
    q_head,
    scaling,
    num_entries,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,  # heads of one program
    HALF: tl.constexpr,
    MIXINGS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (first entry, block of heads)."""
    first, head = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    if first == 0:  # it waits, whether it has something to do or not, see overlap.py
        take_over(OVERLAP)
    stand_some(
        *(entry_high, first, tl.num_programs(0), num_entries, q, cos, sin, entry_token, standing),
        *(q_token, q_head, scaling, q, 0.0, head, NUM_HEADS, HEAD_DIM, ROTARY_DIM, INTERLEAVED),
        *(HALF, MIXINGS, False, 0, OVERLAP),
    )

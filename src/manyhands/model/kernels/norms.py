"""RMS norms, and the residual sums beside them, in one launch.

One program takes one token through everything that happens between two products of a layer:

    y      = x, or its norm                 (Gemma, GLM-4 and OLMo norm what a block gives)
    total  = residual + y
    normed = norm(total)                    (what the next block reads)

A product may come in parts, whose sum is x (ring.py). Sums are float32, and values are rounded to the
network's dtype exactly where the modelling code does it. Families differ in one thing, the FORM: when the
normed value is rounded, and whether 1 is added to the weight. `manyhands.model.layers.Norm` finds out which.

    T  tokens      N  width of the residual stream      D  head dim
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.attend import LeftNorms
from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.kernels.rms import rms
from manyhands.attention.work import cdiv, power_of_two

# Of all heads that one program norms. With a program for each head, 128 tokens of Qwen3-8B took 6.6 µs for 1.3 on an
# H100 (docs/log.md).
_NUMBERS = 2048
_FEW_ROWS = 16  # up to which products read as long as they take


@triton.jit
def _join(
    residual,
    x,
    post,
    pre,
    total,
    normed,
    N,
    stride,
    apart,  # from one part to the next
    eps_post,
    eps_pre,
    PARTS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    POST: tl.constexpr,
    PRE: tl.constexpr,
    FORM: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    mask = n < N
    if POST:
        w_post = tl.load(post + n, mask=mask, other=0.0).to(tl.float32)
    if PRE:
        w_pre = tl.load(pre + n, mask=mask, other=0.0).to(tl.float32)
    take_over(OVERLAP, EARLY=EARLY)
    DTYPE: tl.constexpr = residual.dtype.element_ty
    v = tl.load(x + row * stride + n, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        v += tl.load(x + part * apart + row * stride + n, mask=mask, other=0.0)
    if PARTS > 1:
        v = v.to(DTYPE).to(tl.float32)
    if RESIDUAL:
        beside = tl.load(residual + row * N + n, mask=mask, other=0.0).to(tl.float32)
    if POST:
        v = rms(v, w_post, N, eps_post, FORM, DTYPE)
    if RESIDUAL:
        v = (v + beside).to(DTYPE).to(tl.float32)
        tl.store(total + row * N + n, v.to(DTYPE), mask=mask)
    if PRE:
        v = rms(v, w_pre, N, eps_pre, FORM, DTYPE)
        tl.store(normed + row * N + n, v.to(DTYPE), mask=mask)


@triton.jit
def _heads(
    q,
    k,
    query,
    key,
    q_token,
    q_head,
    k_token,
    k_head,
    eps_query,
    eps_key,
    H,
    COUNT,  # H and the heads of keys
    D,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,  # of one program
    OVERLAP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    n = tl.arange(0, BLOCK)[None, :]
    is_query = head < H
    w_query = tl.load(query + n, mask=n < D, other=0.0).to(tl.float32)
    w_key = tl.load(key + n, mask=n < D, other=0.0).to(tl.float32)
    take_over(OVERLAP)
    at_query = q + token * q_token + head * q_head + n
    at_key = k + token * k_token + (head - H) * k_head + n
    at = tl.where(is_query, at_query, at_key)
    is_in = (head < COUNT) & (n < D)
    DTYPE: tl.constexpr = q.dtype.element_ty
    v = tl.load(at, mask=is_in, other=0.0).to(tl.float32)
    w, eps = tl.where(is_query, w_query, w_key), tl.where(is_query, eps_query, eps_key)
    tl.store(at, rms(v, w, D, eps, FORM, DTYPE).to(DTYPE), mask=is_in)


def join(
    residual: Tensor | None,
    x: Tensor,
    post: tuple[Tensor, float] | None,
    pre: tuple[Tensor, float] | None,
    form: int,
    *,
    is_early: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """The two results described above: residual [..., N] + y, and its norm; None if not asked for.

    x [..., N] may be a slice of wider rows, or, with a residual, parts [P, ..., N] in float32; `post` and `pre` are the
    (weight [N], eps) of the norms. `is_early`: with few rows the launch behind comes in early (`kernels/overlap.py`).
    """
    width = x.shape[-1]
    known = x if residual is None else residual
    parts = len(x) if x.dim() > known.dim() else 1
    rows = _rows(x)
    num_rows = len(rows) // parts
    total = known.new_empty(known.shape) if residual is not None else None
    normed = known.new_empty(known.shape) if pre else None
    if num_rows:
        block = power_of_two(width)
        kernel: Any = _join
        kernel[(num_rows,)](
            rows if residual is None else residual.contiguous(),
            rows,
            post[0] if post else rows,
            pre[0] if pre else rows,
            rows if total is None else total,
            rows if normed is None else normed,
            width,
            rows.stride(0),
            num_rows * rows.stride(0) if parts > 1 else 0,
            post[1] if post else 0.0,
            pre[1] if pre else 0.0,
            PARTS=parts,
            RESIDUAL=residual is not None,
            POST=post is not None,
            PRE=pre is not None,
            FORM=form,
            EARLY=is_early and num_rows <= _FEW_ROWS,
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
            **launch_options(x.device),
        )
    return total, normed


def norm_heads(q: Tensor, k: Tensor, norms: LeftNorms) -> None:
    """Norm the heads of q [T, H, D] and k [T, G, D] in place; their last dim is contiguous."""
    num_tokens, num_heads, size = q.shape
    assert q.stride(-1) == k.stride(-1) == 1, "normed in place"
    if num_tokens:
        block = power_of_two(size)
        heads = max(1, _NUMBERS // block)
        count = num_heads + k.shape[1]
        kernel: Any = _heads
        kernel[(num_tokens, cdiv(count, heads))](
            q,
            k,
            norms.query[0],
            norms.key[0],
            *q.stride()[:2],
            *k.stride()[:2],
            norms.query[1],
            norms.key[1],
            num_heads,
            count,
            size,
            FORM=norms.form,
            BLOCK=block,
            HEADS=heads,
            num_warps=8,
            **launch_options(q.device),
        )


def _rows(x: Tensor) -> Tensor:
    """X [..., N] as [T, N] whose last dim is contiguous, without a copy where possible."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()

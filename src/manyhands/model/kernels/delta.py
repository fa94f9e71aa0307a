"""One token of each row through a layer that keeps a state: the gated delta rule (arXiv 2412.06464, section 3.1), in two launches.

    convolve    the short convolution over a row's last inputs and its new one, and an activation
    step        the rule itself, and the norm with its gate behind it

Both read a row's state from one slot and leave the new one in another (`model/recurrent.py`), so a state is read once and written once.
Launch by launch of torch nine go over it: it is copied out of its slot, changed and summed up by one after the other, and copied back.

A program of `step` has one head of one row, with the whole matrix in registers. Numbers are rounded where the modelling code rounds
them: behind the convolution, behind the rule and in the midst of the norm.

    T  rows, one token each      C  channels of the convolution: q, k and v of all heads      K  its taps      S  slots
    Hk, H  heads of keys, and of values and states      Dk, Dv  dims of a key and of a value
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
from manyhands.attention.work import cdiv, power_of_two

_BLOCK = 512  # channels of a program
_WARPS_OF = 2048  # numbers of a state, for each warp: 64 in a thread's registers


@triton.jit
def _convolve(
    x, weight, inputs, sources, targets, out,
    C, TAPS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < C
    DTYPE: tl.constexpr = out.dtype.element_ty
    PAST: tl.constexpr = TAPS - 1
    source = inputs + tl.load(sources + row) * C * PAST + at * PAST
    target = inputs + tl.load(targets + row) * C * PAST + at * PAST
    new = tl.load(x + row * C + at, mask=mask, other=0.0)
    total = new.to(tl.float32) * tl.load(weight + at * TAPS + PAST, mask=mask, other=0.0).to(
        tl.float32
    )
    for tap in tl.static_range(PAST):
        old = tl.load(source + tap, mask=mask, other=0.0)
        total += old.to(tl.float32) * tl.load(weight + at * TAPS + tap, mask=mask, other=0.0).to(
            tl.float32
        )
        if tap > 0:
            tl.store(target + tap - 1, old, mask=mask)
    tl.store(target + PAST - 1, new, mask=mask)
    total = total.to(DTYPE).to(tl.float32)
    tl.store(out + row * C + at, (total * tl.sigmoid(total)).to(DTYPE), mask=mask)


@triton.jit
def _delta_step(
    qkv, gate, a, b, decay, bias, weight, states, sources, targets, out,
    eps, scale,
    C, H: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    DTYPE: tl.constexpr = out.dtype.element_ty
    KEYS: tl.constexpr = (H // GROUP) * DK
    of_k = tl.arange(0, WIDTH_K)
    of_v = tl.arange(0, WIDTH_V)
    has_k = of_k < DK
    has_v = of_v < DV
    own = qkv + row * C
    q = tl.load(own + (head // GROUP) * DK + of_k, mask=has_k, other=0.0).to(tl.float32)
    k = tl.load(own + KEYS + (head // GROUP) * DK + of_k, mask=has_k, other=0.0).to(tl.float32)
    v = tl.load(own + 2 * KEYS + head * DV + of_v, mask=has_v, other=0.0).to(tl.float32)
    q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * scale
    k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
    into = tl.load(a + row * H + head).to(tl.float32) + tl.load(bias + head).to(tl.float32)
    # A softplus. Where little is forgotten, 1 + e would round off most of it, and so for every token anew.
    e = tl.exp(tl.where(into > 20.0, 20.0, into))
    series = e * (1.0 - e * (0.5 - e / 3.0))
    into = tl.where(into > 20.0, into, tl.where(e < 0.01, series, tl.log(1.0 + e)))
    kept = tl.exp(-tl.exp(tl.load(decay + head).to(tl.float32)) * into)
    beta = tl.sigmoid(tl.load(b + row * H + head).to(tl.float32)).to(DTYPE).to(tl.float32)

    at = head * DK * DV + of_k[:, None] * DV + of_v[None, :]
    mask = has_k[:, None] & has_v[None, :]
    source = tl.load(sources + row) * H * DK * DV
    target = tl.load(targets + row) * H * DK * DV
    state = tl.load(states + source + at, mask=mask, other=0.0) * kept
    delta = (v - tl.sum(state * k[:, None], 0)) * beta
    state += k[:, None] * delta[None, :]
    tl.store(states + target + at, state, mask=mask)

    told = tl.sum(state * q[:, None], 0).to(DTYPE).to(tl.float32)
    told *= tl.rsqrt(tl.sum(told * told, 0) / DV + eps)
    told = told.to(DTYPE).to(tl.float32) * tl.load(weight + of_v, mask=has_v, other=0.0).to(
        tl.float32
    )
    told = told.to(DTYPE).to(tl.float32)
    z = tl.load(gate + (row * H + head) * DV + of_v, mask=has_v, other=0.0).to(tl.float32)
    tl.store(out + (row * H + head) * DV + of_v, (told * z * tl.sigmoid(z)).to(DTYPE), mask=has_v)


def convolve(x: Tensor, weight: Tensor, inputs: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """The silu of the convolution of each row's last inputs and `x` [T, C] -> [T, C], in x's dtype.

    `weight` [C, K]. `inputs` [S, C, K - 1], in x's dtype, has the last inputs in slots; `sources` and `targets` [T] int64 name them.
    """
    rows, channels = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    kernel: Any = _convolve
    kernel[(rows, cdiv(channels, _BLOCK))](
        *(x.contiguous(), weight, inputs, sources, targets, out, channels),
        TAPS=weight.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(x.device),
    )
    return out


def step(
    qkv: Tensor,
    gate: Tensor,
    a: Tensor,
    b: Tensor,
    decay: Tensor,
    bias: Tensor,
    weight: Tensor,
    states: Tensor,
    sources: Tensor,
    targets: Tensor,
    *,
    key_heads: int,
    eps: float,
) -> Tensor:
    """The rule for one token of each row, normed and gated: [T, H Dv], in qkv's dtype.

    `qkv` [T, C] is behind the convolution: queries and keys of all `key_heads`, then values. `gate` [T, H, Dv], `a` and `b` [T, H] are the
    layer's own products; `decay` (the logarithm of A) and `bias` [H] belong to a, `weight` [Dv] and `eps` to the norm. `states`
    [S, H, Dk, Dv] float32 are in slots; `sources` and `targets` [T] int64 name them.
    """
    rows, channels = qkv.shape
    _, heads, dim_k, dim_v = states.shape
    out = torch.empty(rows, heads * dim_v, dtype=qkv.dtype, device=qkv.device)
    wide_k, wide_v = power_of_two(dim_k), power_of_two(dim_v)
    kernel: Any = _delta_step
    kernel[(rows, heads)](
        *(qkv, gate.contiguous(), a.contiguous(), b.contiguous(), decay, bias, weight),
        *(states, sources, targets, out, eps, dim_k**-0.5, channels),
        H=heads,
        GROUP=heads // key_heads,
        DK=dim_k,
        DV=dim_v,
        WIDTH_K=wide_k,
        WIDTH_V=wide_v,
        num_warps=min(8, max(1, wide_k * wide_v // _WARPS_OF)),
        **launch_options(qkv.device),
    )
    return out

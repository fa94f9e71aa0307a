"""One token of each row through a layer that keeps a state: the gated delta rule (arXiv 2412.06464, section 3.1), in two launches.

    convolve    the short convolution over a row's last inputs and its new one, and an activation
    step        the rule itself, and the norm with its gate behind it

Both read a row's state from one slot and leave the new one in another (`model/recurrent.py`), so a state is read once and written once.
Launch by launch of torch nine go over it: it is copied out of its slot, changed and summed up by one after the other, and copied back.
Rows that are fed more than one token go by `delta_many.py`; beside such rows `tokens` says which token is whose.

A program of `step` has one head of one row, with the whole matrix in registers. Numbers are rounded where the modelling code rounds
them: behind the convolution, behind the rule and in the midst of the norm.

    R  rows, one token each      T  tokens of the pass: R, or more beside other rows      C  channels of the convolution: q, k and v of all heads      K  its taps      S  slots
    Hk, H  heads of keys, and of values and states      Dk, Dv  dims of a key and of a value
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.work import cdiv, power_of_two

_BLOCK = 512  # channels of a program
_WARPS_OF = 4096  # numbers of a state, for each warp: 128 in a thread's registers


@triton.jit
def _convolve(
    x, weight, inputs, sources, targets, tokens, out,
    x_token, C, TAPS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    token = row if tokens is None else tl.load(tokens + row)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < C
    DTYPE: tl.constexpr = out.dtype.element_ty
    PAST: tl.constexpr = TAPS - 1
    source = inputs + tl.load(sources + row) * C * PAST + at * PAST
    target = inputs + tl.load(targets + row) * C * PAST + at * PAST
    new = tl.load(x + token * x_token + at, mask=mask, other=0.0)
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
    tl.store(out + token * C + at, (total * tl.sigmoid(total)).to(DTYPE), mask=mask)


@triton.jit
def log_decay(a, bias, decay):
    """The logarithm of what is kept of a state, of numbers in float32: never above zero."""
    into = a + bias
    # A softplus. Where little is forgotten, 1 + e would round off most of it, and so for every token anew.
    e = tl.exp(tl.where(into > 20.0, 20.0, into))
    series = e * (1.0 - e * (0.5 - e / 3.0))
    into = tl.where(into > 20.0, into, tl.where(e < 0.01, series, tl.log(1.0 + e)))
    return -tl.exp(decay) * into


@triton.jit
def normed(told, gate, weight, eps, DV: tl.constexpr, DTYPE: tl.constexpr):
    """A head's output (its last axis), normed and gated as the layer does it. All in float32; rounded to DTYPE in between."""
    told *= tl.rsqrt(tl.sum(told * told, -1, keep_dims=True) / DV + eps)
    told = (told.to(DTYPE).to(tl.float32) * weight).to(DTYPE).to(tl.float32)
    return (told * gate * tl.sigmoid(gate)).to(DTYPE)


@triton.jit
def _delta_step(
    qkv, gate, a, b, decay, bias, weight, states, sources, targets, tokens, out,
    gate_token, a_token, b_token, eps, scale,
    C, H: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    WIDTH_K: tl.constexpr, WIDTH_V: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    token = row if tokens is None else tl.load(tokens + row)
    head = tl.program_id(1)
    DTYPE: tl.constexpr = out.dtype.element_ty
    KEYS: tl.constexpr = (H // GROUP) * DK
    of_k = tl.arange(0, WIDTH_K)
    of_v = tl.arange(0, WIDTH_V)
    has_k = of_k < DK
    has_v = of_v < DV
    # The state is most of what is read, so it is asked for first.
    at = head * DK * DV + of_k[:, None] * DV + of_v[None, :]
    mask = has_k[:, None] & has_v[None, :]
    source = tl.load(sources + row) * H * DK * DV
    target = states + tl.load(targets + row) * H * DK * DV + at
    state = tl.load(states + source + at, mask=mask, other=0.0)
    own = qkv + token * C
    q = tl.load(own + (head // GROUP) * DK + of_k, mask=has_k, other=0.0).to(tl.float32)
    k = tl.load(own + KEYS + (head // GROUP) * DK + of_k, mask=has_k, other=0.0).to(tl.float32)
    v = tl.load(own + 2 * KEYS + head * DV + of_v, mask=has_v, other=0.0).to(tl.float32)
    q *= tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * scale
    k *= tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
    into = tl.load(a + token * a_token + head).to(tl.float32)
    rate = tl.load(decay + head).to(tl.float32)
    kept = tl.exp(log_decay(into, tl.load(bias + head).to(tl.float32), rate))
    beta = tl.sigmoid(tl.load(b + token * b_token + head).to(tl.float32)).to(DTYPE).to(tl.float32)

    state *= kept
    delta = (v - tl.sum(state * k[:, None], 0)) * beta
    state += k[:, None] * delta[None, :]
    tl.store(target, state, mask=mask)

    told = tl.sum(state * q[:, None], 0).to(DTYPE).to(tl.float32)
    scaled = tl.load(weight + of_v, mask=has_v, other=0.0).to(tl.float32)
    z = tl.load(gate + token * gate_token + head * DV + of_v, mask=has_v, other=0.0).to(tl.float32)
    tl.store(
        out + (token * H + head) * DV + of_v, normed(told, z, scaled, eps, DV, DTYPE), mask=has_v
    )


def convolve(
    x: Tensor,
    weight: Tensor,
    inputs: Tensor,
    sources: Tensor,
    targets: Tensor,
    out: Tensor,
    tokens: Tensor | None = None,
) -> None:
    """The silu of the convolution of each row's last inputs and its token of `x` [T, C], into `out` [T, C], both of one dtype.

    `weight` [C, K]. `inputs` [S, C, K - 1], in x's dtype, has the last inputs in slots; `sources` and `targets` [R] int64 name them.
    Tokens of `x` may stand apart from each other, all else is contiguous.
    `tokens` [R] int64 are those of the rows; None: row t has token t.
    """
    channels = x.shape[1]
    kernel: Any = _convolve
    kernel[(len(sources), cdiv(channels, _BLOCK))](
        *(x, weight, inputs, sources, targets, tokens, out, x.stride(0), channels),
        TAPS=weight.shape[1],
        BLOCK=_BLOCK,
        num_warps=4,
        **launch_options(x.device),
    )


class DeltaProducts(NamedTuple):
    """All that a layer has made of its input behind the convolution, and its own weights; all that stands between that and its output."""

    qkv: Tensor  # [T, C]: queries and keys of all heads, then values
    gate: Tensor  # [T, H, Dv]
    a: Tensor  # [T, H]
    b: Tensor  # [T, H]
    decay: Tensor  # [H]: the logarithm of A
    bias: Tensor  # [H], of a
    weight: Tensor  # [Dv], of the norm
    key_heads: int
    eps: float  # of the norm

    @property
    def apart(self) -> tuple[int, int, int]:
        """From one token of the gate, of a and of b to the next."""
        return self.gate.stride(0), self.a.stride(0), self.b.stride(0)


def step(
    made: DeltaProducts,
    states: Tensor,
    sources: Tensor,
    targets: Tensor,
    out: Tensor,
    tokens: Tensor | None = None,
) -> None:
    """The rule for one token of each row, normed and gated, into `out` [T, H Dv], contiguous and in qkv's dtype.

    `states` [S, H, Dk, Dv] float32 are in slots; `sources` and `targets` [R] int64 name them. `tokens` [R] int64 are those of the
    rows; None: row t has token t.
    """
    _, heads, dim_k, dim_v = states.shape
    wide_k, wide_v = power_of_two(dim_k), power_of_two(dim_v)
    kernel: Any = _delta_step
    kernel[(len(sources), heads)](
        *(made.qkv, made.gate, made.a, made.b, made.decay, made.bias, made.weight),
        *(states, sources, targets, tokens, out, *made.apart, made.eps, dim_k**-0.5),
        made.qkv.shape[1],
        H=heads,
        GROUP=heads // made.key_heads,
        DK=dim_k,
        DV=dim_v,
        WIDTH_K=wide_k,
        WIDTH_V=wide_v,
        num_warps=min(8, max(1, wide_k * wide_v // _WARPS_OF)),
        **launch_options(out.device),
    )

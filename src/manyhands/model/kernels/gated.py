"""An activation times its gate, in one launch: act(gate) * up, of a product that holds both.

The activation is computed in float32 and rounded to the network's dtype before it is multiplied, as
the modelling code does it in two launches.

    T  tokens      F  width inside the MLP
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

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
_BLOCK = 1024


@triton.jit
def activated(gate, ACT: tl.constexpr):
    """The activation of float32 values."""
    if ACT == 0:
        act = gate * tl.sigmoid(gate)
    elif ACT == 1:  # (1 + tanh u) / 2 is the sigmoid of 2 u
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        act = gate * tl.sigmoid(2.0 * inner)
    else:
        act = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    return act


@triton.jit
def _gated(gate_up, out, F, ACT: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    take_over(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = f < F
    DTYPE: tl.constexpr = out.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * F + f, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + f, mask=mask, other=0.0).to(tl.float32)
    act = activated(gate, ACT).to(DTYPE).to(tl.float32)
    tl.store(out + row * F + f, (act * up).to(DTYPE), mask=mask)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """act(gate) * up: gate_up [..., 2 F], the gate first -> [..., F]."""
    width = gate_up.shape[-1] // 2
    gate_up = gate_up.contiguous()
    shape = (*gate_up.shape[:-1], width)
    out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
    rows = out.numel() // width if width else 0
    if rows:
        kernel: Any = _gated
        kernel[(rows, cdiv(width, _BLOCK))](
            gate_up,
            out,
            width,
            ACT=ACTIVATIONS[activation],
            BLOCK=_BLOCK,
            num_warps=4,
            **launch_options(out.device),
        )
    return out

"""Both halves of a gated weight for 65 to 128 tokens: act(gate) * up in one launch.

With so many tokens the library's products read weights about as fast as ours would. But gate and up take half of all
bytes of a layer, and behind them the activation is a launch of its own that waits for all of them, reads what they
wrote and writes half as much. Here a program has the same outputs of both halves in its registers, and writes the
result alone. Weights and inputs come by tensor maps, so this is for Hopper and later.

Values are rounded where the modelling code rounds: each half, the activation, the product.

    T  tokens      F  width inside the MLP      K  inputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv, power_of_two
from manyhands.model.kernels.gated import ACTIVATIONS, activated
from manyhands.model.kernels.skinny import dot_dtype

MOST_TOKENS = 128
_FIRST = (9, 0)  # compute capability: the first with tensor maps
_ALIGNED = 16  # bytes at whose multiples the rows of a tensor map begin
# Of twenty the fastest on an H100 with 128 tokens for Qwen3-8B and QwQ-32B together (docs/log.md).
_OUTPUTS, _INPUTS, _WARPS, _STAGES = 64, 64, 4, 3


@triton.jit(do_not_specialize=("T",))
def _gate_up(
    inputs,  # tensor maps of x [T, K] and the weight [2 F, K], gates first
    weight,
    bias,  # [2 F], or nothing
    out,  # [T, F]
    T,
    F,
    K,
    BLOCK_F: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,  # all tokens
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    DOT: tl.constexpr,  # the dtype that products are made in
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs). The weight is the left operand, so tiles of few tokens fill the tensor cores."""
    first = tl.program_id(0) * BLOCK_F
    take_over(OVERLAP)
    gate = tl.zeros((BLOCK_F, BLOCK_T), dtype=tl.float32)
    up = tl.zeros((BLOCK_F, BLOCK_T), dtype=tl.float32)
    for at in range(0, K, BLOCK_K):  # beyond K, and beyond the last row, both maps hold zeros
        x = tl.trans(inputs.load([0, at]).to(DOT))
        gate = tl.dot(weight.load([first, at]).to(DOT), x, gate, input_precision="ieee")
        up = tl.dot(weight.load([F + first, at]).to(DOT), x, up, input_precision="ieee")
    f = (first + tl.arange(0, BLOCK_F))[:, None]
    t = tl.arange(0, BLOCK_T)[None, :]
    if BIAS:
        gate += tl.load(bias + f, mask=f < F, other=0.0).to(tl.float32)
        up += tl.load(bias + F + f, mask=f < F, other=0.0).to(tl.float32)
    DTYPE: tl.constexpr = out.dtype.element_ty
    gate, up = gate.to(DTYPE).to(tl.float32), up.to(DTYPE).to(tl.float32)
    both = activated(gate, ACT).to(DTYPE).to(tl.float32) * up
    tl.store(out + t * F + f, both.to(DTYPE), mask=(f < F) & (t < T))


def is_for(weight: Tensor) -> bool:
    """Whether there are tensor maps of this weight, contiguous, on its device; the interpreter has them."""
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < _FIRST:
        return False
    row = weight.shape[1] * weight.element_size()
    return weight.data_ptr() % _ALIGNED == row % _ALIGNED == 0


def gated_product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """X [T, K], weight [2 F, K] and bias [2 F], gates first -> act(gate) * up [T, F], for up to 128 tokens.

    K is a multiple of 8, since a tensor map wants rows that begin at multiples of 16 bytes.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    width = len(weight) // 2
    assert tokens <= MOST_TOKENS, tokens
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    block = max(64, power_of_two(tokens))
    stage = x.element_size() * _INPUTS * (2 * _OUTPUTS + block)
    kernel: Any = _gate_up
    kernel[(cdiv(width, _OUTPUTS),)](
        TensorDescriptor.from_tensor(x, [block, _INPUTS]),
        TensorDescriptor.from_tensor(weight, [_OUTPUTS, _INPUTS]),
        x if bias is None else bias,
        out,
        *(tokens, width, inputs),
        BLOCK_F=_OUTPUTS,
        BLOCK_K=_INPUTS,
        BLOCK_T=block,
        BIAS=bias is not None,
        ACT=ACTIVATIONS[activation],
        DOT=dot_dtype(x),
        num_warps=_WARPS,
        num_stages=max(1, min(_STAGES, shared_memory(x.device) // stage)),
        **launch_options(x.device),
    )
    return out

"""A product of 65 to 128 tokens in two parts, halves of its inputs, which the residual sum behind it adds up.

Few outputs make few tiles: 4096 of them are 64, for 132 processors. So the library cuts the inputs too, adds the parts
in a launch of its own, and the sum with the residual stream is the next one; or it cuts the tokens, and reads all
weights twice. Here the parts stay in float32 and are added where they are read (`norms.join`), and the launch begins
while the one in front ends. Weights and inputs come by tensor maps, so this is for Hopper and later.

    T  tokens      N  outputs      K  inputs
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
from manyhands.model import kernels
from manyhands.model.kernels import gate_up
from manyhands.model.kernels.skinny import dot_dtype

MOST_TOKENS = 128
LEAST_TOKENS = 65  # with fewer it has not been measured
PARTS = 2
_FULL = 0.9  # of the processors, from which on programs fill them
# Of eight the fastest on an H200 with 128 tokens for both layers of Qwen3-8B that have 4096 outputs.
_OUTPUTS, _INPUTS, _WARPS, _STAGES = 64, 128, 4, 4


@triton.jit(do_not_specialize=("T",))
def _in_parts(
    inputs,  # tensor maps of x [T, K] and the weight [N, K]
    weight,
    bias,  # [N], or nothing
    out,  # [PARTS, T, N] float32
    T,
    N,
    K,
    PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,  # all tokens
    BIAS: tl.constexpr,
    DOT: tl.constexpr,  # the dtype that products are made in
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, part of the inputs). The weight is the left operand, as in gate_up.py."""
    first, part = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    begin = part * (K // PARTS)
    take_over(OVERLAP)
    total = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    for at in range(begin, begin + K // PARTS, BLOCK_K):
        x = tl.trans(inputs.load([0, at]).to(DOT))
        total = tl.dot(weight.load([first, at]).to(DOT), x, total, input_precision="ieee")
    n = (first + tl.arange(0, BLOCK_N))[:, None]
    t = tl.arange(0, BLOCK_T)[None, :]
    if BIAS:
        added = tl.load(bias + n).to(tl.float32)
        total += tl.where(part == 0, added, 0.0)
    tl.store(out + (part * T + t) * N + n, total, mask=t < T)


def is_for(weight: Tensor) -> bool:
    """Whether there are tensor maps of this weight, and programs that fill the processors without a second round."""
    outputs, inputs = weight.shape
    if outputs % _OUTPUTS or inputs % (PARTS * _INPUTS) or not gate_up.is_for(weight):
        return False
    stage = weight.element_size() * _INPUTS * (_OUTPUTS + MOST_TOKENS)
    processors = kernels.num_processors(weight.device)
    fill = _FULL * processors <= PARTS * (outputs // _OUTPUTS) <= processors
    return fill and _STAGES * stage < shared_memory(weight.device)


def product_in_parts(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X [T, K], weight [N, K] and bias [N] -> [2, T, N] float32, whose sum is the product, for up to 128 tokens.

    N is a multiple of 64 and K one of 256.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = len(weight)
    assert tokens <= MOST_TOKENS, tokens
    out = torch.empty((PARTS, tokens, outputs), dtype=torch.float32, device=x.device)
    if not tokens:
        return out
    kernel: Any = _in_parts
    kernel[(outputs // _OUTPUTS, PARTS)](
        TensorDescriptor.from_tensor(x, [MOST_TOKENS, _INPUTS]),
        TensorDescriptor.from_tensor(weight, [_OUTPUTS, _INPUTS]),
        x if bias is None else bias,
        out,
        *(tokens, outputs, inputs),
        PARTS=PARTS,
        BLOCK_N=_OUTPUTS,
        BLOCK_K=_INPUTS,
        BLOCK_T=MOST_TOKENS,
        BIAS=bias is not None,
        DOT=dot_dtype(x),
        num_warps=_WARPS,
        num_stages=_STAGES,
        **launch_options(x.device),
    )
    return out

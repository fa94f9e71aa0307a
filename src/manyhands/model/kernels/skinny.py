"""Products of a few tokens with an ordinary weight: x [T, K] times w [N, K] transposed.

Reading the weight is all that takes time, so this kernel is made to read: the weight is the *left*
operand of the tensor cores, where a handful of tokens fills the narrow side of a tile; every program
has several pieces of the weight on their way; and all programs stand ready when the launch in front is
over (`attention/kernels/overlap.py`), which library kernels do not. To ask for weights any earlier was
tried in three ways and slower in each (docs/log.md).

Where few tiles of outputs would leave processors idle, the inputs are cut into parts; the last program
to arrive adds up all of them, in their order, so that results repeat. A token's result does not depend on
which tokens are beside it, as long as they are few enough for one tile.

Weights and inputs may also be float8 (e4m3), with a scale per output and per token that come in at the end.
Sums of 128 such products leave the tensor cores before their accumulators, which are short, lose bits.

Two halves of one product can go through an activation at once: `gated` is act(gate) * up, rounded where
the modelling code rounds.

    T  tokens      N  outputs      K  inputs      F  width inside the MLP
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv, power_of_two
from manyhands.model import kernels
from manyhands.model.kernels.adding import add_up
from manyhands.model.kernels.gated import ACTIVATIONS, activated

MOST_TOKENS = 64  # on Hopper; on older devices more than 32 have not been measured
_FEW = 32  # tokens up to which a stage is small enough for four of them twice on a processor
_LONG_SHARE, _SHORT_SHARE = 3072, 512  # the fewest inputs that one of several programs goes through
# A router has so few outputs that only its inputs make programs (benchmarks/results/router_tiles.json).
_OF_A_ROUTER, _ROUTER_SHARE, _MOST_ROUTER_PARTS = 256, 256, 16
_DOT = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float8_e4m3fn: tl.float8e4nv,
}


@dataclass(frozen=True)
class Tiles:
    """How the work is cut: outputs and inputs of a tile, parts of all inputs, warps, stages."""

    outputs: int = 64
    inputs: int = 128
    parts: int = 1
    warps: int = 4
    stages: int = 4

    def num_bytes(self, tokens: int, itemsize: int = 2, *, gated: bool) -> int:
        """Shared memory of a program, at most."""
        rows = self.outputs * (2 if gated else 1) + _narrow(tokens)
        return itemsize * self.stages * self.inputs * rows

    def fitted(self, room: int, tokens: int, itemsize: int = 2, *, gated: bool) -> Tiles:
        """The same with as many stages as find room in so many bytes."""
        return _fitted(self, room, tokens, itemsize, gated)


@functools.cache
def _fitted(tiles: Tiles, room: int, tokens: int, itemsize: int, gated: bool) -> Tiles:
    one = replace(tiles, stages=1).num_bytes(tokens, itemsize, gated=gated)
    return replace(tiles, stages=max(1, min(tiles.stages, room // one)))


def _narrow(tokens: int) -> int:
    """Columns of a tile of outputs; tensor cores take no fewer than 16."""
    return max(16, power_of_two(tokens))


@triton.jit(do_not_specialize=("T",))  # one kernel for 17 tokens and for 32
def _skinny(
    x,
    weight,
    bias,
    weight_scales,  # [N], of float8
    x_scales,  # [T]
    out,
    partial,
    arrived,
    T,
    N,
    K,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    GATED: tl.constexpr,
    ACT: tl.constexpr,
    SCALED: tl.constexpr,
    EVEN: tl.constexpr,  # whole tiles of inputs
    DOT: tl.constexpr,  # the dtype that products are made in
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, part of the inputs). GATED: N is F, and rows F + n are beside rows n."""
    tile, part = tl.program_id(0), tl.program_id(1)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    t = tl.arange(0, BLOCK_T)
    k = tl.arange(0, BLOCK_K)
    is_n, is_t = n < N, t < T
    share = tl.cdiv(tl.cdiv(K, BLOCK_K), PARTS) * BLOCK_K
    start = part * share
    end = tl.minimum(start + share, K)
    row = weight + tl.minimum(n, N - 1).to(tl.int64) * K  # outputs to spare repeat the last one
    take_over(OVERLAP)

    # None: the tensor cores' accumulators are float32
    SHORT: tl.constexpr = 128 if SCALED else None
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    acc_up = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    w_at = row[:, None] + k[None, :]
    x_at = x + t[None, :] * K + k[:, None]
    for at in range(start, end, BLOCK_K):
        if EVEN:
            w = tl.load(w_at + at, eviction_policy="evict_first")
            v = tl.load(x_at + at, mask=is_t[None, :], other=0.0).to(DOT)
        else:
            is_k = at + k < end
            w = tl.load(w_at + at, mask=is_k[None, :], other=0.0, eviction_policy="evict_first")
            v = tl.load(x_at + at, mask=is_t[None, :] & is_k[:, None], other=0.0).to(DOT)
        acc = tl.dot(w.to(DOT), v, acc, input_precision="ieee", max_num_imprecise_acc=SHORT)
        if GATED:
            up_at = w_at + N.to(tl.int64) * K + at
            if EVEN:
                w = tl.load(up_at, eviction_policy="evict_first")
            else:
                w = tl.load(up_at, mask=is_k[None, :], other=0.0, eviction_policy="evict_first")
            acc_up = tl.dot(w.to(DOT), v, acc_up, input_precision="ieee")

    is_out = is_n[:, None] & is_t[None, :]
    where = t[None, :] * N + n[:, None]
    last = True
    if PARTS > 1:
        size = T * N
        if GATED:
            tl.store(partial + (PARTS + part) * size + where, acc_up, mask=is_out)
        acc, last = add_up(acc, partial, where, is_out, size, arrived + tile, part, PARTS)
        if GATED and last:
            acc_up = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
            for other in range(PARTS, 2 * PARTS):
                half = partial + other * size + where
                acc_up += tl.load(half, mask=is_out, other=0.0, cache_modifier=".cg")
    if last:
        DTYPE: tl.constexpr = out.dtype.element_ty
        if SCALED:
            acc *= tl.load(weight_scales + n, mask=is_n, other=0.0)[:, None]
            acc *= tl.load(x_scales + t, mask=is_t, other=0.0)[None, :]
        if BIAS:
            acc += tl.load(bias + n, mask=is_n, other=0.0).to(tl.float32)[:, None]
        if GATED:
            if BIAS:
                acc_up += tl.load(bias + N + n, mask=is_n, other=0.0).to(tl.float32)[:, None]
            gate, up = acc.to(DTYPE).to(tl.float32), acc_up.to(DTYPE).to(tl.float32)
            acc = activated(gate, ACT).to(DTYPE).to(tl.float32) * up
        tl.store(out + where, acc.to(DTYPE), mask=is_out)


@functools.cache
def choose_tiles(
    tokens: int, outputs: int, inputs: int, device: torch.device, *, gated: bool = False
) -> Tiles:
    """The tiles that were fastest in passes of whole networks on an H200 (docs/performance_layers.md), by its processors.

    With many tiles of outputs, programs hide each other's waiting. With few, there is one program a
    processor, which must have more on its way; long inputs are shared among several. Parts do not depend on the number
    of tokens, nor do sums.
    """
    processors = kernels.num_processors(device)
    tiles = cdiv(outputs, 2 * 64 if gated else 64)
    of_two = 4 if tokens <= _FEW else 3  # stages of programs of which a processor has room for two
    if gated and (tokens > _FEW or (tokens > 16 and tiles <= 2 * processors)):
        # Two a processor, all at once if they can be: larger ones would have no room beside each other.
        return Tiles(inputs=64, stages=4)
    if outputs >= 256 * processors:
        return Tiles(stages=of_two)
    if gated or outputs >= 64 * processors:
        return Tiles(stages=3)
    if outputs <= _OF_A_ROUTER and not gated:
        few = Tiles(outputs=16, inputs=64, warps=2)
        steps = cdiv(inputs, few.inputs)
        most = max(1, min(inputs // _ROUTER_SHARE, _MOST_ROUTER_PARTS))
        return replace(few, parts=cdiv(steps, cdiv(steps, most)))
    if inputs > 2 * outputs:
        most = max(1, min(inputs // _LONG_SHARE, 2 * processors // tiles))
        parts = max(range(1, most + 1), key=lambda parts: _filled(tiles * parts, processors))
        return Tiles(parts=parts, stages=6 if tiles * parts <= processors else of_two)
    parts = 1
    while 2 * tiles * parts < processors and inputs // (2 * parts) >= _SHORT_SHARE:
        parts *= 2
    return Tiles(parts=parts, stages=6)


def _filled(programs: int, processors: int) -> float:
    """The share of its time in which a processor has something to do, if each takes so many of these programs in turn."""
    rounds = -(-programs // processors)
    return programs / (rounds * processors)


def dot_dtype(x: Tensor) -> tl.dtype:
    """The dtype that products of `x` are made in; the interpreter knows none of 16 bits and fewer."""
    return tl.float32 if triton.knobs.runtime.interpret else _DOT[x.dtype]


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    arrived: Tensor,
    activation: str | None = None,
    tiles: Tiles | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """X [T, K], weight [N, K], bias [N] -> [T, N], for up to 64 tokens; into `out`, which may be float32, if that is given.

    In float8 with `scales` [N] of the weight's rows and [T] of x's, both float32; the result is bfloat16.
    With an `activation` the weight is [2 F, K], gates first, and the result act(gate) * up [T, F].
    `arrived` are integers of 0, as many as there are tiles of outputs; they are 0 again afterwards.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = weight.shape[0] // (1 if activation is None else 2)
    if out is None:
        dtype = x.dtype if scales is None else torch.bfloat16
        out = torch.empty((tokens, outputs), dtype=dtype, device=x.device)
    assert out.shape == (tokens, outputs), (out.shape, tokens, outputs)
    assert out.is_contiguous(), out.stride()
    if not tokens:
        return out
    is_gated = activation is not None
    assert not (is_gated and scales is not None), "the second half would need scales of its own"
    if tiles is None:
        tiles = choose_tiles(tokens, weight.shape[0], inputs, x.device, gated=is_gated)
        if weight.element_size() != 2:
            tiles = replace(tiles, inputs=tiles.inputs * 2 // weight.element_size())
    tiles = tiles.fitted(shared_memory(x.device), tokens, weight.element_size(), gated=is_gated)
    num_tiles = cdiv(outputs, tiles.outputs)
    assert tiles.parts == 1 or len(arrived) >= num_tiles, (len(arrived), num_tiles)
    shape = (tiles.parts, tokens, weight.shape[0]) if tiles.parts > 1 else (1,)
    partial = torch.empty(shape, dtype=torch.float32, device=x.device)
    kernel: Any = _skinny
    kernel[(num_tiles, tiles.parts)](
        *(x, weight, x if bias is None else bias, *(scales or (x, x)), out, partial, arrived),
        *(tokens, outputs, inputs),
        BLOCK_N=tiles.outputs,
        BLOCK_K=tiles.inputs,
        BLOCK_T=_narrow(tokens),
        PARTS=tiles.parts,
        BIAS=bias is not None,
        GATED=is_gated,
        ACT=0 if activation is None else ACTIVATIONS[activation],
        SCALED=scales is not None,
        EVEN=inputs % tiles.inputs == 0,
        DOT=dot_dtype(x),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **launch_options(x.device),
    )
    return out

"""Experts of prompts: so many tokens that multiplying takes longer than reading weights.

The kernels for fewer tokens (`kernels/experts.py`) have weights on the left and few columns of tokens, for a program has to
ask for many weights at once. Here tokens are rows, 128 of them as a rule, and two groups of four warps multiply them with 128 gates
and the values beside these, so that what a program has loaded is used often.

A program is for tokens of one expert and a tile of outputs. How many tokens an expert has is known on the device alone, so there are
programs for every tile that there may be: with R rows in a tile at most T C / R and one more for each expert. Those to spare end at
once. The launches:

    list        the tokens of each expert
    lay out     the tiles of all experts, one behind the other
    gated       act(gate) * up of every token and each of its experts
    down        the outputs of each, weighed
    add up      their sum for every token, in the order of its experts

`inner`, the outputs of `gated`, lies in one of two orders:

    by pair     a row for each token and each of its experts, [T C, F]
    by tile     as many rows for each tile as it has, one tile behind the other, [tiles R, F]; those of no token are never written

By tile the rows that a program of `down` wants are a box, and so are the rows of its expert's weight. Tensor maps bring both: no
address is computed for what they bring. That is for wide tiles, and for weights of which there are tensor maps (`_are_mapped`). With
few tokens an expert most rows of its tile would be of no token; there, and where there are no tensor maps, `inner` lies by pair.
In either order it takes memory before it is known how many tiles there are: by tile up to R rows more for each expert.

Neighbouring programs have the same tokens and other outputs, those behind them the next tokens of the same expert: its weights
are read once and come from the second-level cache from then on. What every expert gives is weighed in float32 and rounded once on
its way to the sum; the modelling code rounds it twice.

    T  tokens      E  experts      C  experts of a token      K  inputs      F  width inside an expert      N  outputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv, power_of_two
from manyhands.model import kernels
from manyhands.model.kernels.experts import (
    MOST_CHOSEN,
    MOST_TOKENS,
    ExpertGate,
    ExpertWeights,
    add_up,
    between,
    list_pairs,
    places,
)
from manyhands.model.kernels.gated import ACTIVATIONS
from manyhands.model.kernels.skinny import dot_dtype


@dataclass(frozen=True)
class Tiles:
    """How a product is cut: rows of tokens, outputs and inputs of a tile, warps, stages.

    `by_maps`, of the second product: tensor maps bring its operands where they can.
    """

    rows: int = 128
    outputs: int = 128
    inputs: int = 64
    warps: int = 8
    stages: int = 4
    by_maps: bool = False

    def fitted(self, room: int, itemsize: int, *, gated: bool) -> Tiles:
        """The same with as many stages as find room in so many bytes."""
        one = itemsize * self.inputs * (self.rows + self.outputs * (2 if gated else 1))
        return replace(self, stages=max(1, min(self.stages, room // one)))


_SMALL = Tiles(rows=64, outputs=64, warps=4, stages=3)
_LEAST_EACH, _LEAST_WIDE = 24, 64  # tokens of an expert, if all have as many
TILES = (
    _WIDE := (Tiles(), Tiles(outputs=256, by_maps=True)),
    _NARROW := (_SMALL, replace(_SMALL, outputs=128)),
)
_ALIGNED = 16  # bytes at whose multiples a tensor map and its rows begin
_MOST_ROWS = 2**31 - 1  # of a tensor map: a place in it is an integer of 32 bits


@triton.jit(do_not_specialize=("number",))
def _lay_out(
    counts,  # [E]
    tiles,  # [number, 2]: expert, and the first of its tokens; expert -1: none
    number,
    E,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # at least E
    OVERLAP: tl.constexpr,
):
    """One program. Its lanes are experts."""
    expert = tl.arange(0, BLOCK)
    take_over(OVERLAP)
    its = tl.cdiv(tl.load(counts + expert, mask=expert < E, other=0), ROWS)
    behind = tl.cumsum(its, 0)
    for first in range(tl.sum(its), number, BLOCK):
        # Its rows are looked up before a program finds that it has none.
        spare = tiles + 2 * (first + expert)
        tl.store(spare, -1, mask=first + expert < number)
        tl.store(spare + 1, 0, mask=first + expert < number)
    for part in range(tl.max(its)):
        at = tiles + 2 * (behind - its + part)
        tl.store(at, expert, mask=part < its)
        tl.store(at + 1, tl.full((BLOCK,), part * ROWS, tl.int32), mask=part < its)


@triton.jit
def _rows_of(tile, tiles, pairs, counts, T, ROWS: tl.constexpr):
    """The expert of a tile, the pairs of its rows, and which rows there are; expert -1: none."""
    expert = tl.load(tiles + 2 * tile)
    row = tl.load(tiles + 2 * tile + 1) + tl.arange(0, ROWS)
    here = tl.maximum(expert, 0)
    is_its = row < tl.load(counts + here)
    pair = tl.load(pairs + here.to(tl.int64) * T + row, mask=is_its, other=0)
    return expert, pair, is_its


@triton.jit(do_not_specialize=("T",))
def _many_gated(
    x,  # [T, K]
    weight,  # [E, 2 F, K], gates first; TURNS: [E, K, 2 F], gates and values in turns
    bias,  # [E, 2 F], or nothing
    tiles,
    pairs,
    counts,
    out,  # [T C, F]; BY_TILE: [tiles ROWS, F]
    T,
    F,
    K,
    alpha,
    limit,
    C: tl.constexpr,
    TURNS: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    EVEN: tl.constexpr,  # whole tiles of inputs
    BY_TILE: tl.constexpr,
    DOT: tl.constexpr,  # the dtype that products are made in
    ROWS: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, tile of tokens)."""
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    k = tl.arange(0, BLOCK_K)
    take_over(OVERLAP)
    expert, pair, is_its = _rows_of(tl.program_id(1), tiles, pairs, counts, T, ROWS)
    if expert < 0:
        return
    here = weight + expert.to(tl.int64) * 2 * F * K
    x_at = x + (pair // C).to(tl.int64)[:, None] * K + k[None, :]
    if TURNS:
        both = tl.program_id(0) * (2 * BLOCK_F) + tl.arange(0, 2 * BLOCK_F)
        w_at = here + k[:, None] * (2 * F) + both[None, :]
        is_both = (both < 2 * F)[None, :]
        acc = tl.zeros((ROWS, 2 * BLOCK_F), dtype=tl.float32)
        for at in range(0, K, BLOCK_K):
            is_k = at + k < K
            v = tl.load(x_at + at, mask=is_its[:, None] & is_k[None, :], other=0.0)
            w = tl.load(w_at + at * 2 * F, mask=is_k[:, None] & is_both, other=0.0)
            acc = tl.dot(v.to(DOT), w.to(DOT), acc, input_precision="ieee")
        gate, up = tl.split(tl.reshape(acc, (ROWS, BLOCK_F, 2)))
    else:
        gate_at = here + tl.minimum(f, F - 1)[None, :] * K + k[:, None]
        up_at = gate_at + F.to(tl.int64) * K
        gate = tl.zeros((ROWS, BLOCK_F), dtype=tl.float32)
        up = tl.zeros((ROWS, BLOCK_F), dtype=tl.float32)
        for at in range(0, K, BLOCK_K):
            if EVEN:
                v = tl.load(x_at + at, mask=is_its[:, None], other=0.0).to(DOT)
                w = tl.load(gate_at + at)
                w_up = tl.load(up_at + at)
            else:
                is_k = at + k < K
                v = tl.load(x_at + at, mask=is_its[:, None] & is_k[None, :], other=0.0).to(DOT)
                w = tl.load(gate_at + at, mask=is_k[:, None], other=0.0)
                w_up = tl.load(up_at + at, mask=is_k[:, None], other=0.0)
            gate = tl.dot(v, w.to(DOT), gate, input_precision="ieee")
            up = tl.dot(v, w_up.to(DOT), up, input_precision="ieee")

    if BIAS:
        biases = bias + expert * 2 * F
        at_gate, at_up = (2 * f, 2 * f + 1) if TURNS else (f, F + f)
        gate += tl.load(biases + at_gate, mask=f < F, other=0.0).to(tl.float32)[None, :]
        up += tl.load(biases + at_up, mask=f < F, other=0.0).to(tl.float32)[None, :]
    inner = between(gate, up, alpha, limit, TURNS, ACT, out.dtype.element_ty)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS) if BY_TILE else pair
    where = out + row.to(tl.int64)[:, None] * F + f[None, :]
    tl.store(where, inner, mask=is_its[:, None] & (f < F)[None, :])


@triton.jit
def _put(
    acc,
    n,
    expert,
    pair,
    is_its,
    bias,
    shares,
    out,
    T,
    N,
    C: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Outputs of a tile get their bias, are weighed, and go to the places of their pairs."""
    is_n = n < N
    if BIAS:
        acc += tl.load(bias + expert * N + n, mask=is_n, other=0.0).to(tl.float32)[None, :]
    acc *= tl.load(shares + pair, mask=is_its, other=0.0).to(tl.float32)[:, None]
    where = out + (pair % C * T + pair // C).to(tl.int64)[:, None] * N + n[None, :]
    tl.store(where, acc.to(out.dtype.element_ty), mask=is_its[:, None] & is_n[None, :])


@triton.jit(do_not_specialize=("T",))
def _many_down(
    inner,  # [T C, F]
    weight,  # [E, N, F]; TURNED: [E, F, N]
    bias,  # [E, N], or nothing
    tiles,
    pairs,
    counts,
    shares,  # [T, C]
    out,  # [C, T, N]
    T,
    N,
    F,
    C: tl.constexpr,
    TURNED: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, tile of tokens), where `inner` lies by pair."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    f = tl.arange(0, BLOCK_F)
    take_over(OVERLAP)
    expert, pair, is_its = _rows_of(tl.program_id(1), tiles, pairs, counts, T, ROWS)
    if expert < 0:
        return
    here = weight + expert.to(tl.int64) * N * F
    v_at = inner + pair.to(tl.int64)[:, None] * F + f[None, :]
    acc = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    is_n = n < N
    if TURNED:
        w_at, step = here + f[:, None] * N + n[None, :], N
    else:
        w_at, step = here + tl.minimum(n, N - 1)[None, :] * F + f[:, None], 1
    for at in range(0, F, BLOCK_F):
        if EVEN and not TURNED:
            v = tl.load(v_at + at, mask=is_its[:, None], other=0.0).to(DOT)
            w = tl.load(w_at + at)
        else:
            is_f = at + f < F
            v = tl.load(v_at + at, mask=is_its[:, None] & is_f[None, :], other=0.0).to(DOT)
            w = tl.load(w_at + at * step, mask=is_f[:, None] & is_n[None, :], other=0.0)
        acc = tl.dot(v, w.to(DOT), acc, input_precision="ieee")
    _put(acc, n, expert, pair, is_its, bias, shares, out, T, N, C, BIAS)


@triton.jit(do_not_specialize=("T",))
def _mapped_down(
    inner,  # tensor map of [tiles ROWS, F]
    weight,  # tensor map of [E N, F]; TURNED: of [E F, N], and F is whole tiles
    bias,  # [E, N], or nothing
    tiles,
    pairs,
    counts,
    shares,  # [T, C]
    out,  # [C, T, N]
    T,
    N,
    F,
    C: tl.constexpr,
    TURNED: tl.constexpr,
    BIAS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, tile of tokens), where `inner` lies by tile.

    Rows of no token hold anything, and give what is not stored. So do outputs beyond N, for which the next expert's weights are
    brought. Beyond F both maps hold zeros.
    """
    first = tl.program_id(0) * BLOCK_N
    tile = tl.program_id(1)
    take_over(OVERLAP)
    expert, pair, is_its = _rows_of(tile, tiles, pairs, counts, T, ROWS)
    if expert < 0:
        return
    acc = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for at in range(0, F, BLOCK_F):
        v = inner.load([tile * ROWS, at]).to(DOT)
        if TURNED:
            w = weight.load([expert * F + at, first])
        else:
            w = weight.load([expert * N + first, at]).T
        acc = tl.dot(v, w.to(DOT), acc, input_precision="ieee")
    n = first + tl.arange(0, BLOCK_N)
    _put(acc, n, expert, pair, is_its, bias, shares, out, T, N, C, BIAS)


def experts(
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    gate: ExpertGate,
    tiles: tuple[Tiles, Tiles] | None = None,
    *,
    in_parts: bool = False,
    beside: int = 0,
) -> Tensor:
    """The same as `kernels/experts.py`'s for any number of tokens: x [T, K], index and shares [T, C] -> [T, N].

    `in_parts` and `beside`: see there. Both products have tiles of as many rows.
    """
    tokens, inputs = x.shape
    num_experts, chosen = len(gate_up.weight), index.shape[1]
    turns = gate.clamped is not None
    width, outputs = down.weight.shape[1:] if turns else down.weight.shape[:0:-1]
    assert chosen <= MOST_CHOSEN, chosen
    assert in_parts or not beside, beside
    dtype = torch.float32 if in_parts else x.dtype
    parts = x.new_empty(chosen + beside, tokens, outputs, dtype=dtype)
    out = parts if in_parts else x.new_empty(tokens, outputs)
    if not tokens:
        return out
    x, index, shares = x.contiguous(), index.contiguous(), shares.contiguous()
    room, itemsize = shared_memory(x.device), x.element_size()
    both = tiles or choose_tiles(tokens, chosen, num_experts)
    first, second = (
        both[0].fitted(room, itemsize, gated=True),
        both[1].fitted(room, itemsize, gated=False),
    )
    assert first.rows == second.rows, both
    pairs, counts = list_pairs(index, num_experts)
    laid_out = lay_out(counts, tokens * chosen, first.rows)
    number = len(laid_out)
    by_tile = second.by_maps and _are_mapped(down.weight, second.inputs, turned=turns)
    inner = x.new_empty(number * first.rows if by_tile else tokens * chosen, width)
    common = {"C": chosen, "DOT": dot_dtype(x), "ROWS": first.rows, **launch_options(x.device)}
    alpha, limit = gate.clamped or (0.0, 0.0)
    kernel = _many_gated
    kernel[(cdiv(width, first.outputs), number)](
        *(x, gate_up.weight, x if gate_up.bias is None else gate_up.bias, laid_out, pairs, counts),
        *(inner, tokens, width, inputs, alpha, limit),
        TURNS=turns,
        BIAS=gate_up.bias is not None,
        ACT=ACTIVATIONS[gate.activation],
        EVEN=inputs % first.inputs == 0,
        BY_TILE=by_tile,
        BLOCK_F=first.outputs,
        BLOCK_K=first.inputs,
        num_warps=first.warps,
        num_stages=first.stages,
        **common,
    )
    common |= {
        "TURNED": turns,
        "BIAS": down.bias is not None,
        "BLOCK_N": second.outputs,
        "BLOCK_F": second.inputs,
        "num_warps": second.warps,
        "num_stages": second.stages,
    }
    behind = (x if down.bias is None else down.bias, laid_out, pairs, counts, shares, parts)
    grid = cdiv(outputs, second.outputs), number
    if by_tile:
        box = [second.inputs, second.outputs] if turns else [second.outputs, second.inputs]
        rows = down.weight.view(-1, down.weight.shape[-1])
        kernel = _mapped_down
        kernel[grid](
            TensorDescriptor.from_tensor(inner, [second.rows, second.inputs]),
            TensorDescriptor.from_tensor(rows, box),
            *(*behind, tokens, outputs, width),
            **common,
        )
    else:
        kernel = _many_down
        kernel[grid](
            *(inner, down.weight, *behind, tokens, outputs, width),
            EVEN=width % second.inputs == 0,
            **common,
        )
    return out if in_parts else add_up(parts, out)


def lay_out(counts: Tensor, num_pairs: int, rows: int) -> Tensor:
    """The tiles of so many rows of all experts, one behind the other, [tiles, 2]: an expert, and the first of its pairs; expert -1: none.

    As many as there may be. Counts [E] of the pairs of each expert, in all no more than `num_pairs`.
    """
    num_experts = len(counts)
    number = num_pairs // rows + min(num_experts, num_pairs)
    laid_out = places(number, 2, device=counts.device)
    kernel: Any = _lay_out
    kernel[(1,)](
        *(counts, laid_out, number, num_experts),
        ROWS=rows,
        BLOCK=power_of_two(num_experts),
        num_warps=4,
        **launch_options(counts.device),
    )
    return laid_out


def _are_mapped(weight: Tensor, inputs: int, *, turned: bool) -> bool:
    """Whether there are tensor maps of a second weight [E, N, F], or turned [E, F, N], and of what it multiplies, for tiles of so many inputs.

    It has to do with the weight alone, so kernels that are launched ahead are those of a prompt. A turned weight has the next expert's
    numbers behind its own inputs, which are not zeros, so its tiles have to be whole.
    """
    width = weight.shape[1 if turned else 2]
    rows = weight.shape[0] * weight.shape[1]
    starts = (weight.data_ptr(), *(2 * size for size in (width, weight.shape[2])))
    return (
        weight.element_size() == 2
        and weight.is_contiguous()
        and all(start % _ALIGNED == 0 for start in starts)
        and rows <= _MOST_ROWS
        and not (turned and width % inputs)
        and kernels.have_warpgroups(weight.device)
    )


def is_faster(tokens: int, chosen: int, num_experts: int, device: torch.device) -> bool:
    """Whether these kernels are faster than those of few tokens, and than the modelling code: on Hopper and later.

    Where a warp multiplies alone, tiles of this size have no room in its registers, and smaller ones were not measured.
    """
    are_many = tokens > MOST_TOKENS or tokens * chosen >= _LEAST_EACH * num_experts
    return are_many and kernels.have_warpgroups(device)


def choose_tiles(tokens: int, chosen: int, num_experts: int) -> tuple[Tiles, Tiles]:
    """The tiles of both products that were fastest on an H200, by the tokens that an expert has if all have as many."""
    return _WIDE if tokens * chosen >= _LEAST_WIDE * num_experts else _NARROW

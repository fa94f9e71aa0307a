"""Experts of up to a thousand tokens: every token is multiplied with the weights of the experts that were chosen for it.

Of many experts a pass reads those that were chosen, and reading them is what takes time. A program is for one expert and a
tile of its outputs. It multiplies as `kernels/skinny.py` does, the weight on the left; the columns of a tile are tokens, found
in one of two ways:

    few tokens    all of them are columns. A program looks up for itself which have chosen its expert; what it computes for the others
                  costs nothing and is thrown away. Nothing is sorted, nothing gathered.
    more          lists are made first of the tokens that have chosen each expert, and a program takes as many as it has columns

Programs whose expert was chosen by no token end at once. The experts of a token have to be different ones. A softmax's or a sigmoid's
likeliest ones are; beside any other router `distinct` makes them so: the first of several places with one expert has the shares of
all, and the others have experts that the token has not, with shares of 0. The launches:

    choose        logits of the router to experts and their shares, the likeliest first
    distinct      the same shares of other experts where a token has one twice, if the router is not known
    list          the tokens of each expert, if they are listed
    gated         act(gate) * up of every token and each of its experts
    down          the outputs of each, weighed
    add up        their sum for every token, in the order of its experts

Sums do not depend on which tokens are beside a token, as long as they are as many, and repeat. What every expert gives is weighed
and added up in float32; the modelling code rounds it twice before.

    T  tokens      E  experts      C  experts of a token      K  inputs      F  width inside an expert      N  outputs
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.compile_at_once import may_launch_nothing
from manyhands.attention.kernels.overlap import launch_options, take_over
from manyhands.attention.launches import shared_memory
from manyhands.attention.work import cdiv, power_of_two
from manyhands.model.kernels.gated import ACTIVATIONS, activated
from manyhands.model.kernels.skinny import Tiles, dot_dtype
from manyhands.model.routing import Scoring

MOST_TOKENS = 1024
_MOST_LOOKED_UP = 16  # tokens, of more there are lists
_LEAST_COLUMNS = 16  # tensor cores take no fewer
MOST_CHOSEN = 16  # experts of a token
MOST_EXPERTS = 1024
_SUMS = 1024  # outputs of a program that adds up
_LISTED, _LISTING_WARPS = 8192, 8  # pairs at once, and warps, where tokens are many


@dataclass(frozen=True)
class ExpertGate:
    """The function between the two products of an expert.

    Gates and values are two halves of the outputs; or, `clamped`, in turns: (min(gate, limit) sigmoid(alpha gate)) (1 + up) with
    `up` between both limits, as in gpt-oss.
    """

    activation: str = "silu"
    clamped: tuple[float, float] | None = None  # alpha and limit


class ExpertWeights(NamedTuple):
    """The weights of all experts of one product, and the biases [E, N], if there are any."""

    weight: Tensor  # [E, N, K], or [E, K, N] where they lie transposed
    bias: Tensor | None = None


_USUAL = Tiles(inputs=64)
_FEW_GATED = Tiles(outputs=32)
_LISTED_DOWN = Tiles(outputs=128, inputs=64, stages=3)
_IN_TURNS = Tiles(outputs=32, inputs=64)  # as many values as gates beside them
_LISTED_IN_TURNS = Tiles(inputs=64, stages=3)
_LEAST_LISTED, _MOST_COLUMNS = 32, 128  # columns of listed tokens


@triton.jit
def _choose(
    logits,  # [T, E]
    correction,  # [E], or nothing
    shares,  # [T, C]
    index,  # [T, C]
    E,
    least,
    added,
    scale,
    C: tl.constexpr,
    SIGMOID: tl.constexpr,  # scores are a sigmoid of each logit, not a softmax over all
    CORRECTED: tl.constexpr,
    GROUPS: tl.constexpr,  # 1: none
    KEPT: tl.constexpr,
    BEST: tl.constexpr,
    EVEN: tl.constexpr,  # shares of the chosen ones add up to 1
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,  # at least the groups
    BLOCK: tl.constexpr,  # at least the experts of a group
    OVERLAP: tl.constexpr,
):
    """Program (token). Its lanes are experts; of groups, each has a row of BLOCK lanes."""
    token = tl.program_id(0)
    lane = tl.arange(0, ROWS * BLOCK)
    size = E // GROUPS
    e = lane // BLOCK * size + lane % BLOCK
    is_one = (lane % BLOCK < size) & (lane // BLOCK < GROUPS)
    place = tl.arange(0, PLACES)
    take_over(OVERLAP)
    score = tl.load(logits + token * E + e, mask=is_one, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        small = tl.exp(-tl.abs(score))
        score = tl.where(score < 0, small, 1.0) / (1.0 + small)
    else:
        score = tl.exp(score - tl.max(score))
        score /= tl.sum(score)
    found = score
    if CORRECTED:
        found += tl.load(correction + e, mask=is_one, other=0.0).to(tl.float32)
    whole = tl.sum(tl.where(is_one, found, 0.0))
    # Of numbers that are none, the first experts are taken, each once, and shares that are none either.
    is_sound = whole == whole
    found = tl.where(is_sound, tl.maximum(found, -1e30), 0.0)
    found = tl.where(is_one, found, float("-inf"))
    if GROUPS > 1:
        apart = tl.reshape(found, (ROWS, BLOCK))
        group = tl.arange(0, ROWS)
        of_group = tl.max(apart, 1)
        if BEST == 2:
            first = tl.argmax(apart, 1)
            is_first = tl.arange(0, BLOCK)[None, :] == first[:, None]
            of_group += tl.max(tl.where(is_first, float("-inf"), apart), 1)
        is_kept = lane < 0
        for _ in tl.static_range(KEPT):
            best = tl.argmax(of_group, 0)
            is_kept |= lane // BLOCK == best
            of_group = tl.where(group == best, float("-inf"), of_group)
        found = tl.where(is_one & ~is_kept, -1e30, found)
    chosen = tl.zeros((PLACES,), dtype=tl.float32)
    where = tl.zeros((PLACES,), dtype=tl.int32)
    for number in tl.static_range(C):
        best = tl.argmax(found, 0)
        its = tl.sum(tl.where(lane == best, score, 0.0)) if CORRECTED else tl.max(found)
        chosen = tl.where(place == number, its, chosen)
        where = tl.where(place == number, best // BLOCK * size + best % BLOCK, where)
        found = tl.where(lane == best, float("-inf"), found)
    if EVEN:
        chosen /= tl.where(is_sound, tl.maximum(tl.sum(chosen), least) + added, 1.0)
    chosen = tl.where(is_sound, chosen * scale, whole)
    at = token * C + place
    tl.store(shares + at, chosen.to(shares.dtype.element_ty), mask=place < C)
    tl.store(index + at, where.to(index.dtype.element_ty), mask=place < C)


@triton.jit
def _distinct(
    index,  # [T, C]
    shares,  # [T, C]
    its_index,  # [T, C]
    its_shares,  # [T, C]
    E,
    C: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,  # at least the experts
    OVERLAP: tl.constexpr,
):
    """Program (token)."""
    place = tl.arange(0, PLACES)
    expert = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * C + place
    take_over(OVERLAP)
    own = tl.load(index + at, mask=place < C, other=-1).to(tl.int32)
    share = tl.load(shares + at, mask=place < C, other=0.0).to(tl.float32)
    own = tl.where(place < C, own, -1 - place)
    is_same = own[:, None] == own[None, :]
    is_again = tl.max((is_same & (place[None, :] < place[:, None])).to(tl.int32), 1)
    if tl.max(is_again) > 0:
        whole = tl.sum(tl.where(is_same, share[None, :], 0.0), 1)
        share = tl.where(is_again > 0, 0.0, whole)
        is_used = tl.max((own[:, None] == expert[None, :]).to(tl.int32), 0)
        is_free = ((is_used == 0) & (expert < E)).to(tl.int32)
        # The n-th place that is to have another expert has the n-th that is free.
        number, wanted = tl.cumsum(is_free, 0), tl.cumsum(is_again, 0)
        is_its = (number[None, :] == wanted[:, None]) & (is_free[None, :] > 0)
        other = tl.sum(tl.where(is_its, expert[None, :], 0), 1)
        own = tl.where(is_again > 0, other, own)
    tl.store(its_index + at, own.to(its_index.dtype.element_ty), mask=place < C)
    tl.store(its_shares + at, share.to(its_shares.dtype.element_ty), mask=place < C)


@triton.jit(do_not_specialize=("T",))
def _list(
    index,  # [T, C]
    pairs,  # [E, T]: token * C + place
    counts,  # [E]
    T,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (expert)."""
    expert = tl.program_id(0)
    its = pairs + expert.to(tl.int64) * T
    take_over(OVERLAP)
    found = 0
    for at in range(0, T * C, BLOCK):
        pair = at + tl.arange(0, BLOCK)
        is_its = tl.load(index + pair, mask=pair < T * C, other=-1) == expert
        behind = found + tl.cumsum(is_its.to(tl.int32), 0)
        # An expert that a token has twice would be another one's list.
        tl.store(its + behind - 1, pair, mask=is_its & (behind <= T))
        found = tl.max(behind)
    tl.store(counts + expert, tl.minimum(found, T))


@triton.jit
def columns_of(
    index,
    pairs,
    counts,
    T,
    C: tl.constexpr,
    BY_PAIR: tl.constexpr,
    LISTED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    FROM: tl.constexpr,
):
    """The expert of a program, and for each of its columns a token, its pair, and whether that expert is one of its own.

    A program (_, group, part) has a group of tokens and a part of these. A group is an expert; or, BY_PAIR, where these are fewer, a
    token and one of its experts. Of several pairs with one expert the first serves them all. FROM: a cache modifier, for a program that
    has not waited yet.
    """
    column = tl.arange(0, BLOCK_T)
    group = tl.program_id(1)
    if LISTED:
        column += tl.program_id(2) * BLOCK_T
        is_its = column < tl.load(counts + group, cache_modifier=FROM)
        at = pairs + group * T + column
        pair = tl.load(at, mask=is_its, other=0, cache_modifier=FROM)
        return group, pair // C, pair, is_its
    expert = group
    if BY_PAIR:
        expert = tl.load(index + group, cache_modifier=FROM).to(tl.int32)
    place = tl.full((BLOCK_T,), -1, dtype=tl.int32)
    for number in tl.static_range(C):
        at = index + column * C + number
        chosen = tl.load(at, mask=column < T, other=-1, cache_modifier=FROM).to(tl.int32)
        place = tl.where(chosen == expert, number, place)
    if BY_PAIR:
        first = tl.min(tl.where(place >= 0, column, T))
        place = tl.where(first == group // C, place, -1)
    return expert, column, column * C + tl.maximum(place, 0), place >= 0


@triton.jit
def clamped(gate, up, alpha, limit):
    """The gate of gpt-oss between two products. Bounds leave a number that is none what it is, as torch's do."""
    ALL: tl.constexpr = tl.PropagateNan.ALL
    gate = tl.minimum(gate, limit, propagate_nan=ALL)
    up = tl.minimum(tl.maximum(up, -limit, propagate_nan=ALL), limit, propagate_nan=ALL)
    return gate * tl.sigmoid(gate * alpha) * (up + 1.0)


@triton.jit
def between(gate, up, alpha, limit, TURNS: tl.constexpr, ACT: tl.constexpr, DTYPE: tl.constexpr):
    """Inputs of the second product, in DTYPE, made of gates and values in float32 and rounded where the modelling code rounds."""
    gate, up = gate.to(DTYPE).to(tl.float32), up.to(DTYPE).to(tl.float32)
    if TURNS:
        return clamped(gate, up, alpha, limit).to(DTYPE)
    else:
        return (activated(gate, ACT).to(DTYPE).to(tl.float32) * up).to(DTYPE)


@triton.jit(do_not_specialize=("T",))
def _expert_gated(
    x,  # [T, K]
    weight,  # [E, 2 F, K], gates first; TURNS: [E, K, 2 F], gates and values in turns
    bias,  # [E, 2 F], or nothing
    index,  # [T, C]
    pairs,
    counts,
    out,  # [T, C, F]
    T,
    F,
    K,
    alpha,
    limit,
    C: tl.constexpr,
    BY_PAIR: tl.constexpr,
    LISTED: tl.constexpr,
    TURNS: tl.constexpr,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    EVEN: tl.constexpr,  # whole tiles of inputs
    DOT: tl.constexpr,  # the dtype that products are made in
    BLOCK_F: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_T: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, group, part of the group's tokens)."""
    f = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    k = tl.arange(0, BLOCK_K)
    take_over(OVERLAP)
    expert, token, pair, is_chosen = columns_of(
        index, pairs, counts, T, C, BY_PAIR, LISTED, BLOCK_T, ""
    )
    if tl.max(is_chosen.to(tl.int32)) == 0:
        return
    here = weight + expert.to(tl.int64) * 2 * F * K
    x_at = x + token[None, :] * K + k[:, None]
    if TURNS:
        both = tl.program_id(0) * (2 * BLOCK_F) + tl.arange(0, 2 * BLOCK_F)
        w_at = here + k[:, None] * (2 * F) + both[None, :]
        is_both = (both < 2 * F)[None, :]
        acc = tl.zeros((2 * BLOCK_F, BLOCK_T), dtype=tl.float32)
        for at in range(0, K, BLOCK_K):
            is_k = (at + k < K)[:, None]
            w = tl.load(
                w_at + at * 2 * F, mask=is_k & is_both, other=0.0, eviction_policy="evict_first"
            )
            v = tl.load(x_at + at, mask=is_k & is_chosen[None, :], other=0.0).to(DOT)
            acc = tl.dot(tl.trans(w).to(DOT), v, acc, input_precision="ieee")
        acc = tl.reshape(acc, (BLOCK_F, 2, BLOCK_T))
        gate, up = tl.split(tl.permute(acc, (0, 2, 1)))
    else:
        row = here + tl.minimum(f, F - 1)[:, None] * K + k[None, :]
        behind = F.to(tl.int64) * K
        gate = tl.zeros((BLOCK_F, BLOCK_T), dtype=tl.float32)
        up = tl.zeros((BLOCK_F, BLOCK_T), dtype=tl.float32)
        for at in range(0, K, BLOCK_K):
            if EVEN:
                w = tl.load(row + at, eviction_policy="evict_first")
                w_up = tl.load(row + behind + at, eviction_policy="evict_first")
                v = tl.load(x_at + at, mask=is_chosen[None, :], other=0.0).to(DOT)
            else:
                is_k = at + k < K
                w = tl.load(row + at, mask=is_k[None, :], other=0.0)
                w_up = tl.load(row + behind + at, mask=is_k[None, :], other=0.0)
                v = tl.load(x_at + at, mask=is_chosen[None, :] & is_k[:, None], other=0.0).to(DOT)
            gate = tl.dot(w.to(DOT), v, gate, input_precision="ieee")
            up = tl.dot(w_up.to(DOT), v, up, input_precision="ieee")

    if BIAS:
        biases = bias + expert * 2 * F
        at_gate, at_up = (2 * f, 2 * f + 1) if TURNS else (f, F + f)
        gate += tl.load(biases + at_gate, mask=f < F, other=0.0).to(tl.float32)[:, None]
        up += tl.load(biases + at_up, mask=f < F, other=0.0).to(tl.float32)[:, None]
    inner = between(gate, up, alpha, limit, TURNS, ACT, out.dtype.element_ty)
    where = pair[None, :] * F + f[:, None]
    tl.store(out + where, inner, mask=(f < F)[:, None] & is_chosen[None, :])


@triton.jit(do_not_specialize=("T",))
def _expert_down(
    inner,  # [T, C, F]
    weight,  # [E, N, F]; TURNED: [E, F, N]
    bias,  # [E, N], or nothing
    index,  # [T, C]
    pairs,
    counts,
    shares,  # [T, C]
    out,  # [C, T, N] float32
    T,
    N,
    F,
    C: tl.constexpr,
    BY_PAIR: tl.constexpr,
    LISTED: tl.constexpr,
    TURNED: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_T: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (tile of outputs, group, part of the group's tokens)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    f = tl.arange(0, BLOCK_F)
    take_over(OVERLAP)
    expert, _, pair, is_chosen = columns_of(
        index, pairs, counts, T, C, BY_PAIR, LISTED, BLOCK_T, ""
    )
    if tl.max(is_chosen.to(tl.int32)) == 0:
        return
    here = weight + expert.to(tl.int64) * N * F
    v_at = inner + pair[None, :] * F + f[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    if TURNED:
        w_at = here + f[:, None] * N + n[None, :]
        is_n = (n < N)[None, :]
        for at in range(0, F, BLOCK_F):
            is_f = (at + f < F)[:, None]
            w = tl.load(w_at + at * N, mask=is_f & is_n, other=0.0, eviction_policy="evict_first")
            v = tl.load(v_at + at, mask=is_f & is_chosen[None, :], other=0.0).to(DOT)
            acc = tl.dot(tl.trans(w).to(DOT), v, acc, input_precision="ieee")
    else:
        row = here + tl.minimum(n, N - 1)[:, None] * F + f[None, :]
        for at in range(0, F, BLOCK_F):
            if EVEN:
                w = tl.load(row + at, eviction_policy="evict_first")
                v = tl.load(v_at + at, mask=is_chosen[None, :], other=0.0).to(DOT)
            else:
                is_f = at + f < F
                w = tl.load(row + at, mask=is_f[None, :], other=0.0)
                v = tl.load(v_at + at, mask=is_chosen[None, :] & is_f[:, None], other=0.0).to(DOT)
            acc = tl.dot(w.to(DOT), v, acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias + expert * N + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    acc *= tl.load(shares + pair, mask=is_chosen, other=0.0).to(tl.float32)[None, :]
    where = (pair % C * T + pair // C)[None, :] * N + n[:, None]
    tl.store(out + where, acc, mask=(n < N)[:, None] & is_chosen[None, :])


@triton.jit(do_not_specialize=("T",))
def _add_up(
    parts,  # [C, T, N]
    out,  # [T, N]
    T,
    N,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program (token, tile of outputs)."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    take_over(OVERLAP)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in tl.static_range(C):
        at = parts + (number * T + token) * N + n
        total += tl.load(at, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + token * N + n, total.to(out.dtype.element_ty), mask=n < N)


def choose(
    logits: Tensor,
    chosen: int,
    *,
    even: bool = True,
    dtype: torch.dtype | None = None,
    scoring: Scoring = Scoring(),  # noqa: B008  # is never changed
    correction: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Logits [T, E] -> shares [T, C] of this dtype or that of the logits, and experts [T, C] int64, the likeliest first.

    Scores are a softmax over all experts, or what `scoring` says; the likeliest are those whose score and `correction` [E] add
    up to most. Shares are their scores, made to add up to 1 if `even`, which is a softmax over the chosen ones.
    """
    tokens, experts = logits.shape
    number, kept, best = scoring.groups or (1, 1, 1)
    assert chosen <= min(MOST_CHOSEN, experts // number * kept), (chosen, experts, scoring)
    assert experts <= MOST_EXPERTS, experts
    logits = logits.contiguous()
    shares = logits.new_empty(tokens, chosen, dtype=dtype)
    index = places(tokens, chosen, device=logits.device, dtype=torch.int64)
    if tokens:
        kernel: Any = _choose
        kernel[(tokens,)](
            *(logits, logits if correction is None else correction.contiguous(), shares, index),
            *(experts, scoring.least, scoring.added, scoring.scale),
            C=chosen,
            SIGMOID=scoring.by_sigmoid,
            CORRECTED=correction is not None,
            GROUPS=number,
            KEPT=kept,
            BEST=best,
            EVEN=even,
            PLACES=power_of_two(chosen),
            ROWS=power_of_two(number),
            BLOCK=power_of_two(experts // number),
            num_warps=1,
            **launch_options(logits.device),
        )
    return shares, index


def distinct(index: Tensor, shares: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Index and shares [T, C] that give the same sums, and in which no token has an expert twice; there are C experts or more."""
    tokens, chosen = index.shape
    assert chosen <= min(MOST_CHOSEN, num_experts), (chosen, num_experts)
    index, shares = index.contiguous(), shares.contiguous()
    others = places(tokens, chosen, device=index.device, dtype=index.dtype)
    weighed = torch.empty_like(shares)
    if tokens:
        kernel: Any = _distinct
        kernel[(tokens,)](
            *(index, shares, others, weighed, num_experts),
            C=chosen,
            PLACES=power_of_two(chosen),
            BLOCK=power_of_two(num_experts),
            num_warps=4,
            **launch_options(index.device),
        )
    return others, weighed


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
    """X [T, K] through the experts `index` [T, C] of each token, weighed by `shares` [T, C] -> [T, N], for up to 1024 tokens.

    `in_parts`: what each of them gives instead, weighed, [C, T, N] in float32, whose sum that is; behind them room for so many
    parts `beside`, which are left to the caller.
    Weights [E, 2 F, K] and [E, N, F]; of a `clamped` gate [E, K, 2 F] and [E, F, N]. The experts of a token are different ones (`distinct`).
    """
    tokens, inputs = x.shape
    num_experts, chosen = len(gate_up.weight), index.shape[1]
    turns = gate.clamped is not None
    width, outputs = down.weight.shape[1:] if turns else down.weight.shape[:0:-1]
    assert tokens <= MOST_TOKENS, tokens
    assert chosen <= MOST_CHOSEN, chosen
    assert in_parts or not beside, beside
    parts = torch.empty(chosen + beside, tokens, outputs, dtype=torch.float32, device=x.device)
    out = parts if in_parts else x.new_empty(tokens, outputs)
    if not tokens:
        return out
    x, index, shares = x.contiguous(), index.contiguous(), shares.contiguous()
    inner = x.new_empty(tokens, chosen, width)
    overlap = launch_options(x.device)
    listed = tokens > _MOST_LOOKED_UP
    lists = list_pairs(index, num_experts) if listed else (index, index)
    groups = num_experts if listed else min(num_experts, tokens * chosen)
    columns = _num_columns(tokens, chosen, num_experts)
    num_parts = cdiv(tokens, columns) if listed else 1
    common = {
        "C": chosen,
        "BY_PAIR": groups < num_experts,
        "LISTED": listed,
        "DOT": dot_dtype(x),
        "BLOCK_T": columns,
        **overlap,
    }
    first, second = tiles or choose_tiles(columns, gate)
    room = shared_memory(x.device)
    first, second = (
        first.fitted(room, columns, gated=True),
        second.fitted(room, columns, gated=False),
    )
    alpha, limit = gate.clamped or (0.0, 0.0)
    kernel: Any = _expert_gated
    kernel[(cdiv(width, first.outputs), groups, num_parts)](
        *(x, gate_up.weight, x if gate_up.bias is None else gate_up.bias, index, *lists, inner),
        *(tokens, width, inputs, alpha, limit),
        TURNS=turns,
        BIAS=gate_up.bias is not None,
        ACT=ACTIVATIONS[gate.activation],
        EVEN=inputs % first.inputs == 0,
        BLOCK_F=first.outputs,
        BLOCK_K=first.inputs,
        num_warps=first.warps,
        num_stages=first.stages,
        **common,
    )
    kernel = _expert_down
    kernel[(cdiv(outputs, second.outputs), groups, num_parts)](
        *(inner, down.weight, x if down.bias is None else down.bias, index, *lists, shares),
        *(parts, tokens, outputs, width),
        TURNED=turns,
        BIAS=down.bias is not None,
        EVEN=width % second.inputs == 0,
        BLOCK_N=second.outputs,
        BLOCK_F=second.inputs,
        num_warps=second.warps,
        num_stages=second.stages,
        **common,
    )
    return out if in_parts else add_up(parts, out)


def add_up(parts: Tensor, out: Tensor) -> Tensor:
    """Sums, into out [T, N], of what the experts of each token give: parts [C, T, N], added in float32 in their order."""
    chosen, tokens, outputs = parts.shape
    kernel: Any = _add_up
    kernel[(tokens, cdiv(outputs, _SUMS))](
        *(parts, out, tokens, outputs),
        C=chosen,
        BLOCK=_SUMS,
        num_warps=4,
        **launch_options(parts.device),
    )
    return out


def list_pairs(index: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """The pairs of a token and a place [E, T] that have each expert of `index` [T, C], the first ones first, and their number [E]."""
    tokens, chosen = index.shape
    pairs = places(num_experts, tokens, device=index.device)
    counts = places(num_experts, device=index.device)
    block, warps = _LISTED, _LISTING_WARPS
    if tokens <= MOST_TOKENS:
        block, warps = min(block, power_of_two(tokens * chosen)), 4
    kernel: Any = _list
    kernel[(num_experts,)](
        *(index, pairs, counts, tokens),
        C=chosen,
        BLOCK=block,
        num_warps=warps,
        **launch_options(index.device),
    )
    return pairs, counts


def places(*size: int, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    """Room for integers by which the next kernel finds weights and tokens; zeros where the one that writes them may not run."""
    make = torch.zeros if may_launch_nothing() else torch.empty
    return make(*size, dtype=dtype, device=device)


def _num_columns(tokens: int, chosen: int, num_experts: int) -> int:
    """Columns of a tile: all tokens, or of listed ones about twice as many as an expert has if all have as many."""
    if tokens <= _MOST_LOOKED_UP:
        return _LEAST_COLUMNS
    twice = power_of_two(2 * tokens * chosen // num_experts)
    return min(_MOST_COLUMNS, max(_LEAST_LISTED, twice))


def choose_tiles(columns: int, gate: ExpertGate) -> tuple[Tiles, Tiles]:
    """The tiles of both products that were fastest on an H200 (benchmarks/results/experts_tiles.json)."""
    is_few = columns <= _MOST_LOOKED_UP
    if gate.clamped is not None:
        return (_IN_TURNS if is_few else _LISTED_IN_TURNS), _USUAL
    return (_FEW_GATED, _USUAL) if is_few else (_USUAL, _LISTED_DOWN)

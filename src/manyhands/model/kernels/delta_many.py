"""Many tokens of a row through a layer that keeps a state: the gated delta rule by chunks (arXiv 2412.06464, sections 3.2 and 3.3).

    convolve    the short convolution over a row's last inputs and its new ones, and an activation
    rule        within all chunks at once: the triangular system of each, inverted, and what its queries see of its keys;
                from chunk to chunk: the state of each row;  behind both: the norm with its gate

A state is changed by every token, and each token subtracts what the state before it predicts. Within a chunk of 64 tokens that is a
triangular system. With G[i, j] the logarithms of the decays behind token j up to token i, summed up, G[i] those of all up to i, and S the
state in front of the chunk:

    L[i, j] = b_i (k_i . k_j) e^G[i, j]  for j < i     new = (1 + L)^-1 b (V - e^G K S)
    M[i, j] =     (q_i . k_j) e^G[i, j]  for j <= i    out = e^G Q S + M new      S' = e^G[last] S + (e^G[last, i] K)^T new

(1 + L)^-1 and M know nothing of the state, so all chunks and heads make theirs at once (`_delta_solve`). What is left in sequence are five
products a chunk (`_delta_scan`). A program of that has some columns of one head's state in registers from the first chunk to the last: columns
know nothing of each other, so 32 heads of 128 dims are 128 programs. The paper multiplies (1 + L)^-1 with V and with K ahead of the state
(U and W). Here the inverse itself is multiplied with the difference: one small product more in sequence, for two large ones and most of the
memory between both kernels. The norm needs all columns of a head, so it has a launch of its own (`_delta_gate`).

The inverse is made from blocks of two to blocks of 64: with X that of all blocks of a size and B what stands below them in those of twice
that size, it is X - X B X. That is substitution: every X is the inverse of a part. The powers of L, which one might sum up instead, grow beyond all
digits where keys are alike, as in a text that repeats itself. Of G each number is a sum of its own, by a product with ones: a difference of sums
from the first token on loses what is small behind what is large (a ten thousandth of a state, against float64).

Numbers are rounded where the modelling code rounds them: behind the convolution, behind the rule and in the midst of the norm. In between they
are float32, and the lengths of queries and keys are divided out behind the products. How they are multiplied follows the network's dtype:

    bfloat16  float16    the system in three products of tf32, which is about float32; then states and what is new as two numbers of bfloat16
                         each (16 bits), with queries and keys as they are: a state ends 1e-5 to 1e-4 of its largest number from float64
    float32              one number at a time (ieee)

A row may have begun in an earlier launch, and one launch has no more than `MOST_CHUNKS` chunks, which bounds the memory between the kernels. Chunks
and rows are told in integers (`model/waves.py`).

    T  tokens of the pass, row by row      C  channels of the convolution: q, k and v of all heads      K  its taps      S  slots
    Hk, H  heads of keys, and of values and states      Dk, Dv  dims of a key and of a value      N  chunks      R  rows
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
from manyhands.model.kernels.delta import DeltaProducts, log_decay, normed
from manyhands.model.kernels.skinny import dot_dtype
from manyhands.model.waves import CHUNK, COLUMNS

_TOKENS, _CHANNELS = 16, 128  # of a program of the convolution
_PART = 32  # columns of a state, in a program
_SCALES = 4
_WARPS_OF_FLOAT32 = 16  # products without tensor cores: fewer have no room in their registers
# In how many parts of bfloat16 a number of the network is multiplied; 0: in float32, as it is.
_PARTS = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 0}


@triton.jit
def _convolve_many(
    x, weight, inputs, sources, targets, chunks, out,
    x_token, C, TAPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    chunk = chunks + tl.program_id(0) * COLUMNS
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has = at < C
    DTYPE: tl.constexpr = out.dtype.element_ty
    PAST: tl.constexpr = TAPS - 1
    begin, count = tl.load(chunk).to(tl.int64), tl.load(chunk + 1)
    before, row, is_last = tl.load(chunk + 2), tl.load(chunk + 3), tl.load(chunk + 4)
    source = inputs + tl.load(sources + row) * C * PAST + at * PAST
    target = inputs + tl.load(targets + row) * C * PAST + at * PAST
    i = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    here = (i < count)[:, None] & has[None, :]
    here_x = x + begin * x_token + at
    total = tl.load(here_x[None, :] + i[:, None] * x_token, mask=here, other=0.0).to(tl.float32)
    total *= tl.load(weight + at * TAPS + PAST, mask=has, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(PAST):
        back = (
            i - PAST + tap
        )  # from the chunk's first token; before the row's first one its last inputs lie
        is_new = (before + back >= 0)[:, None]
        is_old = (before + back < 0)[:, None]
        new = tl.load(here_x[None, :] + back[:, None] * x_token, mask=here & is_new, other=0.0)
        old = source[None, :] + (PAST + before + back)[:, None]
        old = tl.load(old, mask=here & is_old, other=0.0)
        scaled = tl.load(weight + at * TAPS + tap, mask=has, other=0.0).to(tl.float32)
        total += tl.where(is_new, new, old).to(tl.float32) * scaled[None, :]
    total = total.to(DTYPE).to(tl.float32)
    to = out + begin * C + i[:, None] * C + at[None, :]
    tl.store(to, (total * tl.sigmoid(total)).to(DTYPE), mask=here)
    if (is_last != 0) & (tl.program_id(2) == 0):
        for tap in tl.static_range(PAST):
            ahead = tl.zeros_like(at) + (count - PAST + tap)
            is_left = before + ahead >= 0
            kept = tl.load(here_x + ahead * x_token, mask=has & is_left, other=0.0)
            past = source + PAST + before + ahead
            past = tl.load(past, mask=has & (before + ahead < 0), other=0.0)
            tl.store(target + tap, tl.where(is_left, kept, past), mask=has)


@triton.jit
def _parts(x, DOT: tl.constexpr, PARTS: tl.constexpr):
    """Two numbers of bfloat16 that add up to one of float32, but for its last 8 bits; it alone, twice, where it is multiplied whole."""
    if PARTS:
        high = x.to(tl.bfloat16)
        return high.to(DOT), (x - high.to(tl.float32)).to(tl.bfloat16).to(DOT)
    else:
        return x, x


@triton.jit
def _product(left, right, total, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """`total` with the product of both, which are given in parts; the lower ones of both are left out, and of one part the left one's."""
    if PARTS:
        total = tl.dot(left[0], right[1], total)
        if PARTS > 1:
            total = tl.dot(left[1], right[0], total)
        return tl.dot(left[0], right[0], total)
    else:
        return tl.dot(left[0], right[0], total, input_precision=PRECISION)


@triton.jit
def _network(x, DOT: tl.constexpr, PARTS: tl.constexpr):
    """Numbers of the network's dtype, in as many parts as they are: bfloat16 is one."""
    if PARTS == 1:
        return x.to(DOT), x.to(DOT)
    else:
        return _parts(x.to(tl.float32), DOT, PARTS)


@triton.jit
def _leave(room, square, tile, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """Write a square in parts, one behind the other, or whole."""
    if PARTS:
        high, low = _parts(tile, tl.bfloat16, PARTS)
        tl.store(room + square, high)
        tl.store(room + SIZE + square, low)
    else:
        tl.store(room + square, tile)


@triton.jit
def _left(room, square, SIZE: tl.constexpr, DOT: tl.constexpr, PARTS: tl.constexpr):
    """A square that was left, in parts."""
    if PARTS:
        return tl.load(room + square).to(DOT), tl.load(room + SIZE + square).to(DOT)
    else:
        whole = tl.load(room + square)
        return whole, whole


@triton.jit
def _delta_solve(
    qkv, a, b, decay, bias, chunks, solved, seen, scales,
    a_token, b_token, scale, C, H: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, WIDTH_K: tl.constexpr,
    CHUNK: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    number = tl.program_id(0)
    head = tl.program_id(1)
    DTYPE: tl.constexpr = qkv.dtype.element_ty
    KEYS: tl.constexpr = (H // GROUP) * DK
    begin = tl.load(chunks + number * COLUMNS).to(tl.int64)
    count = tl.load(chunks + number * COLUMNS + 1)
    i = tl.arange(0, CHUNK)
    of_k = tl.arange(0, WIDTH_K)
    here = i < count
    token = begin + i
    into = tl.load(a + token * a_token + head, mask=here, other=0.0).to(tl.float32)
    rate = tl.load(decay + head).to(tl.float32)
    g = log_decay(into, tl.load(bias + head).to(tl.float32), rate)
    # A number below the least one of float32 is nothing in any case.
    g = tl.where(here, tl.maximum(g, -104.0), 0.0)
    beta = tl.sigmoid(tl.load(b + token * b_token + head, mask=here, other=0.0).to(tl.float32))
    beta = tl.where(here, beta.to(DTYPE).to(tl.float32), 0.0)
    # Logarithms are summed up from token to token: differences of sums from the first one on lose what is small behind what is large.
    is_behind = i[:, None] >= i[None, :]
    is_after = i[:, None] > i[None, :]
    ones = is_behind.to(SUM)
    high = g.to(tl.bfloat16)
    rest = g - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    between = tl.dot(ones, tl.where(is_after, low.to(SUM)[:, None], 0.0).to(SUM))
    between = tl.dot(ones, tl.where(is_after, middle.to(SUM)[:, None], 0.0).to(SUM), between)
    between = tl.dot(ones, tl.where(is_after, high.to(SUM)[:, None], 0.0).to(SUM), between)
    to_last = tl.sum(tl.where(i[:, None] == CHUNK - 1, between, 0.0), 0)
    kept = tl.exp(tl.where(is_behind, between, float("-inf")))

    mask = here[:, None] & (of_k < DK)[None, :]
    own = qkv + begin * C + (head // GROUP) * DK + (i[:, None] * C + of_k[None, :])
    k = tl.load(own + KEYS, mask=mask, other=0.0)
    of_key = k.to(tl.float32)
    of_key = tl.rsqrt(tl.sum(of_key * of_key, 1) + 1e-6)
    kept *= of_key[None, :]
    k = k.to(DOT)
    turned = tl.trans(k)
    below = tl.dot(k, turned, input_precision=PRECISION) * kept * (beta * of_key)[:, None]
    below = tl.where(is_after, below, 0.0)
    q = tl.load(own, mask=mask, other=0.0)
    of_query = q.to(tl.float32)
    of_query = tl.rsqrt(tl.sum(of_query * of_query, 1) + 1e-6) * scale
    views = tl.dot(q.to(DOT), turned, input_precision=PRECISION) * kept * of_query[:, None]
    block = (number * H + head).to(tl.int64)
    SIZE: tl.constexpr = CHUNK * CHUNK
    ROOM: tl.constexpr = 2 * SIZE if PARTS else SIZE
    square = i[:, None] * CHUNK + i[None, :]
    _leave(seen + block * ROOM, square, views, SIZE, PARTS)
    # Blocks of two.
    is_same = (i[:, None] >> 1) == (i[None, :] >> 1)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(is_same, below, 0.0)
    for level in range(1, LEVELS):
        is_same = (i[:, None] >> (level + 1)) == (i[None, :] >> (level + 1))
        is_apart = (i[:, None] >> level) != (i[None, :] >> level)
        between = tl.where(is_same & is_apart, below, 0.0)
        between = tl.dot(between, inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, between, input_precision=PRECISION)
    _leave(solved + block * ROOM, square, inverse * beta[None, :], SIZE, PARTS)
    forward = tl.cumsum(g, 0)
    last = tl.sum(g, 0)
    forward = tl.exp(forward)
    to = scales + block * 4 * CHUNK + i
    tl.store(to, forward * of_key)
    tl.store(to + CHUNK, forward * of_query)
    tl.store(to + 2 * CHUNK, tl.exp(to_last) * of_key)
    tl.store(to + 3 * CHUNK, tl.exp(last + tl.zeros_like(g)))


@triton.jit
def _delta_scan(
    qkv, solved, seen, scales, pieces, states, sources, targets, out,
    C, H: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    WIDTH_K: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    head = tl.program_id(1)
    piece = pieces + tl.program_id(2) * COLUMNS
    DTYPE: tl.constexpr = out.dtype.element_ty
    KEYS: tl.constexpr = (H // GROUP) * DK
    begin, count, chunk = tl.load(piece).to(tl.int64), tl.load(piece + 1), tl.load(piece + 2)
    row, has_begun = tl.load(piece + 3), tl.load(piece + 4)
    target = tl.load(targets + row)
    source = tl.where(has_begun != 0, target, tl.load(sources + row))
    i = tl.arange(0, CHUNK)
    of_k = tl.arange(0, WIDTH_K)
    of_v = tl.program_id(0) * PART + tl.arange(0, PART)
    has_k = of_k < DK
    has_v = of_v < DV
    at = head * DK * DV + of_k[:, None] * DV + of_v[None, :]
    mask = has_k[:, None] & has_v[None, :]
    state = tl.load(states + source * H * DK * DV + at, mask=mask, other=0.0)
    SIZE: tl.constexpr = CHUNK * CHUNK
    ROOM: tl.constexpr = 2 * SIZE if PARTS else SIZE
    square = i[:, None] * CHUNK + i[None, :]
    for first in range(0, count, CHUNK):
        here = first + i < count
        own = qkv + (begin + first) * C + (head // GROUP) * DK
        own += i[:, None] * C + of_k[None, :]
        of_keys = here[:, None] & has_k[None, :]
        of_values = here[:, None] & has_v[None, :]
        k = _network(tl.load(own + KEYS, mask=of_keys, other=0.0), DOT, PARTS)
        q = _network(tl.load(own, mask=of_keys, other=0.0), DOT, PARTS)
        v = qkv + (begin + first) * C + 2 * KEYS + head * DV
        v += i[:, None] * C + of_v[None, :]
        v = tl.load(v, mask=of_values, other=0.0).to(tl.float32)
        block = (chunk * H + head).to(tl.int64)
        of_chunk = scales + block * 4 * CHUNK + i
        none = tl.zeros((CHUNK, PART), tl.float32)
        parts = _parts(state, DOT, PARTS)
        known = _product(k, parts, none, PARTS, PRECISION) * tl.load(of_chunk)[:, None]
        told = _product(q, parts, none, PARTS, PRECISION) * tl.load(of_chunk + CHUNK)[:, None]
        parts = _parts(v - known, DOT, PARTS)
        inverse = _left(solved + block * ROOM, square, SIZE, DOT, PARTS)
        new = _product(inverse, parts, none, 2 if PARTS else 0, PRECISION)
        parts = _parts(new, DOT, PARTS)
        views = _left(seen + block * ROOM, square, SIZE, DOT, PARTS)
        told = _product(views, parts, told, 2 if PARTS else 0, PRECISION)
        to = out + ((begin + first) * H + head) * DV + (i[:, None] * (H * DV) + of_v[None, :])
        tl.store(to, told.to(DTYPE), mask=of_values)
        parts = _parts(new * tl.load(of_chunk + 2 * CHUNK)[:, None], DOT, PARTS)
        state *= tl.load(scales + block * 4 * CHUNK + 3 * CHUNK)
        turned = tl.trans(k[0]), tl.trans(k[1])
        state = _product(turned, parts, state, PARTS, PRECISION)
        chunk += 1
    tl.store(states + target * H * DK * DV + at, state, mask=mask)


@triton.jit
def _delta_gate(
    told, gate, weight, chunks,
    gate_token, eps, H: tl.constexpr, DV: tl.constexpr, WIDTH_V: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    take_over(OVERLAP)
    chunk = chunks + tl.program_id(0) * COLUMNS
    head = tl.program_id(1)
    DTYPE: tl.constexpr = told.dtype.element_ty
    begin, count = tl.load(chunk).to(tl.int64), tl.load(chunk + 1)
    i = tl.arange(0, CHUNK)
    of_v = tl.arange(0, WIDTH_V)
    has_v = of_v < DV
    mask = (i < count)[:, None] & has_v[None, :]
    at = ((begin + i) * H + head)[:, None] * DV + of_v[None, :]
    own = tl.load(told + at, mask=mask, other=0.0).to(tl.float32)
    of_gate = ((begin + i) * gate_token + head * DV)[:, None] + of_v[None, :]
    z = tl.load(gate + of_gate, mask=mask, other=0.0).to(tl.float32)
    scaled = tl.load(weight + of_v, mask=has_v, other=0.0).to(tl.float32)[None, :]
    tl.store(told + at, normed(own, z, scaled, eps, DV, DTYPE), mask=mask)


def convolve(
    x: Tensor,
    weight: Tensor,
    inputs: Tensor,
    sources: Tensor,
    targets: Tensor,
    chunks: Tensor,
    out: Tensor,
) -> None:
    """The silu of the convolution of each row's last inputs and its tokens of `x` [T, C], into `out` [T, C], both of one dtype.

    `weight` [C, K]. `inputs` [S, C, K - 1], in x's dtype, has the last inputs in slots; `sources` and `targets` [R] int64 name them.
    Tokens of `x` may stand apart from each other, all else is contiguous.
    `chunks` [N, COLUMNS] int32 are all chunks of these rows.
    """
    channels = x.shape[1]
    kernel: Any = _convolve_many
    kernel[(len(chunks), cdiv(channels, _CHANNELS), CHUNK // _TOKENS)](
        *(x, weight, inputs, sources, targets, chunks, out, x.stride(0), channels),
        TAPS=weight.shape[1],
        TOKENS=_TOKENS,
        COLUMNS=COLUMNS,
        BLOCK=_CHANNELS,
        num_warps=4,
        **launch_options(x.device),
    )


def rule(
    made: DeltaProducts,
    states: Tensor,
    sources: Tensor,
    targets: Tensor,
    chunks: Tensor,
    pieces: Tensor,
    out: Tensor,
) -> None:
    """The rule for the tokens of these chunks, normed and gated, into `out` [T, H Dv], contiguous and in qkv's dtype.

    `states` [S, H, Dk, Dv] float32 are in slots; `sources` and `targets` [R] int64 name them. `chunks` [N, COLUMNS] and `pieces`
    [rows of these chunks, COLUMNS] int32. Between the
    kernels stand two squares and four scales of each chunk and head, 33 KiB: 52 MB of 48 heads and as many chunks as a launch may have
    (`model/waves.py::MOST_CHUNKS`), however many tokens the pass has.
    """
    device, count = out.device, len(chunks)
    _, heads, dim_k, dim_v = states.shape
    wide_k, wide_v = max(16, power_of_two(dim_k)), power_of_two(dim_v)
    part = max(16, min(_PART if wide_k <= 128 else _PART // 2, wide_v))
    parts, precision = _PARTS[made.qkv.dtype], "tf32x3" if _PARTS[made.qkv.dtype] else "ieee"
    own = dot_dtype(made.qkv) if parts else tl.float32
    halves = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16
    # Two squares each: of float32, or of two parts.
    room, kind = (2, torch.bfloat16) if parts else (1, torch.float32)
    squares = torch.empty(2, count, heads, room, CHUNK, CHUNK, dtype=kind, device=device)
    scales = torch.empty(count, heads, _SCALES, CHUNK, dtype=torch.float32, device=device)
    channels = made.qkv.shape[1]
    of_keys = {"H": heads, "GROUP": heads // made.key_heads, "DK": dim_k, "WIDTH_K": wide_k}
    options = {"CHUNK": CHUNK, **launch_options(device)}
    solve: Any = _delta_solve
    solve[(count, heads)](
        *(made.qkv, made.a, made.b, made.decay, made.bias, chunks),
        *(*squares.unbind(), scales, *made.apart[1:], dim_k**-0.5, channels),
        **of_keys,
        LEVELS=CHUNK.bit_length() - 1,
        COLUMNS=COLUMNS,
        PRECISION=precision,
        DOT=own,
        SUM=halves,
        PARTS=parts,
        num_warps=4 if parts else _WARPS_OF_FLOAT32,
        **options,
    )
    scan: Any = _delta_scan
    scan[(cdiv(dim_v, part), heads, len(pieces))](
        *(made.qkv, *squares.unbind(), scales, pieces, states, sources, targets, out, channels),
        **of_keys,
        DV=dim_v,
        PART=part,
        COLUMNS=COLUMNS,
        PRECISION=precision,
        DOT=halves if parts else tl.float32,
        PARTS=parts,
        num_warps=4 if parts else _WARPS_OF_FLOAT32,
        num_stages=2 if parts and wide_k <= 128 else 1,
        **options,
    )
    gate: Any = _delta_gate
    gate[(count, heads)](
        *(out, made.gate, made.weight, chunks, made.apart[0], made.eps),
        H=heads,
        DV=dim_v,
        WIDTH_V=wide_v,
        COLUMNS=COLUMNS,
        num_warps=4,
        **options,
    )

"""Carry tokens to other slots, in all layers of one shape: one launch, however many blocks move.

N  tokens that move      L  layers      S  slots      G  key/value heads      D, Dv  head dims
F  kinds of rotation among the layers
"""

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.attention.kernels.eight_bits import rounded
from manyhands.attention.kernels.mixing import mixed
from manyhands.attention.kernels.pairs import columns, loaded, parted, turned


@triton.jit(do_not_specialize_on_alignment=("sources", "targets"))  # rows of one piece
def move_kernel(
    keys,  # [L, S, G, D]
    values,  # [L, S, G, Dv]
    key_scales,  # [L, S, G] float32, touched by nothing unless EIGHT_BITS
    value_scales,
    sources,  # [N]
    targets,  # [N]
    cos,  # [N, F, D / 2] float32, of the shifts
    sin,
    kind,  # [L]: which of the F
    num_kinds,
    num_slots,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,  # heads of one program
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    EIGHT_BITS: tl.constexpr,  # keys and values are int8, with scales
    MIXINGS: tl.constexpr,  # stages in which dims of keys are mixed, see mixing.py; 0: they are not
    KEY_STRIDE: tl.constexpr,  # from one key in memory to the next; latents lie between keys
    VALUE_STRIDE: tl.constexpr,
):
    """Program (token, layer, block of heads)."""
    token, layer = tl.program_id(0), tl.program_id(1)
    first = layer.to(tl.int64) * num_slots
    source = (first + tl.load(sources + token)) * NUM_HEADS
    target = (first + tl.load(targets + token)) * NUM_HEADS
    table_at = (token.to(tl.int64) * num_kinds + tl.load(kind + layer)) * (HEAD_DIM // 2)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    is_head = (head < NUM_HEADS)[:, None]

    key_at = keys + (source + head[:, None]) * KEY_STRIDE
    if MIXINGS:  # mixed once more, a key is what it was
        own = tl.arange(0, HEAD_DIM)[None, :]
        stored = tl.load(key_at + own, mask=is_head, other=0).to(tl.float32)
        x, y = parted(mixed(stored, HEAD_DIM, MIXINGS), INTERLEAVED, HALF)
    else:
        x, y = loaded(key_at, is_head, HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)
    key = turned(x, y, is_head, cos + table_at, sin + table_at, HEAD_DIM, INTERLEAVED, HALF)
    if EIGHT_BITS:
        if MIXINGS:
            key = mixed(key, HEAD_DIM, MIXINGS)
        was = tl.load(key_scales + source + head, mask=head < NUM_HEADS, other=0.0)
        key, scale = rounded(key * was[:, None])
        tl.store(key_scales + target + head, scale, mask=head < NUM_HEADS)
        scale = tl.load(value_scales + source + head, mask=head < NUM_HEADS, other=0.0)
        tl.store(value_scales + target + head, scale, mask=head < NUM_HEADS)
    dim = columns(HEAD_DIM, ROTARY_DIM, INTERLEAVED, HALF)[None, :]
    at = keys + (target + head[:, None]) * KEY_STRIDE + dim
    tl.store(at, key.to(keys.dtype.element_ty), mask=is_head & (dim < HEAD_DIM))

    d = tl.arange(0, VALUE)[None, :]
    is_value = is_head & (d < VALUE_DIM)
    value = tl.load(values + (source + head[:, None]) * VALUE_STRIDE + d, mask=is_value, other=0.0)
    tl.store(values + (target + head[:, None]) * VALUE_STRIDE + d, value, mask=is_value)

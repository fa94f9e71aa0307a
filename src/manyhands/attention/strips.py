"""Attention over strips with gradients, fused: how a training attends on a GPU.

The torch backend makes buckets of like strips and keeps every score of every layer for the way back. A batch of runs
has hundreds of thousands of entries (a token reads ten blocks), so that was where a training step's time and memory
went. Here scores never leave the kernels: what is kept of a layer is its queries, keys, values, outputs and one
log-sum-exp for every token and head, from which the way back makes the probabilities again (as FlashAttention does,
Dao et al. 2022, section 3.1; over many strips it is the same sum, since all partials of a token share one log-sum-exp).

    E  entries: (token, read) pairs, sorted by strip      T  tokens      S  slots
    H  query heads      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.entries import Entries
from manyhands.attention.merge import NOTHING
from manyhands.attention.rotary import Rope, Rotations, rotate
from manyhands.attention.store import LayerStore
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan

_TILE = 64  # entries, or keys, of one program
_LARGEST_HEAD = 256  # dims: tiles of queries, keys and values of more do not fit into shared memory
_ENDLESS = 1 << 30  # a window without an end


@dataclass(frozen=True, eq=False)
class Strips:
    """A plan as lists for the kernels. All integers are int32 on one device."""

    tokens: Tensor  # [E]
    rotations: Rotations  # [E]: by the offset of each entry on its strip
    lows: Tensor  # [E]
    highs: Tensor  # [E]
    slots: Tensor  # the slots of all strips, one strip behind the other
    entry_tiles: Tensor  # [n, 5], see kernels/strips.py
    key_tiles: Tensor  # [m, 5]
    positions: Tensor  # [T] of the tokens in their rows' views

    @classmethod
    def of(cls, plan: Plan) -> Strips:
        """The lists of a plan whose pages are slots (a replay's), on the CPU."""
        assert plan.page_size == 1, "a replay has pages of one slot"
        entries = Entries.of(plan)
        place = plan.reads.pages.indptr[:-1]
        return cls(
            tokens=_int32(entries.token),
            rotations=Rotations(_int32(entries.offset)),
            lows=_int32(entries.low),
            highs=_int32(entries.high),
            slots=_int32(plan.reads.pages.joined),
            entry_tiles=_int32(_entry_tiles(entries, place)),
            key_tiles=_int32(_key_tiles(entries, place)),
            positions=_int32(plan.positions),
        )

    def to(self, device: torch.device) -> Strips:
        """The same lists on another device."""
        moved: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            is_tensor = isinstance(value, Tensor)
            moved[each.name] = (
                value.to(device, non_blocking=True) if is_tensor else value.to(device)
            )
        return Strips(**moved)


def _int32(values: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))


def _cut(start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Ranges cut into tiles: whose range each is of, where it begins, where it ends."""
    counts = -(-(stop - start) // _TILE)
    whose = np.repeat(np.arange(len(start)), counts)
    number = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = start[whose] + number * _TILE
    return whose, first, np.minimum(first + _TILE, stop[whose])


def _entry_tiles(entries: Entries, place: Ints) -> Ints:
    """Tiles of entries of one stretch, and the keys that they see between them; the longest walk first."""
    indptr, strip = entries.stretches(_TILE)
    stretch, first, stop = _cut(indptr[:-1], indptr[1:])
    begin = np.minimum.reduceat(entries.low, first)
    reach = np.minimum(entries.high, entries.offset + 1)
    end = np.maximum(np.maximum.reduceat(reach, first), begin)
    tiles = np.stack((first, stop - first, begin, end, place[strip[stretch]]), axis=1)
    return tiles[np.argsort(begin - end, kind="stable")]


def _key_tiles(entries: Entries, place: Ints) -> Ints:
    """Tiles of keys of one stretch, and its entries."""
    indptr, strip = entries.stretches(_TILE)
    low = np.minimum.reduceat(entries.low, indptr[:-1])
    reach = np.minimum(entries.high, entries.offset + 1)
    end = np.maximum(np.maximum.reduceat(reach, indptr[:-1]), low)
    stretch, first, stop = _cut(low, end)
    begin, last = indptr[stretch], indptr[stretch + 1]
    tiles = np.stack((first, stop - first, begin, last, place[strip[stretch]]), axis=1)
    return tiles[np.argsort(begin - last, kind="stable")]


def can_attend(call: LayerCall, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether the kernels know this layer: no cap of its scores, no sinks, heads that fit, not in float64."""
    is_plain = call.softcap is None and call.sinks is None
    return is_plain and head_dim <= _LARGEST_HEAD and dtype != torch.float64


def attend(store: LayerStore, q: Tensor, strips: Strips, call: LayerCall) -> Tensor:
    """Attention outputs [T, H, Dv] of queries q [T, H, D], not rotated yet. Differentiable.

    The store holds rotated keys [S, G, D] and values [S, G, Dv]; only layers that `can_attend`. Under autocast all
    three get its dtype, as the operands of a product do: queries and keys behind a norm are float32 there, values are not.
    """
    if call.query_scale is not None:
        q = call.query_scale.apply(q, strips.positions)
    keys, values, device = store.keys, store.values, q.device.type
    if torch.is_autocast_enabled(device):
        products = torch.get_autocast_dtype(device)
        q, keys, values = (x.to(products) for x in (q, keys, values))
    out: Tensor = _Attention.apply(q, keys, values, strips, store.rope, call)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    """Forward and backward of all strips of one layer."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        strips: Strips,
        rope: Rope | None,
        call: LayerCall,
    ) -> Tensor:
        """Of q [T, H, D], keys [S, G, D] and values [S, G, Dv] of one dtype: [T, H, Dv]."""
        from manyhands.attention.kernels.strips import forward_kernel

        keys, values = keys.contiguous(), values.contiguous()
        num_tokens, num_heads, _ = q.shape
        num_entries, value_dim = len(strips.tokens), values.shape[-1]
        outs = q.new_empty(num_entries, num_heads, value_dim, dtype=torch.float32)
        lses = q.new_empty(num_entries, num_heads, dtype=torch.float32)
        forward_kernel[len(strips.entry_tiles), num_heads](
            _rotated(q, strips, rope),
            keys,
            values,
            strips.rotations.offsets,
            _lows(strips, call),
            strips.highs,
            strips.entry_tiles,
            strips.slots,
            outs,
            lses,
            **_options(q, keys, values, call),
        )
        lse = _token_lse(lses, strips.tokens, num_tokens)
        outs *= (lses - lse.index_select(0, strips.tokens)).exp_().unsqueeze(-1)
        out = torch.zeros(num_tokens, num_heads, value_dim, dtype=torch.float32, device=q.device)
        out = out.index_add_(0, strips.tokens, outs).to(q.dtype)
        ctx.save_for_backward(q, keys, values, out, lse)
        ctx.about = strips, rope, call
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, keys and values."""
        from manyhands.attention.kernels.strips import of_keys_kernel, of_queries_kernel

        q, keys, values, out, lse = ctx.saved_tensors
        strips, rope, call = ctx.about
        of_out = of_out.contiguous()
        delta = (of_out.float() * out.float()).sum(dim=-1)  # [T, H]
        queries = _rotated(q, strips, rope)
        options = _options(q, keys, values, call)
        ranges = (strips.rotations.offsets, _lows(strips, call), strips.highs, strips.tokens)
        wholes = (strips.slots, of_out, lse, delta)
        of_queries = torch.empty_like(queries, dtype=torch.float32)
        of_queries_kernel[len(strips.entry_tiles), q.shape[1]](
            queries, keys, values, *ranges, strips.entry_tiles, *wholes, of_queries, **options
        )
        back = rotate(of_queries, -strips.rotations.offsets, rope)
        of_q = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        of_q.index_add_(0, strips.tokens, back)
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        of_keys_kernel[len(strips.key_tiles), keys.shape[1]](
            *(queries, keys, values, *ranges, strips.key_tiles, *wholes),
            *(of_keys, of_values),
            **options,
        )
        return of_q.to(q.dtype), of_keys, of_values, None, None, None


def _rotated(q: Tensor, strips: Strips, rope: Rope | None) -> Tensor:
    """The queries of all entries [E, H, D]."""
    return strips.rotations.rotate(q.index_select(0, strips.tokens), rope).contiguous()


def _lows(strips: Strips, call: LayerCall) -> Tensor:
    """First keys [E] that entries see in this layer."""
    if call.chunk is None:
        return strips.lows
    behind = (strips.positions % call.chunk).index_select(0, strips.tokens)
    return torch.maximum(strips.lows, strips.rotations.offsets - behind)


def _token_lse(lses: Tensor, tokens: Tensor, num_tokens: int) -> Tensor:
    """Log-sum-exp [T, H] of whole tokens, of those of their entries [E, H]."""
    largest = torch.full((num_tokens, lses.shape[1]), NOTHING, device=lses.device)
    index = tokens.long().unsqueeze(1).expand_as(lses)
    largest = largest.scatter_reduce(0, index, lses, "amax")
    total = torch.zeros_like(largest)
    total.index_add_(0, tokens, (lses - largest.index_select(0, tokens)).exp())
    return largest + total.log()


def _options(q: Tensor, keys: Tensor, values: Tensor, call: LayerCall) -> dict[str, Any]:
    dims = keys.shape[-1], values.shape[-1]
    padded = [max(16, 1 << (dim - 1).bit_length()) for dim in dims]
    return {
        "scaling": call.scaling,
        "window": call.reach or _ENDLESS,
        "NUM_HEADS": q.shape[1],
        "NUM_KV_HEADS": keys.shape[1],
        "DIM": dims[0],
        "VALUE_DIM": dims[1],
        "D": padded[0],
        "DV": padded[1],
        "ENTRIES": _TILE,
        "KEYS": _TILE,
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": 4,
        "num_stages": 2,
        "enable_fp_fusion": True,  # asked for outright, because Triton's default is about to change
    }

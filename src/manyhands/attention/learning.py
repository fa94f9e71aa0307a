"""Attention with gradients for a GPU: what recorded rows read, as intervals over slots in order of strips.

`TorchBackend` gathers the keys of each bucket anew, holds all scores in float32 until the backward pass, and makes
some tens of launches per bucket and layer. That is exact, and the measure of this file; on a GPU it is most of a
training step. Here slots are put in the order of their strips once per batch, on the host. A query then sees
one interval of slots for each strip that it reads, no table of pages is needed, and the kernels
(`kernels/learning.py`) keep no score.

    layout = Intervals.of(plan, group=3)         on the host, by the process that makes the batch
    order = layout.slots                         slots [S] in that order
    out = attend_intervals(q, keys, values, layout, rope, call)

    T  tokens      E  entries, (token, strip) pairs      S  slots that are read      r = H / G
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.entries import Entries
from manyhands.attention.rotary import Rope, tables
from manyhands.attention.store import LayerShape
from manyhands.cache.pages import Ints
from manyhands.cache.plan import Plan

ROWS = 64  # of a tile: entries times the query heads of one key head
KEYS = 64  # of a tile
_LOG2E = 1.4426950408889634
_SMALLEST_HALF = 16  # what one product of the kernels takes, at least
_LARGEST_DIM = 128
_HEADS = 8  # of one program that merges
_BLOCK = 1024  # numbers of one program that adds


@dataclass(frozen=True, eq=False)
class Intervals:
    """A plan as intervals. Entries stand in the order of their strips, slots too."""

    slots: Tensor  # [S]: the plan's slot that stands here
    token: Tensor  # [E] int32
    offset: Tensor  # [E] int32: where the query stands on the strip's ruler
    low: Tensor  # [E] int32: the first slot that it sees, of S
    high: Tensor  # [E] int32: one past the last
    place: Tensor  # [E] int32: the slot at distance 0, whether or not the strip is so long
    by_token: Tensor  # [E] int32: entries in the order of their tokens
    token_indptr: Tensor  # [T + 1] int32
    tile_low: Tensor  # [tiles] int32: over the entries of a tile
    tile_high: Tensor
    first_tile: Tensor  # [S / KEYS] int32: which tiles read a block of keys
    last_tile: Tensor
    positions: Tensor  # [T]
    num_offsets: int  # one more than the largest offset
    _tables: list[tuple[Rope, Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: Plan, group: int) -> Intervals:
        """Lay out a plan of pages of one slot for layers with `group` query heads to a key head."""
        assert plan.page_size == 1, plan.page_size
        entries = Entries.of(plan)
        sizes = np.array([len(pages) for pages in plan.reads.pages])
        strip = np.repeat(np.arange(len(sizes)), np.diff(entries.strip_indptr))
        start = (np.cumsum(sizes) - sizes)[strip]
        low = start + entries.low
        high = start + np.minimum(entries.high, entries.offset + 1)
        real = high > low
        place = start + entries.offset
        token, offset, low, high, place = (
            x[real] for x in (entries.token, entries.offset, low, high, place)
        )
        tile_low, tile_high = _tiles(low, high, group)
        first_tile, last_tile = _readers(tile_low, tile_high, int(sizes.sum()))
        counts = np.bincount(token, minlength=plan.num_tokens)
        arrays: dict[str, Any] = {
            name: torch.as_tensor(array.astype(np.int32))
            for name, array in {
                "token": token,
                "offset": offset,
                "low": low,
                "high": high,
                "place": place,
                "by_token": np.argsort(token, kind="stable"),
                "token_indptr": np.concatenate(([0], np.cumsum(counts))),
                "tile_low": tile_low,
                "tile_high": tile_high,
                "first_tile": first_tile,
                "last_tile": last_tile,
            }.items()
        }
        return cls(
            slots=torch.as_tensor(np.concatenate(plan.reads.pages)),
            **arrays,
            positions=torch.as_tensor(plan.positions),
            num_offsets=int(offset.max()) + 1,
        )

    def to(self, device: torch.device) -> Intervals:
        """The same layout on another device."""
        moved = {
            f.name: getattr(self, f.name).to(device, non_blocking=True)
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        return Intervals(**moved, num_offsets=self.num_offsets)

    def tables(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """Cosines and sines [num_offsets, D / 2] float32, made once for all layers that rotate alike."""
        for known, cos, sin in self._tables:
            if known.same_rotation(rope):
                return cos, sin
        offsets = torch.arange(self.num_offsets, device=self.token.device)
        cos, sin = tables(offsets, rope, torch.float32)
        self._tables.append((rope, cos, sin))
        return cos, sin


def can_attend(shape: LayerShape, rope: Rope | None) -> bool:
    """Whether the kernels compute a layer of this shape and rotation. Softcaps and sinks they do not."""
    half = shape.head_dim // 2
    return (
        half >= _SMALLEST_HALF
        and shape.value_dim >= _SMALLEST_HALF
        and max(shape.head_dim, shape.value_dim) <= _LARGEST_DIM
        and all(n & (n - 1) == 0 for n in (shape.head_dim, shape.value_dim))
        and (rope is None or rope.rotary_dim == shape.head_dim)
    )


def attend_intervals(
    q: Tensor, keys: Tensor, values: Tensor, layout: Intervals, rope: Rope | None, call: LayerCall
) -> Tensor:
    """Q [T, H, D], not rotated, meets keys [S, G, D], rotated, and values [S, G, Dv]: [T, H, Dv].

    All of one dtype, float32 or bfloat16; sums are float32. Differentiable in q, keys and values.
    """
    assert call.softcap is None, "softcaps are TorchBackend's"
    assert call.sinks is None, "sinks are TorchBackend's"
    if call.query_scale is not None:
        q = call.query_scale.apply(q.float(), layout.positions).to(q.dtype)
    low = layout.low
    if call.window is not None:  # a key is seen at a distance below the window
        low = torch.maximum(low, layout.place - call.window + 1)
    out: Tensor = _Attend.apply(q, keys, values, layout, rope, low, call.scaling)  # type: ignore[no-untyped-call]
    return out


class _Attend(torch.autograd.Function):
    """The kernels as one operation."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Intervals,
        rope: Rope | None,
        low: Tensor,
        scaling: float,
    ) -> Tensor:
        """Partials of all entries, then the merge."""
        from manyhands.attention.kernels.learning import join_kernel, partial_kernel

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        num_tokens, num_heads, _ = q.shape
        value_dim = v.shape[2]
        out = q.new_empty(num_tokens, num_heads, value_dim)
        lse = q.new_empty(num_tokens, num_heads, dtype=torch.float32)
        partials = q.new_empty(len(layout.token), num_heads, value_dim)
        lses = q.new_empty(len(layout.token), num_heads, dtype=torch.float32)
        shape = _Shape(q, k, v, layout, rope, scaling)
        partial_kernel[(len(layout.tile_low), k.shape[1])](
            *(q, k, v, *shape.entries(low), partials, lses),
            *(shape.num_rows, scaling * _LOG2E),
            **shape.constants,
        )
        join_kernel[(num_tokens, -(-num_heads // _HEADS))](
            *(partials, lses, layout.by_token, layout.token_indptr, out, lse),
            NUM_HEADS=num_heads,
            VALUE_DIM=value_dim,
            HEADS=_HEADS,
        )
        ctx.save_for_backward(q, k, v, out, lse, low)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Of q, keys and values; the weights are made again from the log-sum-exps."""
        from manyhands.attention.kernels.learning import add_kernel, keys_kernel, queries_kernel

        q, k, v, out, lse, low = ctx.saved_tensors
        shape: _Shape = ctx.shape
        layout = shape.layout
        grad = grads[0].contiguous()
        delta = (grad.float() * out.float()).sum(-1)
        given = (q, k, v, *shape.entries(low), lse, grad, delta)
        scales = (shape.scaling * _LOG2E, shape.scaling)
        parts = q.new_empty(len(layout.token), *q.shape[1:])
        tiles = len(layout.tile_low)
        queries_kernel[(tiles, k.shape[1])](
            *given, parts, shape.num_rows, *scales, **shape.constants
        )
        grad_q = torch.empty_like(q)
        width = q.shape[1] * q.shape[2]
        add_kernel[(len(q), -(-width // _BLOCK))](
            *(parts, layout.by_token, layout.token_indptr, grad_q, width), BLOCK=_BLOCK
        )
        grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
        keys_kernel[(len(layout.first_tile), k.shape[1])](
            *(*given, layout.first_tile, layout.last_tile, grad_k, grad_v),
            *(shape.num_rows, len(k), *scales),
            **shape.constants,
        )
        return grad_q, grad_k, grad_v, None, None, None, None


class _Shape:
    """What all kernels of one layer are told alike."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layout: Intervals,
        rope: Rope | None,
        scaling: float,
    ) -> None:
        self.layout, self.scaling = layout, scaling
        num_heads, dim = q.shape[1:]
        self.num_rows = len(layout.token) * (num_heads // k.shape[1])
        self.tables = (q, q) if rope is None else layout.tables(rope)
        is_exact = q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        self.constants = {
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": k.shape[1],
            "HALF": dim // 2,
            "VALUE_DIM": v.shape[2],
            "PAIR": 1 if rope is not None and rope.interleaved else dim // 2,
            "ROTATES": rope is not None,
            "ROWS": ROWS,
            "KEYS": KEYS,
            "PRECISION": "ieee" if is_exact else "tf32",
        }

    def entries(self, low: Tensor) -> tuple[Tensor, ...]:
        """The integers of all entries and tiles, and the tables of angles."""
        layout = self.layout
        mine = (layout.token, layout.offset, low, layout.high, layout.tile_low, layout.tile_high)
        return (*mine, *self.tables)


def _tiles(low: Ints, high: Ints, group: int) -> tuple[Ints, Ints]:
    """The interval that covers what the rows of each tile see. Row i is of entry i // group."""
    num_rows = len(low) * group
    first = np.arange(0, num_rows, ROWS)
    begin, last = first // group, (np.minimum(first + ROWS, num_rows) - 1) // group
    # A tile may share its first and its last entry with its neighbours: both are counted in both.
    tile_low = np.minimum.reduceat(low, begin)
    tile_high = np.maximum.reduceat(high, begin)
    return np.minimum(tile_low, low[last]), np.maximum(tile_high, high[last])


def _readers(tile_low: Ints, tile_high: Ints, num_slots: int) -> tuple[Ints, Ints]:
    """For each block of KEYS slots the first tile that reads of it, and one past the last."""
    num_blocks = -(-num_slots // KEYS)
    first = np.full(num_blocks, len(tile_low))
    last = np.zeros(num_blocks, dtype=np.int64)
    from_block, to_block = tile_low // KEYS, (tile_high - 1) // KEYS
    sizes = to_block - from_block + 1
    tile = np.repeat(np.arange(len(tile_low)), sizes)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    block = from_block[tile] + within
    np.minimum.at(first, block, tile)
    np.maximum.at(last, block, tile + 1)
    return first, last

"""The lowest rung of the ladder: attention over views by definition, in float64.

It shares nothing with the product: keys and values are kept raw per block, a view is laid out as one
ordinary sequence, and rotary embedding is a complex number. It also plays a whole conversation of
random steps through the product's planner and memory, so that both can be compared after every step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Move
from manyhands.cache.planner import Planner
from manyhands.cache.step import Step
from manyhands.cache.view import Item, Lanes, View
from manyhands.model.memory import Memory
from tests.poison import poison


@dataclass(frozen=True)
class Shape(LayerShape):
    """The sizes of one small attention layer."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    value_dim: int = 8


def complex_rope(x: Tensor, positions: Tensor, rope: Rope | None) -> Tensor:
    """Rotate x [N, H, D] to positions [N], as multiplication by complex numbers in float64."""
    if rope is None:
        return x
    half = rope.rotary_dim // 2
    real = torch.arange(half) * 2 if rope.interleaved else torch.arange(half)
    imaginary = real + (1 if rope.interleaved else half)
    angles = positions[:, None] * rope.inv_freq.double().cpu()
    turned = torch.complex(x[..., real], x[..., imaginary]) * torch.exp(1j * angles)[:, None]
    out = x.clone()
    out[..., real], out[..., imaginary] = turned.real, turned.imag
    return out


@dataclass
class DenseOracle:
    """Raw keys and values of every block, [n, G, D] for each time that it was fed n tokens."""

    rope: Rope | None
    call: LayerCall
    keys: dict[Block, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    values: dict[Block, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def write(self, step: Step, k: Tensor, v: Tensor) -> None:
        """Append the raw k, v [T, G, .] of all rows, packed in row order."""
        sizes = [len(row.feed) for row in step.rows]
        for row, keys, values in zip(step.rows, k.split(sizes), v.split(sizes), strict=True):
            self.keys[row.view.own].append(keys.double())
            self.values[row.view.own].append(values.double())

    def read(self, step: Step, q: Tensor) -> Tensor:
        """The output of each new query: [T, H, Dv] in float64."""
        outs = []
        queries = q.double().split([len(row.feed) for row in step.rows])
        for row, own in zip(step.rows, queries, strict=True):
            places = torch.tensor(self._places(row.view))
            keys, values = (
                torch.cat([part for block in row.view.blocks for part in held[block]])
                for held in (self.keys, self.values)
            )
            keys = complex_rope(keys, places, self.rope)
            outs.append(self._queries(own, places[-len(own) :], keys, values, places))
        return torch.cat(outs)

    def _places(self, view: View) -> list[int]:
        """The position of every token of a view; what follows lanes begins behind the longest."""
        return self._placed(view.items, 0)[0]

    def _placed(self, items: Sequence[Item], start: int) -> tuple[list[int], int]:
        """The same of a run that begins at `start`, and where it ends."""
        places: list[int] = []
        for item in items:
            if isinstance(item, Lanes):
                lanes = [self._placed(lane, start) for lane in item.lanes]
                places += [place for lane, _ in lanes for place in lane]
                start = max([start, *(end for _, end in lanes)])
            else:
                length = sum(map(len, self.keys[item]))
                places += range(start, start + length)
                start += length
        return places, start

    def _queries(
        self, q: Tensor, positions: Tensor, keys: Tensor, values: Tensor, places: Tensor
    ) -> Tensor:
        """Queries [F, H, D] at their positions meet keys [N, G, D] and values [N, G, Dv] at theirs."""
        call = self.call
        distance = positions[:, None] - places
        seen = distance >= 0
        if call.window is not None:
            seen &= distance < call.window
        if call.chunk is not None:
            seen &= places >= (positions // call.chunk * call.chunk)[:, None]
        q = complex_rope(q, positions, self.rope)
        if (scale := call.query_scale) is not None:
            spans = (positions + scale.first) // scale.span
            q = q * (1 + scale.beta * torch.log(1 + spans.double()))[:, None, None]
        group = q.shape[1] // keys.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (keys, values))
        scores = torch.einsum("fhd,nhd->hfn", q, k) * call.scaling
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        scores = scores.masked_fill(~seen, -math.inf)
        largest = scores.amax(-1, keepdim=True)
        exponentials = torch.exp(scores - largest)
        total = exponentials.sum(-1, keepdim=True)
        if call.sinks is not None:
            total = total + torch.exp(call.sinks.double()[:, None, None] - largest)
        return torch.einsum("hfn,nhd->fhd", exponentials / total, v)


QKV = tuple[Tensor, Tensor, Tensor]  # q [T, H, D], k [T, G, D], v [T, G, Dv]


class Layers:
    """Attention layers of the product: planner, memory (poisoned with NaN) and a backend."""

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[tuple[Shape, Rope | None, LayerCall]],
        *,
        dtype: torch.dtype = torch.float32,
        num_pages: int = 64,
        page_size: int = 4,
        device: torch.device | None = None,
        eight_bits: bool = False,
    ) -> None:
        device = device or torch.device("cpu")
        shapes, given, calls = zip(*layers, strict=True)
        ropes = [rope and replace(rope, inv_freq=rope.inv_freq.to(device)) for rope in given]
        self.calls = [
            call if call.sinks is None else replace(call, sinks=call.sinks.to(device))
            for call in calls
        ]
        self.backend = backend
        self.pool = PagePool(num_pages, page_size)
        self.planner = Planner(self.pool)
        self.num_moves = 0
        self.memory = Memory(
            self.pool.num_slots, shapes, ropes, device=device, dtype=dtype, eight_bits=eight_bits
        )
        poison(self.memory)

    def pass_of(self, step: Step, inputs: Sequence[QKV]) -> list[Tensor]:
        """Plan and move, then write and read layer by layer: [T, H, Dv] of each, as in the engine."""
        plan = self.last_plan = self.planner.plan(step)
        self.pool.make_moves(self.move)
        prepared = self.backend.prepare(plan, self.memory.device)
        outs = []
        for store, call, qkv in zip(self.memory.stores, self.calls, inputs, strict=True):
            q, k, v = (x.to(self.memory.device) for x in qkv)
            out = self.backend.run_layer(store, q, k, v, prepared, call)
            outs.append(out.to(qkv[0].device))
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        self.pool.keep()
        return outs

    def move(self, moves: Sequence[Move]) -> None:
        self.memory.move(moves, self.backend)
        self.num_moves += len(moves)


class Layer(Layers):
    """One of them alone."""

    def __init__(
        self, backend: Backend, shape: Shape, rope: Rope | None, call: LayerCall, **options: Any
    ) -> None:
        super().__init__(backend, [(shape, rope, call)], **options)

    @property
    def store(self) -> LayerStore:
        """The layer's own."""
        return self.memory.stores[0]

    def step(self, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One pass: [T, H, Dv]."""
        return self.pass_of(step, [(q, k, v)])[0]


def random_qkv(step: Step, shape: Shape, generator: torch.Generator, dtype: torch.dtype) -> QKV:
    """Fresh q [T, H, D], k [T, G, D], v [T, G, Dv] for the rows of a step."""
    num_tokens = sum(len(row.feed) for row in step.rows)
    sizes = (
        (shape.num_heads, shape.head_dim),
        (shape.num_kv_heads, shape.head_dim),
        (shape.num_kv_heads, shape.value_dim),
    )
    q, k, v = (
        torch.randn(num_tokens, *size, generator=generator, dtype=torch.float64).to(dtype)
        for size in sizes
    )
    return q, k, k[..., -shape.value_dim :] if shape.is_latent else v

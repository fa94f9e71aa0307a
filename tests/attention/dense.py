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
from manyhands.cache.pages import Move, PagePool
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


def complex_rope(x: Tensor, position: int, rope: Rope | None) -> Tensor:
    """Rotate x [H, D] to a position, as multiplication by complex numbers in float64."""
    if rope is None:
        return x
    half = rope.rotary_dim // 2
    pairs = [(2 * i, 2 * i + 1) if rope.interleaved else (i, i + half) for i in range(half)]
    out = x.clone()
    for (a, b), frequency in zip(pairs, rope.inv_freq.double().tolist(), strict=True):
        angle = position * frequency
        cos, sin = math.cos(angle), math.sin(angle)
        out[:, a] = x[:, a] * cos - x[:, b] * sin
        out[:, b] = x[:, b] * cos + x[:, a] * sin
    return out


@dataclass
class DenseOracle:
    """Raw keys and values of every block, [G, D] a token."""

    rope: Rope | None
    call: LayerCall
    keys: dict[Block, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    values: dict[Block, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    _rotated: dict[tuple[Block, int, int], Tensor] = field(default_factory=dict)

    def write(self, step: Step, k: Tensor, v: Tensor) -> None:
        """Append the raw k, v [T, G, .] of all rows, packed in row order."""
        token = 0
        for row in step.rows:
            for _ in row.feed:
                self.keys[row.view.own].append(k[token].double())
                self.values[row.view.own].append(v[token].double())
                token += 1

    def read(self, step: Step, q: Tensor) -> Tensor:
        """The output of each new query: [T, H, Dv] in float64."""
        outs, token = [], 0
        for row in step.rows:
            places = self._places(row.view)
            held = [(block, n) for block in row.view.blocks for n in range(len(self.keys[block]))]
            keys = [self._key(*key, place) for key, place in zip(held, places, strict=True)]
            values = [self.values[block][n] for block, n in held]
            first = places[-1] - len(row.feed) + 1
            for i in range(len(row.feed)):
                outs.append(self._query(q[token].double(), first + i, keys, values, places))
                token += 1
        return torch.stack(outs)

    def _key(self, block: Block, n: int, place: int) -> Tensor:
        """Key n of a block, rotated to its position in a view: [G, D]. Each is rotated once."""
        if (block, n, place) not in self._rotated:
            self._rotated[block, n, place] = complex_rope(self.keys[block][n], place, self.rope)
        return self._rotated[block, n, place]

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
                places += range(start, start + len(self.keys[item]))
                start += len(self.keys[item])
        return places, start

    def _query(
        self,
        q: Tensor,
        position: int,
        keys: list[Tensor],
        values: list[Tensor],
        places: list[int],
    ) -> Tensor:
        lowest = 0 if self.call.window is None else max(0, position - self.call.window + 1)
        if self.call.chunk is not None:
            lowest = max(lowest, position // self.call.chunk * self.call.chunk)
        seen = [n for n, place in enumerate(places) if lowest <= place <= position]
        group = q.shape[0] // keys[0].shape[0]
        q = complex_rope(q, position, self.rope)
        if (scale := self.call.query_scale) is not None:
            q = q * (1 + scale.beta * math.log(1 + (position + scale.first) // scale.span))
        k = torch.stack([keys[n] for n in seen])  # [N, G, D]
        v = torch.stack([values[n] for n in seen])
        out = torch.empty(q.shape[0], v.shape[-1], dtype=torch.float64)
        for head in range(q.shape[0]):
            scores = k[:, head // group] @ q[head] * self.call.scaling
            if self.call.softcap is not None:
                scores = self.call.softcap * torch.tanh(scores / self.call.softcap)
            exponentials = torch.exp(scores - scores.max())
            total = exponentials.sum()
            if self.call.sinks is not None:
                total = total + torch.exp(self.call.sinks[head].double() - scores.max())
            out[head] = (exponentials / total) @ v[:, head // group]
        return out


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

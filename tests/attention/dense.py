"""The lowest rung of the ladder: attention over views by definition, in float64.

It shares nothing with the product: keys and values are kept raw per block, a view is laid out as one
ordinary sequence, and rotary embedding is a complex number. It also plays a whole conversation of
random steps through the product's planner and memory, so that both can be compared after every step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall
from manyhands.attention.rotary import Rope
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Step
from manyhands.cache.view import Lanes, View
from manyhands.model.memory import Memory


@dataclass(frozen=True)
class Shape:
    """The sizes of one attention layer."""

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

    def write(self, step: Step, k: Tensor, v: Tensor) -> None:
        """Append the raw k, v [T, G, .] of all rows, packed in row order."""
        token = 0
        for row in step.rows:
            for _ in row.feed:
                self.keys[row.view.own].append(k[token].double())
                self.values[row.view.own].append(v[token].double())
                token += 1

    def read(self, step: Step, q: Tensor) -> Tensor:
        """What each new query sees: [T, H, Dv] in float64."""
        outs, token = [], 0
        for row in step.rows:
            keys = [k for block in row.view.blocks for k in self.keys[block]]
            values = [v for block in row.view.blocks for v in self.values[block]]
            places = self._places(row.view)
            first = places[-1] - len(row.feed) + 1
            for i in range(len(row.feed)):
                outs.append(self._query(q[token].double(), first + i, keys, values, places))
                token += 1
        return torch.stack(outs)

    def _places(self, view: View) -> list[int]:
        """The position of every token of a view; what follows lanes begins behind the longest."""
        places: list[int] = []
        end = 0
        for item in view.items:
            lanes = item.lanes if isinstance(item, Lanes) else [[item]]
            sizes = [sum(len(self.keys[block]) for block in lane) for lane in lanes]
            for size in sizes:
                places += range(end, end + size)
            end += max(sizes, default=0)
        return places

    def _query(
        self,
        q: Tensor,
        position: int,
        keys: list[Tensor],
        values: list[Tensor],
        places: list[int],
    ) -> Tensor:
        lowest = 0 if self.call.window is None else max(0, position - self.call.window + 1)
        seen = [n for n, place in enumerate(places) if lowest <= place <= position]
        group = q.shape[0] // keys[0].shape[0]
        q = complex_rope(q, position, self.rope)
        k = torch.stack([complex_rope(keys[n], places[n], self.rope) for n in seen])  # [N, G, D]
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


class Layer:
    """One attention layer of the product: planner, memory (poisoned with NaN) and a backend."""

    def __init__(
        self,
        backend: Backend,
        shape: Shape,
        rope: Rope | None,
        call: LayerCall,
        *,
        dtype: torch.dtype = torch.float32,
        num_pages: int = 64,
        page_size: int = 4,
        device: torch.device | None = None,
    ) -> None:
        device = device or torch.device("cpu")
        if rope is not None:
            rope = replace(rope, inv_freq=rope.inv_freq.to(device))
        if call.sinks is not None:
            call = replace(call, sinks=call.sinks.to(device))
        self.backend, self.rope, self.call = backend, rope, call
        self.pool = PagePool(num_pages, page_size)
        self.planner = Planner(self.pool)
        self.memory = Memory(
            self.pool.num_slots,
            shape.num_kv_heads,
            shape.head_dim,
            shape.value_dim,
            [rope],
            device=device,
            dtype=dtype,
        )
        self.memory.keys.fill_(float("nan"))
        self.memory.values.fill_(float("nan"))

    def step(self, step: Step, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Plan, move, write, read: what the engine does in every layer."""
        home = q.device
        q, k, v = (x.to(self.memory.keys.device) for x in (q, k, v))
        plan = self.last_plan = self.planner.plan(step)
        self.memory.move(tuple(self.pool.moves))
        self.pool.moves.clear()
        keys, values = self.memory.keys[0], self.memory.values[0]
        prepared = self.backend.prepare(plan, q.device)
        self.backend.append(k, v, keys, values, prepared, self.rope)
        out = self.backend.attend(q, keys, values, prepared, self.call, self.rope)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        return out.to(home)


def random_qkv(
    step: Step, shape: Shape, generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Fresh q [T, H, D], k [T, G, D], v [T, G, Dv] for the rows of a step."""
    num_tokens = sum(len(row.feed) for row in step.rows)
    sizes = (
        (shape.num_heads, shape.head_dim),
        (shape.num_kv_heads, shape.head_dim),
        (shape.num_kv_heads, shape.value_dim),
    )
    return tuple(  # type: ignore[return-value]  # a tuple of three, by the line above
        torch.randn(num_tokens, *size, generator=generator, dtype=torch.float64).to(dtype)
        for size in sizes
    )

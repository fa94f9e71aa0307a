"""Attention alone: rows and what they read, laid out in memory, and the two limits of the machine.

A situation is a plan over random keys and values of one layer, and one query per row. Five families:
a team over a common block (combined views), the same with headers and markers as one that lives has them, many completions of one prompt (Hydragen's grid), trees and
forests, and, with many queries in one row, prefill. A tree is written as in `1,2,64_1024,256,256`:
nodes on each level, tokens of a node on each level; a node's parent is the one at the same share of the level above; the last level's nodes are the
rows. `~` before a number of tokens means that they differ from node to node, by half in either direction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.entries import Entries
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore
from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.evaluation.bench import HEADER_TOKENS, MARKER_TOKENS
from manyhands.evaluation.life import STEP_PREFIX

PAGE_SIZE = 64  # as the kernels get it (engine/backends.py)
TREES = (
    "1,10_4096,416",
    "1,256_256,32",
    "1,1024_2048,32",
    "1,2,64_1024,256,256",
    "1,8,512_512,512,256",
    "1,4,16,512_1024,256,128,32",
    "1,16,32,64,256,1024_256,128,64,32,32,32",
    "2,8,16,256_256,256,32,32",
    "256_4096",
    # the same in spirit: few rows, chains, wide forests, long leaves, ragged nodes
    "1,4_16384,128",
    "1,1,1,8_4096,2048,1024,64",
    "1,2,4,8_8192,1024,256,64",
    "4,64_4096,128",
    "16,512_1024,64",
    "64,1024_512,32",
    "1,64_128,1024",
    "1,32_~8192,~512",
    "1,8,256_~2048,~256,~128",
    "8,128_~2048,~128",
    "512_~512",
)


@dataclass(frozen=True, eq=False)
class Situation:
    """One layer's work: q [T, H, D], and a store with keys and values [S, G, D] at the plan's slots."""

    plan: Plan
    q: Tensor
    store: LayerStore

    @property
    def call(self) -> LayerCall:
        """The call that the layer makes."""
        return LayerCall(layer=0, scaling=self.q.shape[-1] ** -0.5)

    @cached_property
    def num_bytes(self) -> int:
        """Every key and value in use once, the queries, the outputs."""
        keys = self.store.keys
        kv = 2 * self.plan.num_keys_loaded * keys[0].numel() * keys.element_size()
        return kv + 2 * self.q.numel() * self.q.element_size()

    @cached_property
    def num_operations(self) -> int:
        """Two products per (query head, key) pair that is seen."""
        entries = Entries.of(self.plan)
        seen = np.minimum(entries.high, entries.offset + 1) - entries.low
        return 4 * self.q.shape[1] * self.q.shape[2] * int(seen.clip(min=0).sum())


def lay_out(
    views: Sequence[View],
    heads: tuple[int, int],
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
    num_new: int = 1,
) -> Situation:
    """A situation of these views: each row feeds `num_new` tokens; every block gets random keys."""
    return filled(*planned(views, num_new), heads, head_dim, device, dtype)


def filled(
    plan: Plan,
    num_slots: int,
    heads: tuple[int, int],
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Situation:
    """A situation of this plan: every slot gets a random key and value, every token a random query."""
    num_heads, num_kv_heads = heads
    shape = (num_slots, num_kv_heads, head_dim)
    keys, values = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    q = torch.randn(plan.num_tokens, num_heads, head_dim, device=device).to(dtype)
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    return Situation(plan, q, LayerStore(keys, values, Rope(1e6**-exponents, head_dim)))


def planned(views: Sequence[View], num_new: int) -> tuple[Plan, int]:
    """The plan of a step in which the row of each view feeds `num_new` tokens, and the slots of its pool."""
    blocks = list(dict.fromkeys(block for view in views for block in view.blocks))
    pages = sum(-(-(block.num_tokens + num_new) // PAGE_SIZE) for block in blocks)
    pool = PagePool(pages + 1, PAGE_SIZE)
    pool.reserve((block, block.num_tokens) for block in blocks)
    plan = Planner(pool).plan(Step([Row(view, (0,) * num_new) for view in views]))
    return plan, pool.num_slots


def block_of(num_tokens: int) -> Block:
    """A block that is `num_tokens` long."""
    block = Block()
    block.tokens.extend([0] * num_tokens)
    return block


def team(workers: int, common: int, desk: int) -> list[View]:
    """A common block and all desks, the row's own last."""
    shared = block_of(common)
    desks = [block_of(desk - 1) for _ in range(workers)]
    return [View([shared, *(d for d in desks if d is not own), own]) for own in desks]


def live_team(
    workers: int, common: int, desk: int, *, has_copies: bool = True, prefixes: int = 0
) -> tuple[Plan, int]:
    """The plan of a team in the combined layout, with headers and markers, as `evaluation/life.py` has them.

    Each row feeds one token to a desk that has `desk` with it; the first `prefixes` feed as many as where a step has
    ended. `has_copies`: of the marker, in front of the desks (`cache/pages.py::PagePool.give_front`). Also the slots of
    its pool.
    """
    prompt, others = block_of(common), block_of(HEADER_TOKENS)
    own, marker = block_of(HEADER_TOKENS), block_of(MARKER_TOKENS)
    cast = Cast(prompt, others, own, marker, tuple(Block() for _ in range(workers)))
    blocks = prompt, others, own, marker
    pages = sum(-(-block.num_tokens // PAGE_SIZE) for block in blocks)
    pages += workers * (2 + (desk + MARKER_TOKENS) // PAGE_SIZE)
    # Where no page is used again, keys are not copied either.
    pool = PagePool(2 * pages, PAGE_SIZE, recycle=has_copies)
    pool.reserve((block, block.num_tokens) for block in blocks)
    for block in (prompt, own, marker):
        block.freeze()
    views = [combined(cast, worker) for worker in range(workers)]
    planner = Planner(pool)
    for size in (desk - 2, 1):
        step = Step([Row(view, (0,) * size) for view in views])
        planner.plan(step)
        pool.make_moves(lambda moves: None)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        pool.keep()
    sizes = [STEP_PREFIX if index < prefixes else 1 for index in range(workers)]
    plan = planner.plan(Step([Row(v, (0,) * size) for v, size in zip(views, sizes, strict=True)]))
    return replace(plan, lockstep=None), pool.num_slots


def completions(batch: int, prefix: int, suffix: int) -> list[View]:
    """Many rows over one prefix. A suffix counts the token that is fed, so it is at least 1."""
    shared = block_of(prefix)
    return [View([shared, block_of(max(0, suffix - 1))]) for _ in range(batch)]


def prefill(history: int) -> list[View]:
    """One row that writes behind so many tokens."""
    return [View([block_of(history), Block()] if history else [Block()])]


def tree(shape: str) -> list[View]:
    """The views of a tree's or forest's leaves; see the head of this file."""
    counts, sizes = (part.split(",") for part in shape.split("_"))
    rng = random.Random(shape)
    paths: list[list[Block]] = [[]]
    for level, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        is_leaf = level == len(counts) - 1
        nodes = int(count)
        paths = [
            [*paths[node * len(paths) // nodes], block_of(_tokens(size, rng) - is_leaf)]
            for node in range(nodes)
        ]
    return [View(path) for path in paths]


def _tokens(size: str, rng: random.Random) -> int:
    mean = int(size.removeprefix("~"))
    return rng.randint(mean // 2, mean + mean // 2) if size.startswith("~") else mean


def shrunk(shape: str, by: int) -> str:
    """The same tree with fewer tokens and nodes, for tests."""
    counts, sizes = (part.split(",") for part in shape.split("_"))
    fewer = (str(max(1, int(count) // by)) for count in counts)
    shorter = (
        size[: len(size) - len(size.removeprefix("~"))]
        + str(max(2, int(size.removeprefix("~")) // by))
        for size in sizes
    )
    return ",".join(fewer) + "_" + ",".join(shorter)


def slots_of(plan: Plan, strip: int, low: int, high: int) -> np.ndarray:
    """The slots of a strip's indices."""
    index = np.arange(low, high)
    return plan.reads.pages[strip][index // plan.page_size] * plan.page_size + (
        index % plan.page_size
    )

"""FlashMLA and FlashAttention 3 at one layer's work with latents, on the same pages.

FlashMLA's dense decoding attends sequences of equally many queries over pages of 64 latents. It has no shared prefixes,
and is asked in two ways, whose times are both told; the faster one counts:

    strips    every strip (pages that the same rows read) is a sequence of the queries of all rows that read it, without a
              mask, each turned to where its row stands: a team reads its history once, and one more launch
              merges what a row got from its strips by their log-sum-exps
    whole     every row is a sequence that reads all of its view, of which the history's pages are shared

A prompt is asked for as a whole alone. FlashMLA has no dense form for prompts on Hopper, so this is its decoding with many
queries; `whole, 256 at once` are sequences of 256 of them, each of which ends where its last query stands.

FlashAttention 3 has a form for latents (`q_v`), which is asked in the same ways, with several numbers of splits, and
for prompts without pages too. Of prompts it is asked for the expanded form as well, which is what vLLM has it do: keys and
values of all heads, with a third to a half of the products. Those that make keys and values of latents are not
timed, as ours beside attention are not.

Timed is the op, with the launch that merges, as CUDA graphs replay it. Before the clock come turned queries, keys that
are laid out, and the schedule of either, which vLLM makes once a step for all layers. FlashMLA wants latents in front
of rotated dims, where this project's stores have them behind, so it has a copy; FlashAttention 3 reads strips in
the store itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.op_peers import Peer
from benchmarks.outside_peers import (
    FA3,
    FLASHMLA,
    Outsiders,
    Sequences,
    Way,
    fa3,
    fa3_dense,
    merging,
    strips,
    whole,
)
from benchmarks.shapes import EXPANDED, LATENT
from benchmarks.situations import Situation

NAMES = (FLASHMLA, FA3)
_SPLITS = (0, 1, 16, 32)  # of keys, in FlashAttention 3; 0: as it chooses; 32: as vLLM's graphs
_AT_ONCE = (64, 256, 1024)  # queries of a sequence that is cut


class Asking(NamedTuple):
    """One way to ask one peer; preparing it takes what comes before the clock."""

    peer: str
    way: str
    prepare: Callable[[], Peer]


def ways(outsiders: Outsiders, layer: Situation, form: str) -> Iterator[Asking]:
    """All ways to ask the peers that are there; of the expanded form, prompts alone."""
    is_prompt = layer.plan.num_tokens > layer.plan.num_rows
    if form == EXPANDED and not is_prompt:
        return
    asked = {"whole": whole(layer)}
    of_strips = None if is_prompt else strips(layer)
    if of_strips is not None:
        asked["strips"] = of_strips
    for name, each in asked.items():
        if FLASHMLA not in outsiders.missing and form == LATENT:
            for way, cut in {name: each, **_cut(name, each)}.items():
                yield Asking(FLASHMLA, way, partial(_peer, cut, flashmla, layer))
        if FA3 not in outsiders.missing:
            for splits in _SPLITS[:2] if is_prompt else _SPLITS:
                way = f"{name}, splits {splits or 'as it chooses'}"
                yield Asking(FA3, way, partial(_peer, each, partial(fa3, splits=splits), layer))
            if is_prompt:
                yield Asking(FA3, f"{name}, no pages", partial(_peer, each, fa3_dense, layer))


def _cut(name: str, asked: Sequences) -> dict[str, Sequences]:
    """Sequences of many queries, as more of fewer queries."""
    sizes = np.diff(asked.indptr)
    return {
        f"{name}, {most} at once": in_pieces(asked, most)
        for most in _AT_ONCE
        if asked.is_causal and not (sizes % most).any() and (sizes > most).any()
    }


def in_pieces(asked: Sequences, most: int) -> Sequences:
    """The same queries in sequences of `most`, of which each reads as far as its last query sees."""
    pieces = np.diff(asked.indptr) // most
    of = np.repeat(np.arange(len(pieces)), pieces)
    ends = np.arange(0, asked.indptr[-1] + 1, most)
    lengths = asked.lengths[of] - (asked.indptr[1:][of] - ends[1:])
    return replace(asked, indptr=ends, pages=[asked.pages[int(b)] for b in of], lengths=lengths)


def _peer(asked: Sequences, ask: Callable[[Sequences], Way], layer: Situation) -> Peer:
    way = ask(asked)
    if asked.token is not None:
        return merging(way, asked, asked.token, layer.plan.num_tokens)
    return lambda: way.call()[0]


def flashmla(asked: Sequences) -> Way:
    """FlashMLA's dense decoding over these sequences; its schedule is made by a call ahead."""
    sizes = np.diff(asked.indptr)
    if (sizes != sizes[0]).any():
        raise RuntimeError(
            f"FlashMLA wants equally many queries in every sequence, and here are {min(sizes)} to {max(sizes)}: "
            "ask it in another way"
        )
    assert asked.rotary is not None, "of latents"
    q, keys = (_latent_first(x, asked.rotary) for x in (asked.q, asked.keys))
    of_sequences = q.unflatten(0, (len(sizes), int(sizes[0])))
    reads = asked.values.shape[3], asked.ints(asked.lengths), asked.page_table()

    def call(*schedule: Tensor | None) -> tuple[Tensor, ...]:
        op = torch.ops._flashmla_C.dense_decode_fwd
        found: tuple[Tensor, ...] = op(
            of_sequences, keys, *reads, asked.scale, asked.is_causal, *schedule, None
        )
        return found

    schedule = call(None, None)[2:]

    def attend() -> tuple[Tensor, Tensor]:
        out, lse, *_ = call(*schedule)
        return out.flatten(0, 1), lse.transpose(1, 2)

    return Way(attend, 1 / math.log(2))


def _latent_first(x: Tensor, rotary: int) -> Tensor:
    return torch.cat((x[..., rotary:], x[..., :rotary]), -1)

"""Keys and values that are not in memory any more, made again from what was fed (Hogwild!, app. B).

One parallel forward over all tokens that a run was fed gives every key and value it ever had. Those of
the blocks that are to be in memory are written there; the others only helped to make them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.rotary import Turns
from manyhands.cache.block import Block
from manyhands.cache.pages import Ints, PagePool
from manyhands.cache.step import Step
from manyhands.engine.past import Past
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.replay.forward import Find, Replay
from manyhands.replay.merged import Merged, merge_passes

_SHARE = "Let runs share what they both read through the engine's prefixes."


class Fed(NamedTuple):
    """A token to write: its number among all that were fed, its block, where in it."""

    token: int
    block: Block
    at: int


def rebuild_past(
    past: Past, evicted: Collection[Block], adapter: ModelAdapter, memory: Memory, pool: PagePool
) -> None:
    """Write the keys and values of the blocks that were evicted; they have their pages again.

    What the run has read of others' is taken from memory. Raises OutOfMemory where the device has no
    room for the forward, InvalidRequest where that is gone by now.
    """
    trace, alive = past.trace(), past.blocks()
    for number, size in enumerate(past.found):
        if size and number not in alive:
            raise InvalidRequest(
                f"the block {trace.blocks[number]!r}, which the run had read, is gone, and without it "
                f"the run cannot come back: it was preempted",
                hint=_SHARE,
            )
    wanted = {number: block for number, block in alive.items() if block in evicted}
    found = {number: alive[number] for number, size in enumerate(past.found) if size}
    fresh = [Block(name) for name in trace.blocks]
    for number, block in found.items():
        fresh[number].tokens.extend(block.tokens[: past.found[number]])
    number_of = {block: number for number, block in enumerate(fresh)}
    fed: list[Fed] = []

    def steps() -> Iterator[Step]:
        token = 0
        for step, _ in trace.steps(fresh):
            for row in step.rows:
                block = wanted.get(number_of[row.view.own])
                if block is not None:
                    first = row.view.own.num_tokens
                    fed.extend(Fed(token + i, block, first + i) for i in range(len(row.feed)))
                token += len(row.feed)
            yield step

    merged = merge_passes(steps(), trace.num_tokens, [fresh[number] for number in found])
    find = _finder([(block, past.found[number]) for number, block in found.items()], memory, pool)
    write_keys(merged, fed, adapter, memory, pool, find)


@torch.inference_mode()
def write_keys(
    merged: Merged,
    fed: Sequence[Fed],
    adapter: ModelAdapter,
    memory: Memory,
    pool: PagePool,
    find: Find | None = None,
) -> None:
    """One forward over a whole run; the keys and values of the tokens in `fed` go to memory.

    Their blocks have pages. `find`: see `Replay.logits`.
    """
    slots_of = {
        block: _slots(block, block.num_tokens, pool) for block in {each.block for each in fed}
    }
    device = adapter.device
    places = [pool.place(each.block).offset for each in fed]
    tokens = torch.tensor([each.token for each in fed], device=device)
    slots = torch.tensor([int(slots_of[each.block][each.at]) for each in fed], device=device)
    angles = [offset + each.at for offset, each in zip(places, fed, strict=True)]
    turns = Turns(torch.tensor(angles, device=device))

    def keep(k: Tensor, v: Tensor, call: LayerCall) -> None:
        memory.write(call.layer, k[tokens], v[tokens], slots, turns)

    has_room = True
    try:
        Replay.of(merged, rows=[0]).to(device).logits(adapter, keep, find)
    except torch.OutOfMemoryError:  # not kept as the cause: the frames it came through hold blocks
        has_room = False
    if not has_room:
        raise OutOfMemory(
            f"{adapter.device} has no room for the forward over {merged.plan.num_tokens} tokens that "
            f"brings a run back to memory",
            hint="Give the engine fewer memory_tokens, so that more is left for such a forward.",
        )


def _finder(found: Sequence[tuple[Block, int]], memory: Memory, pool: PagePool) -> Find | None:
    """Keys, not rotated, and values of the first tokens of these blocks, from memory."""
    if not found:
        return None
    lost = next((block for block, _ in found if pool.is_evicted(block)), None)
    if lost is not None:
        raise InvalidRequest(
            f"{lost!r} is read, and the run that wrote it was preempted", hint=_SHARE
        )
    device = memory.keys.device
    slots = torch.as_tensor(np.concatenate([_slots(b, size, pool) for b, size in found])).to(device)
    offsets = [np.arange(size) + pool.place(block).offset for block, size in found]
    back = Turns(-torch.as_tensor(np.concatenate(offsets)).to(device))

    def find(call: LayerCall) -> tuple[Tensor, Tensor]:
        keys = memory.keys[call.layer, slots]
        return back.rotate(keys, memory.ropes[call.layer]), memory.values[call.layer, slots]

    return find


def _slots(block: Block, size: int, pool: PagePool) -> Ints:
    place = pool.place(block)
    return pool.slots(place.strip, place.offset, place.offset + size)

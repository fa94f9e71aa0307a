"""Keys and values that are not in memory any more, made again from what was fed (Hogwild!, app. B).

One parallel forward over all tokens that a run was fed gives every key and value it ever had. Those of
the blocks that are to be in memory are written there; the others only helped to make them. Here is said in
integers which tokens those are and where they go; the executor does the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.states import StateBook
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.executor import Executor, Kept, Places
from manyhands.engine.past import Past
from manyhands.errors import InvalidRequest
from manyhands.replay.merged import Merged, merge_passes
from manyhands.replay.text_rows import TextRows
from manyhands.replay.trace import Trace, flat

_SHARE = "Let runs share what they both read through the engine's prefixes."


class Fed(NamedTuple):
    """A token to write: its number among all that were fed, its block, where in it."""

    token: int
    block: Block
    at: int


class Ends(NamedTuple):
    """The states that a run needs to go on: those behind its blocks, by the blocks of the run that was merged."""

    text_rows: TextRows
    blocks: Mapping[Block, Block]
    taken: tuple[
        tuple[int, int], ...
    ] = ()  # of what it has found: slots in memory and in the forward
    # Of blocks to which parts of a step were fed, how many tokens each had before: a step goes back to there if it fails.
    before_step: Mapping[Block, int] = MappingProxyType({})

    def write(self, write: Callable[[Kept], None], pool: PagePool) -> None:
        """Have them left in free slots. Raises OutOfMemory where there are too few."""
        assert pool.states is not None, "only a network that keeps states needs them"
        rows = self.text_rows
        ends = [(b, b.num_tokens, rows.slot(at)) for b, at in self.blocks.items() if b.num_tokens]
        ends += [
            (block, size, rows.slot_before_step(self.blocks[block]))
            for block, size in self.before_step.items()
        ]
        slots = pool.states.free_slots(len(ends))
        left = tuple((made, slot) for (_, _, made), slot in zip(ends, slots, strict=True))
        write(Kept(self.taken, left))
        for (block, size, _), slot in zip(ends, slots, strict=True):
            pool.states.hold(block, slot, rows.start(self.blocks[block]), size=size)


def rebuild_past(
    past: Past, evicted: Collection[Block], executor: Executor, pool: PagePool
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
    anew = [] if pool.states is None else _without_their_states(trace, found, pool.states)
    again = [Row(View(fresh[n] for n in text), tuple(found[text[-1]].tokens)) for text in anew]
    for text in anew:
        del found[text[-1]]
    for number, block in found.items():
        fresh[number].tokens.extend(block.tokens[: past.found[number]])
    number_of = {block: number for number, block in enumerate(fresh)}
    fed: list[Fed] = []

    def steps() -> Iterator[Step]:
        token = 0
        for row in again:
            token += len(row.feed)
            yield Step([row])
        for step, _ in trace.steps(fresh):
            for row in step.rows:
                block = wanted.get(number_of[row.view.own])
                if block is not None:
                    first = row.view.own.num_tokens
                    fed.extend(Fed(token + i, block, first + i) for i in range(len(row.feed)))
                token += len(row.feed)
            yield step

    before = [fresh[number] for number in found]
    here = [(block, past.found[number]) for number, block in found.items()]
    ends = None
    if pool.states is not None:
        slots = {number: pool.states.slot(block) for number, block in found.items()}
        held = {number: slot for number, slot in slots.items() if slot is not None}
        of_step = {number: n for number, n in past.before_step().items() if n and number in wanted}
        ends = Ends(
            TextRows(
                [fresh[number] for number in held],
                {fresh[number]: size for number, size in of_step.items()},
            ),
            {block: fresh[number] for number, block in wanted.items()},
            tuple((slot, name) for name, slot in enumerate(held.values(), 1)),
            {wanted[number]: size for number, size in of_step.items()},
        )
    num_tokens = trace.num_tokens + sum(len(row.feed) for row in again)
    merged = merge_passes(steps(), num_tokens, before, ends.text_rows if ends else None)
    write_keys(merged, fed, executor, pool, here, ends)


def _without_their_states(
    trace: Trace, found: Mapping[int, Block], states: StateBook
) -> list[tuple[int, ...]]:
    """Blocks that the run has found and gone on from, and whose states have gone since: each as the text that ends with it.

    They are fed once more in the forward. In order: each behind those in front of it.
    """
    anew: dict[int, tuple[int, ...]] = {}
    views = dict.fromkeys(row.view for rows in trace.passes for row in rows)
    for text in (flat(trace.views[view]) for view in views):
        lost: list[int] = []
        for at in reversed(range(len(text) - 1)):
            block = found.get(text[at])
            if block is None or text[at] in anew or states.slot(block) is not None:
                break
            lost.append(at)
        anew |= {text[at]: tuple(text[: at + 1]) for at in reversed(lost)}
    return list(anew.values())


def write_keys(
    merged: Merged,
    fed: Sequence[Fed],
    executor: Executor,
    pool: PagePool,
    found: Sequence[tuple[Block, int]] = (),
    ends: Ends | None = None,
) -> None:
    """One forward over a whole run; the keys and values of the tokens in `fed` go to memory.

    Their blocks have pages. `found` are the blocks whose first tokens the run met in memory, and how many
    of them: their keys are read there. Moves that are owed are made first, for what they are about to read
    may be overwritten here. `ends`: of a network that keeps states, whose are left in memory.
    """
    lost = next((block for block, _ in found if pool.is_evicted(block)), None)
    if lost is not None:
        raise InvalidRequest(
            f"the block {lost.name!r} is read, and the run that wrote it was preempted", hint=_SHARE
        )
    pool.make_moves(executor.move)
    whole = {block: places_of(block, 0, block.num_tokens, pool) for block in {f.block for f in fed}}
    places = Places(
        slots=np.array([whole[each.block].slots[each.at] for each in fed], dtype=np.int64),
        offsets=np.array([whole[each.block].offsets[each.at] for each in fed], dtype=np.int64),
    )
    tokens = np.array([each.token for each in fed], dtype=np.int64)
    found_at = _found_at(found, pool)
    if ends is None:
        executor.write_keys(merged, tokens, places, found_at)
        return
    ends.write(
        lambda kept: executor.write_keys(merged, tokens, places, found_at, kept),
        pool,
    )


def places_of(block: Block, start: int, stop: int, pool: PagePool) -> Places:
    """Where the tokens `start` .. `stop` of a block lie."""
    place = pool.place(block)
    first, last = place.offset + start, place.offset + stop
    return Places(pool.slots(place.strip, first, last), np.arange(first, last, dtype=np.int64))


def _found_at(found: Sequence[tuple[Block, int]], pool: PagePool) -> Places | None:
    if not found:
        return None
    each = [places_of(block, 0, size, pool) for block, size in found]
    return Places(*(np.concatenate(integers) for integers in zip(*each, strict=True)))

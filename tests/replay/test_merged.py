"""All passes in one plan: who reads what is the same as pass by pass."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import OutOfMemory
from manyhands.replay.merged import Merged, merge_passes, side_by_side
from tests.cache.test_plan import placed, random_step

Seen = list[tuple[int, int]]
MOST = 400  # tokens of a run


def read_by(merged: Merged, row: int) -> Seen:
    """Positions in the row's view, and the packed tokens whose keys stand there."""
    reads, found = merged.plan.reads, []
    for strip, pages in enumerate(reads.pages):
        for n in range(int(reads.strip_indptr[strip]), int(reads.strip_indptr[strip + 1])):
            if reads.row[n] == row:
                for key in range(int(reads.low[n]), int(reads.high[n])):
                    slot = int(pages[key])
                    assert merged.slot_offset[slot] == key
                    found.append((int(reads.base[n]) + key, int(merged.slot_token[slot])))
    return sorted(found)


def seen_in(view: View, numbers: dict[Block, list[int]]) -> Seen:
    """The same by definition: lanes begin together and end with the longest."""
    return sorted(
        (start + n, token)
        for block, start in placed(view.items, lambda block: len(numbers[block]))[0]
        for n, token in enumerate(numbers[block])
    )


def a_run(seed: int, num_found: int = 0) -> tuple[Merged, list[Seen]]:
    """A random conversation, merged, and for each row what it saw, and where. Some blocks were there before."""
    rng = random.Random(seed)
    blocks: list[Block] = []
    views: list[View] = []
    numbers: dict[Block, list[int]] = {}
    behind = MOST  # of those blocks; they are counted behind all that is fed
    for _ in range(num_found):
        block = Block("found")
        block.tokens.extend(range(rng.randint(1, 5)))
        block.freeze()
        numbers[block] = list(range(behind, behind := behind + block.num_tokens))
        blocks.append(block)
    found = list(blocks)
    expected: list[Seen] = []
    count = 0

    def steps() -> Iterator[Step]:
        nonlocal count
        for _ in range(rng.randint(1, 8)):
            step = random_step(rng, blocks, views)
            for row in step.rows:
                own = numbers.setdefault(row.view.own, [])
                own.extend(range(count, count + len(row.feed)))
                count += len(row.feed)
            for row in step.rows:
                for block in row.view.blocks:
                    numbers.setdefault(block, [])
            expected.extend(seen_in(row.view, numbers) for row in step.rows)
            yield step
            for block in blocks:
                if rng.random() < 0.3:
                    block.freeze()

    merged = merge_passes(steps(), MOST, found)
    return merged, [
        [(place, token if token < MOST else token - MOST + count) for place, token in seen]
        for seen in expected
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_every_row_sees_what_it_saw(seed: int, num_found: int) -> None:
    merged, expected = a_run(seed, num_found)
    assert merged.plan.num_rows == len(expected) == merged.pass_indptr[-1]
    for row, seen in enumerate(expected):
        assert read_by(merged, row) == seen
        last = merged.plan.last[row]
        assert (merged.plan.positions[last], last) == seen[-1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
def test_side_by_side(seeds: list[int]) -> None:
    runs = [a_run(seed) for seed in seeds]
    batch = side_by_side([merged for merged, _ in runs])
    row = token = 0
    for merged, expected in runs:
        for seen in expected:
            assert read_by(batch, row) == [(p, token + t) for p, t in seen]
            row += 1
        stop = token + merged.plan.num_tokens
        assert np.array_equal(batch.plan.token_ids[token:stop], merged.plan.token_ids)
        token = stop
    assert batch.plan.num_rows == row
    assert len(np.unique(batch.plan.slots)) == batch.plan.num_tokens  # no two tokens share a slot


def test_a_block_that_moves_lies_at_both_places() -> None:
    """Before a desk joins the history it is read where it was, afterwards where it lies then."""
    prompt, desk, next_desk = Block("prompt"), Block("desk"), Block("next desk")

    def steps() -> Iterator[Step]:
        yield Step([Row(View([prompt]), (1, 2, 3)), Row(View([prompt, desk]), (4, 5))])
        prompt.freeze(), desk.freeze()
        yield Step([Row(View([prompt, desk, next_desk]), (6,))])

    merged = merge_passes(steps(), 6)
    assert sorted(merged.slot_token.tolist()) == [0, 1, 2, 3, 3, 4, 4, 5]
    assert [read_by(merged, row) for row in range(3)] == [
        [(n, n) for n in range(3)],
        [(n, n) for n in range(5)],
        [(n, n) for n in range(6)],
    ]


def test_the_room_asked_for_is_a_promise() -> None:
    view = View([Block()])
    with pytest.raises(OutOfMemory):
        merge_passes((Step([Row(view, (1, 2, 3))]) for _ in range(3)), 4)

"""Long feeds in chunks: the same tokens, in order, and nobody reads too early."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.chunks import first_part, in_chunks, without
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from tests.cache.test_plan import random_step

DOCUMENT, NOTE, READER = Block("document"), Block("note"), Block("reader")


def sizes(step: Step) -> list[int]:
    return [len(row.feed) for row in step.rows]


def test_a_long_prompt_goes_ahead() -> None:
    step = Step([Row(View([DOCUMENT]), tuple(range(25)), writer="anna")])
    early, rest = in_chunks(step, 10)
    assert [[row.feed for row in chunk.rows] for chunk in early] == [
        [tuple(range(10))],
        [tuple(range(10, 15))],
    ]
    (row,) = rest.rows
    assert (row.feed, row.writer) == (tuple(range(15, 25)), "anna")
    assert [row.writer for chunk in early for row in chunk.rows] == [None, None]


def test_what_fits_is_left_alone() -> None:
    step = Step([Row(View([DOCUMENT]), (1,) * 10)])
    assert in_chunks(step, 10) == ([], step)


def test_who_reads_what_is_written_now_does_not_go_ahead() -> None:
    """The reader's first token sees the whole note, which is written in this very step."""
    reader = Row(View([NOTE, READER]), (1,) * 30)
    step = Step([Row(View([NOTE]), (2,) * 30), reader])
    early, rest = in_chunks(step, 10)
    assert [sizes(chunk) for chunk in early] == [[10], [10], [9]]
    assert all(row.view.own is NOTE for chunk in early for row in chunk.rows)
    assert sizes(rest) == [1, 30]


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), most_tokens=st.integers(1, 12))
def test_random_steps(seed: int, most_tokens: int) -> None:
    step = random_step(random.Random(seed), [], [])
    written = {row.view.own for row in step.rows}
    waiting = [row for row in step.rows if written & set(row.view.blocks[:-1])]
    early, rest = in_chunks(step, most_tokens)

    fed: dict[Block, tuple[int, ...]] = {row.view.own: () for row in step.rows}
    for chunk in (*early, rest):
        for row in chunk.rows:
            fed[row.view.own] += row.feed
    assert fed == {row.view.own: row.feed for row in step.rows}
    assert [row.view for row in rest.rows] == [row.view for row in step.rows]
    assert all(sum(sizes(chunk)) <= most_tokens for chunk in early)
    assert not {row.view for chunk in early for row in chunk.rows} & {r.view for r in waiting}
    least = sum(len(row.feed) for row in waiting) + len(step.rows) - len(waiting)
    total = sum(sizes(step))
    assert sum(sizes(rest)) == min(total, max(most_tokens, least)), "no more goes ahead than must"
    assert len(early) == -(-(total - sum(sizes(rest))) // most_tokens)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), most_tokens=st.integers(1, 12), has_targets=st.booleans())
def test_the_first_part_and_what_is_left_are_the_whole(
    seed: int, most_tokens: int, has_targets: bool
) -> None:
    """Logprobs of what is fed are answered together: such a step has no parts."""
    step = random_step(random.Random(seed), [], [])
    written = {row.view.own for row in step.rows}
    ahead = [row for row in step.rows if not written & set(row.view.blocks[:-1])]
    if has_targets:
        step = Step([replace(step.rows[0], targets=step.rows[0].feed[:1]), *step.rows[1:]])
    part = first_part(step, most_tokens)
    total = sum(sizes(step))
    most = min(most_tokens, sum(len(row.feed) - 1 for row in ahead))
    if has_targets or total <= most_tokens or not most:
        assert part is None
        return
    assert part is not None
    assert sum(sizes(part)) == most
    assert {row.view for row in part.rows} <= {row.view for row in ahead}
    fed = {row.view: row.feed for row in part.rows}
    left = without(step, part)
    assert [(row.view, fed.get(row.view, ()) + row.feed) for row in left.rows] == [
        (row.view, row.feed) for row in step.rows
    ]

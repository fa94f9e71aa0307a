"""A Past remembers what a Trace does, as far as keys and values depend on it."""

from __future__ import annotations

import gc
from typing import Any

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.past import Past
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.base import Strategy
from tests.engine.small import LETTERS, small_engine, team

SAMPLED = Choice(temperature=1.0, allowed=LETTERS)


def followed(strategy: Strategy, past: Past) -> Strategy:
    """The same strategy; its passes are remembered as the scheduler does."""
    tokens: tuple[int, ...] | None = None
    num_passes = 0
    while True:
        try:
            asked = strategy.send(tokens)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        tokens = yield asked
        if isinstance(asked, Step):
            past.remember(asked, num_passes)
            num_passes += 1


def test_it_remembers_what_a_trace_does() -> None:
    past = Past()
    lines: list[dict[str, Any]] = []
    strategy = team(3, choice=SAMPLED, seed=1, snapshots=(9,), layout="interleaved")
    small_engine().run(followed(record(strategy, {}, lines.append), past))
    trace, expected = past.trace(), parse_trace(lines)
    assert len(trace.passes) > 20
    assert trace.blocks == expected.blocks
    assert trace.views == expected.views
    assert trace.freezes == expected.freezes
    assert [[(row.view, row.feed) for row in rows] for rows in trace.passes] == [
        [(row.view, row.feed) for row in rows] for rows in expected.passes
    ]
    assert not past.blocks(), "the run is over, and its blocks are gone"


def unread(block: Block) -> bool:
    """No other run reads anything."""
    return False


def feed(past: Past, *rows: tuple[View, tuple[int, ...]]) -> None:
    step = Step(Row(view, tokens) for view, tokens in rows)
    for row in step.rows:
        row.view.own.tokens.extend(row.feed)
    past.remember(step, len(past._num_rows))


def test_only_what_the_run_wrote_alone_is_ours() -> None:
    past, pool = Past(), PagePool(100)
    prefix, own, read = Block("prefix"), Block("own"), Block("read")
    prefix.tokens.extend((1, 2, 3))
    prefix.freeze()
    own_view, read_view = View([prefix, own]), View([prefix, own, read])
    feed(past, (own_view, (4, 5)), (read_view, (6,)))
    feed(past, (own_view, (7,)))
    assert past.found == [3, 0, 0]
    assert past.ours(pool, unread) == [own, read]
    assert past.ours(pool, {read}.__contains__) == [own]
    own.tokens.append(8)
    assert past.ours(pool, unread) is None, "somebody else writes to it"


def test_parts_of_a_step_that_failed_are_forgotten() -> None:
    """Its blocks are what they were, so the run can leave and come back as before."""
    past, pool, own, header = Past(), PagePool(100), Block("own"), Block("header")
    view = View([own])
    past.forget_parts()
    feed(past, (view, (1, 2)))
    for number in range(3):
        part = Step([Row(view, (3 + number,)), Row(View([header]), (7, 8))])
        for row in part.rows:
            row.view.own.tokens.extend(row.feed)
        past.remember_part(part)
    assert past.ours(pool, unread) == [own, header]
    for block, size in ((own, 2), (header, 0)):
        del block.tokens[size:]
    assert past.ours(pool, unread) is None
    past.forget_parts()
    past.forget_parts()
    assert past.ours(pool, unread) == [own]
    feed(past, (view, (6,)))
    past.forget_parts()
    assert past.trace().num_tokens == 3
    assert [row.feed for rows in past.trace().passes for row in rows] == [(1, 2), (6,)]


def test_what_is_frozen_and_found_is_held_as_long_as_the_past() -> None:
    kept: Any = Block("prefix")
    kept.tokens.append(1)
    past, own = Past(), Block()
    feed(past, (View([kept.freeze(), own]), (2,)))
    del kept
    gc.collect()
    assert past.ours(PagePool(10), unread) == [own]
    assert [block.name for block in past.blocks().values()] == ["prefix", ""]


def test_a_run_that_read_what_is_gone_cannot_come_back() -> None:
    past, own, lost = Past(), Block(), Block("unfinished, of somebody else")
    lost.tokens.append(1)
    feed(past, (View([lost, own]), (2,)))
    assert past.ours(PagePool(10), unread) == [own]
    del lost
    gc.collect()
    assert past.ours(PagePool(10), unread) is None

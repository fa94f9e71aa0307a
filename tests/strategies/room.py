"""Drives a strategy as `driver.py` does, and counts what memory it holds, in the pages of a real pool.

The planner lays blocks and moves them as in the engine; only the keys are missing. Room is looked at in every pass,
when it has been promised: that is when a step fits or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Step
from manyhands.strategies.base import Answer, Reserve, Sent, Strategy
from manyhands.strategies.listening import Heard, Listen
from tests.strategies.driver import SeenRow, feed


@dataclass
class Room:
    """The pages that a run asked for and the most that it held, with its answer."""

    asked: int
    held: int
    tokens: int
    strips: int
    reserve: Reserve
    answer: Answer


def room_of(
    strategy: Strategy,
    predict: Callable[[SeenRow], int],
    page_size: int,
    *,
    ahead: bool = False,
    num_pages: int = 1 << 15,
) -> Room:
    """Run a strategy to its end. `ahead`: blocks are moved a pass later, as where plans are made ahead."""
    pool = PagePool(num_pages, page_size)
    planner = Planner(pool)
    planner.joins_ahead = ahead
    reserved: list[Reserve] = []
    held = tokens = num_strips = 0
    sent: Sent = None
    while True:
        try:
            asked = strategy.send(sent)
        except StopIteration as end:
            (reserve,) = reserved
            pages = reserve.num_tokens // page_size + reserve.num_blocks
            return Room(pages, held, tokens, num_strips, reserve, end.value)
        sent = None
        if isinstance(asked, Reserve):
            reserved.append(asked)
        elif isinstance(asked, Listen):
            sent = Heard()
        elif isinstance(asked, Step):
            planner.plan(asked)
            pool.make_moves(lambda move: None)
            held = max(held, pool.num_pages - pool.num_free_pages)
            strips = {place.strip for place in pool._places.values() if place.strip.pages}
            num_strips = max(num_strips, len(strips))
            tokens = max(tokens, sum(strip.num_tokens for strip in strips))
            sent = tuple(predict(row) for row in feed(asked))
            pool.keep()
        del asked

"""The loop that drives runs: submit, make a pass, hand over what came of it; cancel what is left.

    with closing(run_passes(engine, [("first", strategy), ("second", another)])) as passes:
        for each in passes:
            for name, run in each.runs:
                ...  # take run.events; if run.done, its result

There is one such loop. `Engine.run`, `run_all` and `stream`, the commands, the exam and the thread of a
`Service` (`engine/service.py`) are bodies of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from manyhands.cache.pages import PagePool
from manyhands.cache.sheets import ShelfCounts
from manyhands.cache.usage import Usage
from manyhands.engine.garbage import collect_between_passes
from manyhands.engine.one_thread import OneThread
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.run import Run, RunState
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Strategy

Key = TypeVar("Key")


class Packs(Protocol):
    """An object that packs the rows of many runs into passes: an Engine, or a Scheduler alone."""

    pool: PagePool
    inside: OneThread

    @property
    def usage(self) -> Usage:
        """The work computed so far."""

    @property
    def shelf_counts(self) -> ShelfCounts:
        """Counts of reads from the cache on disk and of writes to it."""

    @property
    def pass_counts(self) -> PassCounts:
        """How passes were made so far."""

    @property
    def num_preemptions(self) -> int:
        """How often a run was preempted so far."""

    def has_made(self, run: object) -> bool:
        """Whether this is a run that was submitted here."""

    def num_runs(self, state: RunState) -> int:
        """How many runs are in this state."""

    def submit(self, strategy: Strategy, *, lifecycle: bool = False) -> Run:
        """Begin a strategy. `lifecycle`: the run also reports what the engine does with it."""

    def step(self) -> bool:
        """One forward pass for all runs; False when none is left."""

    def cancel(self, run: Run) -> None:
        """End a run before its time."""


class Pass(NamedTuple, Generic[Key]):
    """The state between two passes.

    `runs` are all under way, with the keys they came with, those that have just ended included.
    `seconds` is the time of the pass that was made; 0 where none was, because runs have just begun.
    """

    seconds: float
    runs: list[tuple[Key, Run]]


def run_passes(
    engine: Packs,
    strategies: Iterable[tuple[Key, Strategy | Run] | None]
    | Callable[[], tuple[Key, Strategy | Run] | None],
    concurrency: int | None = None,
) -> Generator[Pass[Key], None, None]:
    """Keep `concurrency` of these (key, strategy) pairs under way, all at once if it is None.

    Yields when runs have begun, before their first pass, and after each pass; ends when no run is
    left. A run that is submitted already is taken as it is. A function in the place of `strategies` gives the next
    pair, or None while there is none; it is asked again before each pass. So is an iterator that gives None. Closing the generator cancels what is under way, and so does
    anything that is raised by the engine or by `strategies`. Raises InvalidRequest for a run of another engine, whose passes
    nothing here would make.
    """
    if callable(strategies):
        take = strategies
    else:
        pairs = iter(strategies)

        def take() -> tuple[Key, Strategy | Run] | None:
            return next(pairs, None)

    live: list[tuple[Key, Run]] = []
    try:
        while True:
            seconds, num_before = 0.0, len(live)
            while (concurrency is None or len(live) < concurrency) and (pair := take()) is not None:
                live.append((pair[0], _under_way(engine, pair[1])))
            if not live:
                return
            if len(live) == num_before:
                start = time.perf_counter()
                engine.step()
                seconds = time.perf_counter() - start
            yield Pass(seconds, live)
            collect_between_passes()  # the pass's tokens are handed over
            live = [pair for pair in live if not pair[1].done]
    finally:
        for _, run in live:
            engine.cancel(run)


def _under_way(engine: Packs, begun: Strategy | Run) -> Run:
    if not isinstance(begun, Run):
        return engine.submit(begun)
    if not engine.has_made(begun):
        raise InvalidRequest(
            "a Run of another engine was given; expected one of this engine, or a strategy",
            hint="Give it to the engine whose `submit` has returned it.",
        )
    return begun

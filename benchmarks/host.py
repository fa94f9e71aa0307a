"""What a forward pass costs the host, over the number of runs: the scheduler, and the planner with it.

    python -m benchmarks.host
    python -m benchmarks.host --before FOLDER/host_time.json      the same of another commit, kept beside it

No network runs: `predict` gives every row token 7, at no cost or after planning. Every run decodes one
row, a token a pass. Times are CPU time of the thread, so that other work on the machine counts
little: the median over 32 passes, the least of three. Four situations, for n runs:

    running     all n take part in every pass
    planned     the same, and the planner makes the plan of the pass
    waiting     all n take part, and as many others wait for memory
    bounded     n run, and a pass has room for 32 of them
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from benchmarks.results import Clock, Results, parser
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.scheduler import Scheduler
from manyhands.strategies.base import Answer, Reserve, Strategy

NUM_RUNS = (1, 32, 256, 1024)
FEW = 32  # runs of a bounded pass
SITUATIONS = ("running", "planned", "waiting", "bounded")
PAGE_SIZE = 16


def decoding(reserve: Reserve | None = None) -> Strategy:
    """One row, a token a pass, without end."""

    def strategy() -> Generator[Any, Any, Answer]:
        if reserve is not None:
            yield reserve
        view, feed = View([Block()]), (1, 2, 3)
        while True:
            feed = yield Step([Row(view, feed)])

    return strategy()


def scheduler_in(situation: str, num_runs: int) -> Scheduler:
    """A scheduler with so many runs in a situation, on pages for them all."""
    pool = PagePool(64 * num_runs, PAGE_SIZE)
    planner = Planner(pool)

    def predict(step: Step) -> tuple[int, ...]:
        if situation == "planned":
            planner.plan(step)
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
        return (7,) * len(step.rows)

    scheduler = Scheduler(predict, pool, 3 * FEW if situation == "bounded" else 1 << 20)
    share = Reserve(64 * PAGE_SIZE, 0) if situation == "waiting" else None
    for _ in range(2 * num_runs if situation == "waiting" else num_runs):
        scheduler.submit(decoding(share))
    return scheduler


def milliseconds_per_pass(situation: str, num_runs: int, num_passes: int) -> float:
    """The median over passes, after the first few."""
    scheduler = scheduler_in(situation, num_runs)
    warm_up = 3 + num_runs // FEW  # all have begun
    seconds = []
    for _ in range(warm_up + num_passes):
        began = time.thread_time()
        scheduler.step()
        seconds.append(time.thread_time() - began)
    for run in list(scheduler.runs):
        scheduler.cancel(run)
    return 1e3 * statistics.median(seconds[warm_up:])


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=5.0)
    options.set_defaults(device="cpu")
    options.add_argument("--before", type=Path, help="this benchmark's file of another commit")
    arguments = options.parse_args(words)
    results = Results("host_time", arguments, Clock(arguments.minutes))
    num_times, num_passes = (1, 3) if arguments.tiny else (3, 32)
    for num_runs in NUM_RUNS[:2] if arguments.tiny else NUM_RUNS:
        times = {
            f"ms_{each}": min(
                milliseconds_per_pass(each, num_runs, num_passes) for _ in range(num_times)
            )
            for each in SITUATIONS
        }
        rounded = {name: round(value, 4) for name, value in times.items()}
        results.add("lines", runs=num_runs, **rounded)
    if arguments.before is not None:
        results.put(before=json.loads(arguments.before.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()

"""The host's time for a forward pass, over the number of runs: the scheduler, and the planner with it.

    python -m benchmarks.host                       this commit; the numbers before it stay as they are
    python -m benchmarks.host --against FOLDER      and another checkout, in turns with this one

No network runs: `predict` gives every row token 7, at no cost or after planning. Every run decodes one
row, a token a pass. Times are CPU time of the thread, so that other work on the machine counts
little: the median over 32 passes, then the median over five processes. With `--against` a process of
each checkout follows one of the other. Four situations, for n runs:

    running     all n take part in every pass
    planned     the same, and the planner makes the plan of the pass
    waiting     all n take part, and as many others wait for memory
    bounded     n run, and a pass has room for 32 of them
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Clock, Results, commit_of, parser
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.filling import Filling
from manyhands.engine.scheduler import Scheduler
from manyhands.strategies.base import Answer, Reserve, Strategy

NUM_RUNS = (1, 32, 256, 1024)
FEW = 32  # runs of a bounded pass
SITUATIONS = ("running", "planned", "waiting", "bounded")
PAGE_SIZE = 16
Line = dict[str, Any]


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
    keep = getattr(pool, "keep", lambda: None)  # in older checkouts a reservation is no promise

    def predict(step: Step) -> tuple[int, ...]:
        if situation == "planned":
            planner.plan(step)
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
            keep()
        return (7,) * len(step.rows)

    scheduler = Scheduler(predict, pool, Filling(3 * FEW if situation == "bounded" else 1 << 20))
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


def measured(sizes: Sequence[int], num_passes: int) -> list[Line]:
    """The milliseconds of every situation, a line for each number of runs."""
    return [
        {
            "runs": num_runs,
            **{
                f"ms_{each}": milliseconds_per_pass(each, num_runs, num_passes)
                for each in SITUATIONS
            },
        }
        for num_runs in sizes
    ]


def measured_apart(checkout: Path, sizes: Sequence[int], num_passes: int) -> list[Line]:
    """The same in a process of its own, with the code of a checkout."""
    call = f"from benchmarks import host; host.print_measured({tuple(sizes)}, {num_passes})"
    done = subprocess.run(
        [sys.executable, "-c", call],
        env={**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines: list[Line] = json.loads(done.stdout)
    return lines


def print_measured(sizes: Sequence[int], num_passes: int) -> None:
    """`measured`, as JSON, for the process that waits for it; only what comes from one checkout."""
    print(json.dumps(measured(sizes, num_passes)))


def medians(rounds: Sequence[Sequence[Line]]) -> list[Line]:
    """Of each number the median over the rounds."""
    return [
        {name: round(statistics.median(line[name] for line in same), 4) for name in same[0]}
        for same in zip(*rounds, strict=True)
    ]


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=15.0)
    options.set_defaults(device="cpu")
    options.add_argument("--against", type=Path, help="another checkout, measured as `before`")
    arguments = options.parse_args(words)
    results = Results("host_time", arguments, Clock(arguments.minutes))
    num_rounds, num_passes = (1, 3) if arguments.tiny else (5, 32)
    sizes = NUM_RUNS[:2] if arguments.tiny else NUM_RUNS
    checkouts = {"after": ROOT}
    if arguments.against is not None:
        checkouts["before"] = arguments.against.resolve()
    elif results.path.exists() and (before := json.loads(results.path.read_text()).get("before")):
        results.put(before=before)
    rounds: dict[str, list[list[Line]]] = {side: [] for side in checkouts}
    for number in range(num_rounds):
        for side in sorted(checkouts, reverse=number % 2 == 0):
            rounds[side].append(measured_apart(checkouts[side], sizes, num_passes))
    for line in medians(rounds["after"]):
        results.add("lines", **line)
    if arguments.against is not None:
        theirs = {**results.content, "commit": commit_of(checkouts["before"])}
        results.put(before={**theirs, "lines": medians(rounds["before"])})


if __name__ == "__main__":
    main()

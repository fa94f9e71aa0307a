"""How fast the bundled model's teams are on a CPU, and what a forward pass costs the host.

    python -m benchmarks.bundled_speed

One list of five bare problems at a time, from the first pass after the prompt to the answer. The host's
time is all that is not the network: planning, preparing the attention, choosing tokens, and the rest
(the strategy, the scheduler, tensors of token ids). With a GPU the network's share shrinks and the
host's stays, so this is what must be small. Medians over passes; lists follow each other by turns of
the team's size, so that a busy moment of the machine does not fall on one team alone.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

import manyhands.engine.local_executor as executor_room
from benchmarks.engine_parts import executor_of
from benchmarks.results import Clock, Results, parser
from manyhands import Engine, TeamSettings, bundled, hogwild, model_prompt
from manyhands.strategies.settings import EndSettings
from manyhands.tasks.arithmetic.problem_list import problem_list

TEAMS = (1, 2, 4)
PARTS = ("network", "plan", "prepare", "choose")


class Stopwatch:
    """An engine whose parts report how long they take, pass by pass."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.times: dict[str, float] = defaultdict(float)
        executor = executor_of(engine)
        watched: dict[str, tuple[object, str]] = {
            "network": (executor.adapter, "forward"),
            "plan": (engine.planner, "plan"),
            "prepare": (executor.backend, "prepare"),
            "choose": (executor_room, "choose"),
        }
        for part, (owner, verb) in watched.items():
            setattr(owner, verb, self._timed(part, getattr(owner, verb)))

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.times[part] += time.perf_counter() - began

        return timed

    def passes(self, question: str, workers: int) -> tuple[list[dict[str, float]], int]:
        """One run: seconds of each part in every pass after the first, and the tokens written."""
        end = EndSettings(reply=False)
        settings = TeamSettings(workers=workers, check_every=0, end=end)
        strategy = hogwild(question, self.engine.text, settings, model_prompt(bundled.path()))
        run = self.engine.submit(strategy)
        rows = []
        while not run.done:
            self.times.clear()
            began = time.perf_counter()
            self.engine.step()
            rows.append({"whole": time.perf_counter() - began, **self.times})
        return rows[1:], sum(run.result().tokens)


def summary(runs: list[tuple[list[dict[str, float]], int]]) -> dict[str, Any]:
    """The figures of all runs of one team together."""
    passes = [row for rows, _ in runs for row in rows]
    seconds = sum(row["whole"] for row in passes)

    def milliseconds(of: Callable[[dict[str, float]], float], rows: Any = passes) -> float:
        return round(1e3 * statistics.median(of(row) for row in rows), 3)

    def host(row: dict[str, float]) -> float:
        return row["whole"] - row["network"]

    return {
        "tokens_per_second": round(sum(tokens for _, tokens in runs) / seconds, 1),
        "passes_per_second": round(len(passes) / seconds, 1),
        "seconds_per_list": round(seconds / len(runs), 3),
        "ms_per_pass": milliseconds(lambda row: row["whole"]),
        "ms_network": milliseconds(lambda row: row["network"]),
        "ms_host": milliseconds(host),
        "ms_plan": milliseconds(lambda row: row["plan"]),
        "ms_prepare": milliseconds(lambda row: row["prepare"]),
        "ms_choose": milliseconds(lambda row: row["choose"]),
        "ms_rest": milliseconds(lambda row: row["whole"] - sum(row[part] for part in PARTS)),
        "ms_host_first_20_passes": milliseconds(host, [r for rows, _ in runs for r in rows[:20]]),
        "ms_host_last_20_passes": milliseconds(host, [r for rows, _ in runs for r in rows[-20:]]),
    }


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=10.0)
    options.set_defaults(device="cpu")
    options.add_argument("--n", type=int, default=12, help="lists per team")
    arguments = options.parse_args(words)
    results = Results("bundled_speed", arguments, Clock(arguments.minutes))
    settings = "greedy, float32, one run at a time"
    results.put(settings=f"{settings}, {arguments.n} lists of 5 bare problems")
    watch = Stopwatch(Engine.load(bundled.path(), device=arguments.device, memory_tokens=1 << 14))
    rng = random.Random("speed")
    lists = [problem_list(rng, 5, "bare").question for _ in range(arguments.n)]
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        runs: dict[int, list[tuple[list[dict[str, float]], int]]] = defaultdict(list)
        watch.passes(lists[0], 4)  # warm up
        for question in lists:
            for workers in TEAMS:
                runs[workers].append(watch.passes(question, workers))
        for workers in TEAMS:
            results.add("lines", workers=workers, threads=threads, **summary(runs[workers]))


if __name__ == "__main__":
    main()

"""Where the time of a live team goes on a GPU, by what a pass is: the device's share and the host's, piece by piece.

    python -m benchmarks.step_timeline --model qwen3-8b --workers 4,16
    python -m benchmarks.step_timeline --model qwen3-8b --workers 4,16 --itself       the method `hogwild`

`benchmarks/life.py` says how long the passes of a live team take; this one says why. Kinds of passes are those of
`benchmarks/step_end.py`. For each kind, medians over passes, in milliseconds:

    whole        from one pass's tokens to the next's
    host         from the arrival of tokens until the whole pass is launched; below it, parts of that, by their own time:
                 `asked` ends where the next step is asked for, `other` is what no part has
    device n     the n-th run of parts of a recording since the tokens before, by the device's clock: a head (one for nothing, if
                 two follow one another), the rest of that pass, or a whole one
    gap n        the device's time before it: nothing that is recorded runs
    parts        in a head at the end (`engine/heads.py`)

A timer around every part costs the host some microseconds, so the sums are a little larger than without.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_parts import executor_of
from benchmarks.life import MEMORY, itself
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES
from benchmarks.step_end import unlaunched
from benchmarks.timing import python_loop_ms
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.engine import capacities, graph, graphs, local_executor, matching
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.evaluation.life import Situation, live, one_team

KINDS = ("following", "behind", "ended")
_VOCABULARY = 1 << 15  # of the network that takes no time: all of the bundled tokenizer's
_WIDEST = 64  # tokens of the recordings that are made ahead here


# The functions that are timed, and the part that each belongs to.
WATCHED: tuple[tuple[Any, str, str], ...] = (
    (Planner, "plan", "plan"),
    (Planner, "plan_ahead", "plan"),
    (Planner, "_laid_alike", "plan: matrix"),
    (Planner, "_prepare_all", "plan: routes"),
    (Planner, "_read_all", "plan: reads"),
    (Planner, "_assemble", "plan: lists"),
    (PagePool, "promise", "pool"),
    (PagePool, "keep", "pool"),
    (matching, "cut", "cut"),
    (graph, "pack", "pack"),
    (graph, "pack_growth", "pack"),
    (LocalExecutor, "move", "moves"),
    (local_executor, "choose", "choose"),
    (Engine, "_check_tokens", "checks"),
)


class Timeline:
    """Marks of host and device while an engine runs."""

    def __init__(self) -> None:
        self.own: dict[str, float] = defaultdict(float)  # seconds by part, since the last tokens
        self.stack: list[tuple[str, float, float]] = []
        self.events: list[tuple[str, Any, Any]] = []  # part, and the device's marks around it
        self.passes: list[dict[str, Any]] = []
        self.arrived = time.perf_counter()
        self.asked = 0.0
        self.host: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its own time added to `name`."""

        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            self.stack.append((name, began, 0.0))
            try:
                return function(*arguments, **named)
            finally:
                spent = time.perf_counter() - began
                _, _, inner = self.stack.pop()
                self.own[name] += spent - inner
                if self.stack:
                    above = self.stack[-1]
                    self.stack[-1] = (above[0], above[1], above[2] + spent)

        return run

    def begins(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which begins where the next step has been asked for."""

        def run(*arguments: Any, **named: Any) -> Any:
            self.asked = time.perf_counter() - self.arrived
            self.own.clear()
            return function(*arguments, **named)

        return run

    def marked(self, name: str, repeat: Callable[..., None]) -> Callable[..., None]:
        """Parts of a recording that are repeated together, between two marks of the device."""

        def run(*arguments: Any) -> None:
            marks = _mark(), _mark()
            marks[0].record()
            repeat(*arguments)
            marks[1].record()
            self.events.append((name, *marks))
            if name != "head":
                spent = time.perf_counter() - self.arrived
                other = spent - self.asked - sum(self.own.values())
                self.host = {"host": spent, "asked": self.asked, **self.own, "other": other}

        return run

    def wait(self, tokens: Callable[..., Any]) -> Callable[..., Any]:
        """The wait for a pass's tokens: with them a pass ends, and the next one's time begins."""

        def run(*arguments: Any, **named: Any) -> Any:
            found = tokens(*arguments, **named)
            now = time.perf_counter()
            whole = now - self.arrived
            self.passes.append({"whole": whole, "host": self.host, "events": self.events})
            self.arrived = now
            self.own.clear()
            self.host = {}
            self.events = []
            return found

        return run


def measured(engine: Engine, workers: int, situation: Situation) -> dict[str, Any]:
    """The table of one team."""
    line = Timeline()
    changed: list[tuple[Any, str, Any]] = []

    def put(place: Any, name: str, into: Any) -> None:
        changed.append((place, name, getattr(place, name)))
        setattr(place, name, into)

    for place, name, said in WATCHED:
        put(place, name, line.timed(said, getattr(place, name)))
    put(Engine, "_pass", line.begins(Engine._pass))
    put(LocalExecutor, "_arrived", line.wait(LocalExecutor._arrived))
    for name, said in (("begin", "head"), ("go_on", "rest"), ("_all", "whole")):
        put(graph.Graph, name, line.marked(said, getattr(graph.Graph, name)))
    try:
        record = live(engine, situation, seed=1)
    finally:
        for place, name, before in reversed(changed):
            setattr(place, name, before)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    passes = line.passes[-len(record.passes) :]
    table: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in KINDS}
    last = None
    for timed, each in zip(record.passes, passes, strict=True):
        kind = "following" if timed.counts.followed else "behind"
        kind = "ended" if timed.fed > workers else kind
        row = table[kind]
        _device(row, each["events"], last)
        last = each["events"][-1][2] if each["events"] else None
        row["whole"].append(1e3 * each["whole"])
        row["pass"].append(1e3 * timed.seconds)
        row["fed"].append(timed.fed)
        for name, seconds in each["host"].items():
            row[name].append(1e3 * seconds)
    return {
        kind: {
            "passes": len(row["whole"]),
            **{name: round(statistics.median(found), 3) for name, found in row.items()},
        }
        for kind, row in table.items()
        if row["whole"]
    }


class _Nothing:
    """A mark of a device that takes no time."""

    def record(self) -> None:
        """Nothing."""

    def elapsed_time(self, _: Any) -> float:
        """None."""
        return 0.0


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else _Nothing()


def _device(row: dict[str, list[float]], events: list[tuple[str, Any, Any]], last: Any) -> None:
    """The device's times from the end of the recording before to the end of this one."""
    for index, (name, begin, end) in enumerate(events):
        row[f"device {index} {name}"].append(begin.elapsed_time(end))
        if last is not None:
            row[f"gap {index} {name}"].append(last.elapsed_time(begin))
        last = end


@contextmanager
def ready_engine(arguments: argparse.Namespace, clock: Clock) -> Iterator[Engine]:
    """An engine of random weights in the shapes of `arguments.model` that got ready as a server does."""
    with tempfile.TemporaryDirectory() as folder:
        engine = (
            unlaunched(_VOCABULARY)
            if arguments.tiny
            else Engine.load(
                SHAPES[arguments.model].write(Path(folder) / "network"),
                device=arguments.device,
                dtype="bfloat16",
                backend=arguments.backend,
                weights="dummy",
                memory_tokens=MEMORY[arguments.model],
            )
        )
        clock.say("loaded")
        engine.get_ready()
        clock.say("ready")
        yield engine


def main(words: list[str] | None = None) -> None:
    """Print a table for each team."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument("--model", default="qwen3-8b")
    options.add_argument("--workers", default="4,16")
    options.add_argument("--history", type=int, default=1024)
    options.add_argument("--passes", type=int, default=300)
    options.add_argument(
        "--itself", action="store_true", help="`hogwild` itself, not a team made up"
    )
    arguments = options.parse_args(words)
    clock = Clock(arguments.minutes)
    itself_ = "itself_" * arguments.itself
    results = Results(f"step_timeline_{itself_}{arguments.model}", arguments, clock)
    capacities.AHEAD = _WIDEST
    with ready_engine(arguments, clock) as engine:
        for workers in map(int, arguments.workers.split(",")):
            if arguments.itself:
                situation = replace(itself(workers), num_passes=arguments.passes)
            else:
                situation = one_team(workers, arguments.history, 40, arguments.passes)
            live(engine, situation, seed=0)
            for kind, row in measured(engine, workers, situation).items():
                passes = executor_of(engine).passes
                assert isinstance(passes, graphs.GraphedPasses), "a GPU has recordings"
                parts = passes.heads.num_parts
                speed = python_loop_ms()
                results.add(
                    "timelines",
                    workers=workers,
                    what=kind,
                    **row,
                    parts=parts,
                    python_loop_ms=speed,
                )


if __name__ == "__main__":
    main()

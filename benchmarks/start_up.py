"""A fresh process: from its start to the first token of a prompt of 2 k, with Triton's cache empty and filled.

    python -m benchmarks.start_up --minutes 2                         Qwen3-8B shapes on one GPU

A process is started with an empty folder for compiled kernels (`cold`), and another one with what the first has left
(`cached`). Each imports, loads, gets ready as a server does (`Engine.get_ready`), reads two prompts one after the
other, and then serves a crowd that comes and goes (`evaluation/life.py`). Counted are kernels compiled, passes
recorded and passes run launch by launch, from the moment it was ready; the kernels are named. The gate: a step of a team agrees with plain torch
attention, looked at when all else is over, so that it makes nothing ready.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.gate import check_step
from benchmarks.life import TINY_SITUATIONS
from benchmarks.results import ROOT, Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY
from benchmarks.timing import python_loop_ms
from manyhands.attention.compile_count import compiled_since, num_compiled
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.pass_counts import PassCounts
from manyhands.evaluation.bench import fill, seat, views_of
from manyhands.evaluation.life import FEW_TEAMS, MIX, live
from manyhands.strategies.base import Answer, Reserve, Strategy

IMPORTED = time.time()
PROMPT, WRITTEN, MEMORY = 2048, 16, 300_000  # tokens
PASSES = 80  # of each crowd
_COUNTED = ("compiled", "recorded", "eager", "replayed", "followed")
_LEFT_OUT_BEHIND = 20.0  # seconds that a second process needs at least


def one_prompt(prompt: tuple[int, ...]) -> Strategy:
    """Read a prompt and write some tokens behind it, as a run of one row does."""
    yield Reserve(len(prompt) + WRITTEN, 2)
    block = Block("prompt")
    rows, feed = [Row(View([block]), prompt[:-1])], prompt[-1:]
    view = View([block, Block("own")])
    for _ in range(WRITTEN):
        tokens = yield Step([*rows, Row(view, feed, writer="writer")])
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        rows, feed = [], tokens[-1:]
    return Answer("")


class Started:
    """The steps of a process from its start on, with their seconds."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.facts: dict[str, Any] = {"import_s": round(IMPORTED - arguments.began, 2)}
        self.counts = PassCounts()

    def run(self) -> dict[str, Any]:
        """All of it."""
        tiny = self.arguments.tiny
        began = time.perf_counter()
        engine = Engine.load(
            self.arguments.place,
            device=self.arguments.device,
            backend=self.arguments.backend,
            weights="dummy",
            memory_tokens=4096 if tiny else MEMORY,
        )
        self._note("load_s", began)
        began = time.perf_counter()
        engine.get_ready()
        self._note("get_ready_s", began)
        self.facts["start_s"] = round(time.time() - self.arguments.began, 2)
        self.facts["python_loop_ms"] = python_loop_ms()
        self.facts["made_ready"] = self._counted(engine)
        num_ready = num_compiled()
        length, vocabulary = 64 if tiny else PROMPT, engine.facts.vocab_size
        numbers = random.Random(3)
        for name in ("first", "second"):
            prompt = tuple(numbers.randrange(2, vocabulary) for _ in range(length))
            self.facts[f"{name}_token_s"] = round(first_token(engine, prompt), 4)
            self.facts[f"{name}_prompt"] = self._counted(engine)
        crowds = TINY_SITUATIONS[1:] if tiny else (FEW_TEAMS, MIX)
        for crowd in crowds:
            passes = 8 if tiny else PASSES
            record = live(engine, replace(crowd, num_passes=passes, warm_up=0), seed=7)
            facts = record.facts()
            self.facts.setdefault("crowds", []).append(
                {
                    "name": crowd.name,
                    **{key: facts[key] for key in ("passes", "p50_ms", "p99_ms", "worst_ms")},
                    **self._counted(engine),
                }
            )
        self.facts["compiled_later"] = compiled_since(num_ready)
        history = fill(engine, Block("history"), 48 if tiny else 1024, seed=0).freeze()
        views, twins = (views_of(seat(engine, history, 4, 8)) for _ in range(2))
        gate = check_step(engine, views, twins)
        self.facts.update(gate=asdict(gate), backend=engine.facts.backend)
        return self.facts

    def _note(self, name: str, began: float) -> None:
        self.facts[name] = round(time.perf_counter() - began, 2)
        print(f"{name} {self.facts[name]}", flush=True)

    def _counted(self, engine: Engine) -> dict[str, int]:
        """The counts since they were last asked for."""
        now = engine.executor.counts
        since, self.counts = now - self.counts, now
        return {name: getattr(since, name) for name in _COUNTED}


def first_token(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Seconds from the submission of a run to its first token; the run goes to its end."""
    return first_tokens(engine, [prompt])[0]


def first_tokens(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> list[float]:
    """Seconds from the first submission of runs that come at once to the first token of each, in the order in which these came.

    The runs go to their ends.
    """
    began, seconds = time.perf_counter(), []
    runs = waiting = [engine.submit(one_prompt(prompt)) for prompt in prompts]
    while engine.step():
        now = time.perf_counter()
        seconds += [now - began for run in waiting if run.num_passes]
        waiting = [run for run in waiting if not run.num_passes]
    for run in runs:
        run.result()
    return seconds


def start(arguments: argparse.Namespace, place: Path, triton: Path, left: float) -> dict[str, Any]:
    """A process of its own; what it noted."""
    told = place.parent / "told.json"
    words = ["--place", str(place), "--began", repr(time.time()), "--told", str(told)]
    words += ["--device", arguments.device, "--backend", arguments.backend]
    words += ["--tiny"] * arguments.tiny
    subprocess.run(
        [sys.executable, "-m", "benchmarks.start_up", *words],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(triton)},
        check=True,
        timeout=left,
    )
    found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return found


def main(argv: list[str] | None = None) -> None:
    """Start processes, or be one."""
    options = parser(__doc__, minutes=2.0)
    options.add_argument("--models", default="qwen3-8b")
    for name in ("--place", "--told"):
        options.add_argument(name, type=Path, help=argparse.SUPPRESS)
    options.add_argument("--began", type=float, help=argparse.SUPPRESS)
    arguments = options.parse_args(argv)
    if arguments.place is not None:
        arguments.told.write_text(json.dumps(Started(arguments).run()), encoding="utf-8")
        return
    clock = Clock(arguments.minutes)
    for name in arguments.models.split(","):
        shape = TINY if arguments.tiny else SHAPES[name]
        results = Results(f"start_up_{name}", arguments, clock)
        results.put(model=shape.title, prompt=64 if arguments.tiny else PROMPT)
        with tempfile.TemporaryDirectory() as folder:
            place = shape.write(Path(folder) / "model")
            for when in ("cold", "cached"):
                left = clock.seconds - clock.spent
                if left < _LEFT_OUT_BEHIND:
                    results.leave_out(when, "no time")
                    continue
                try:
                    found = start(arguments, place, Path(folder) / "triton", left)
                except subprocess.SubprocessError as error:
                    results.leave_out(when, f"{type(error).__name__}: {error}"[:100])
                    continue
                is_green = found["gate"]["error"] <= found["gate"]["tolerance"]
                results.add("starts" if is_green else "red", when=when, **found)


if __name__ == "__main__":
    main()

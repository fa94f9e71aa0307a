"""Milliseconds per forward pass of teams of 1 to 16 workers over histories of 1 k to 16 k tokens.

    python -m benchmarks.decode --models qwen3-8b,qwq-32b --minutes 6
    python -m benchmarks.decode --models qwq-32b --quantise int4 --no-peers     weights of four bits

The form is that of the tables 1 and 2 of Hogwild! Inference. Beside each number stands a floor measured
in the same run: all linear layers in one CUDA graph and nothing else, plus the keys and values in use at
the speed of a copy. Part of the passes are then looked into (`benchmarks/breakdown.py`), and the peers run
where they can (`benchmarks/peers.py`). With fewer bits in a weight, the floor of the linear layers is the bytes of
their weights, scales and zeros included, at the speed of a copy.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from benchmarks.breakdown import breakdown
from benchmarks.engine_parts import executor_of, recordings_of
from benchmarks.gate import Checked, check_op, check_step
from benchmarks.peers import Probe, probe, run_peers
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.timing import linears_ms
from manyhands.attention.attend import LayerCall
from manyhands.attention.store import Targets
from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.evaluation.bench import (
    copy_bandwidth,
    fill,
    seat,
    time_passes,
    timing,
    tokens_in_use,
    views_of,
)
from manyhands.model.quantised.linear import Quantised

LENGTHS, WORKERS, DESK = (1024, 2048, 4096, 8192, 16384), (1, 2, 4, 8, 16), 128
LOOKED_INTO = (1, 2, 4, 16)  # team sizes whose passes are taken apart
_QUERIES = (1 << 31) + 1  # a seed that no made-up key has; on a CPU the lower 32 bits count
# Makers of reasoning models recommend temperature 0.6 and top-p 0.95, which keeps some dozens of tokens. The
# logits of random weights are far flatter: as many are kept at 0.25, and at 0.6 a third of the vocabulary.
SAMPLED = {"ms": Choice(temperature=0.25, top_p=0.95), "flat_ms": Choice(0.6, top_p=0.95)}


class Decode:
    """One network, all its cells."""

    looked_into: tuple[int, ...] = LOOKED_INTO

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        tiny = arguments.tiny
        self.shape: Shape = TINY if tiny else SHAPES[name]
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.lengths: tuple[int, ...] = (32, 64) if tiny else LENGTHS
        if lengths := getattr(arguments, "lengths", ""):
            self.lengths = tuple(map(int, lengths.split(",")))
        self.workers: tuple[int, ...] = (1, 2, 4) if tiny else WORKERS
        self.desk = 8 if tiny else DESK
        self.passes = 3 if tiny else 32
        self.quantise: str = getattr(arguments, "quantise", "none")
        kind = "" if self.quantise == "none" else f"_{self.quantise}"
        self.results = Results(f"decode_{name}{kind}", arguments, clock)
        self.probes: list[Probe] = []

    def run(self) -> None:
        """Floor, cells, peers."""
        limits = put_limits(self)
        self.results.put(kv_bytes_per_token=self.shape.token_bytes(self.dtype.itemsize))
        with tempfile.TemporaryDirectory() as folder:
            place = self.shape.write(Path(folder))
            engine = self._engine(place)
            if self.quantise != "none":
                limits = self._weights_alone(engine)
            self._cells(engine, limits)
            has_peers = not self.arguments.no_peers and self.quantise == "none"  # theirs are not
            if has_peers:
                self.probes = [probe(engine, length) for length in self._ends()]
            del engine
            free(self.device)
            if has_peers:
                run_peers(place, self.probes, self._ends(), self.desk, self.results, self.clock)

    def _weights_alone(self, engine: Engine) -> dict[int, float]:
        """Milliseconds in which the weights of all linear layers are read once: the same for every number of workers."""
        layers = [
            layer
            for layer in executor_of(engine).adapter.model.modules()
            if isinstance(layer, (nn.Linear, Quantised))
        ]
        tensors = [x for layer in layers for x in (*layer.parameters(), *layer.buffers())]
        num_bytes = sum(x.nbytes for x in {id(x): x for x in tensors}.values())
        ms = 1e3 * num_bytes / self.results.content["copy_bytes_per_second"]
        self.results.put(weight_bytes=num_bytes, weights_ms=round(ms, 4))
        return dict.fromkeys(self.workers, ms)

    def _ends(self) -> tuple[int, ...]:
        return (self.lengths[0], self.lengths[-1])

    def _engine(self, place: Path) -> Engine:
        most = max(self.workers)
        grown = 2 * most * (self.desk + 3 * self.passes + 64)
        began = time.monotonic()
        engine = Engine.load(
            place,
            device=self.arguments.device,
            dtype=self.results.content["dtype"],
            backend=self.arguments.backend,
            weights="dummy",
            quantise=self.quantise,
            memory_tokens=max(self.lengths) + grown + 1024,
        )
        seconds = round(time.monotonic() - began, 1)
        why = engine.facts.backend_reason
        self.results.put(backend=engine.facts.backend, backend_reason=why, load_seconds=seconds)
        self.clock.say(f"{self.shape.title}: loaded in {seconds} s, backend {engine.facts.backend}")
        return engine

    def _cells(self, engine: Engine, linears: dict[int, float]) -> None:
        """One history at a time: what a function has made is freed when it returns."""
        for length in self.lengths:
            self._teams(engine, length, linears)
            self.results.put(**recording(engine))
        self._sampled(engine)

    def _teams(self, engine: Engine, length: int, linears: dict[int, float]) -> None:
        history = fill(engine, Block("history"), length, seed=0).freeze()
        for workers in self.workers:
            if self.clock.allows(3):
                self._team(engine, history, workers, linears[workers])
            else:
                self.results.leave_out(f"history {length}, workers {workers}", "no time")

    def _team(self, engine: Engine, history: Block, workers: int, linears: float) -> None:
        """Gate, time, and for some a look inside."""
        where = {"workers": workers, "history": history.num_tokens}
        views = self._views(engine, history, workers)
        step = check_step(engine, views, self._views(engine, history, workers))
        op = check_engine_op(engine, views, sorted({0, workers - 1}))
        gate = {"step": asdict(step), "op": asdict(op)}
        if not (step.is_green and op.is_green):
            self.results.add("red", **where, gate=gate)
            return
        in_use = tokens_in_use(views)
        facts = self.results.content
        reading = facts["kv_bytes_per_token"] * in_use / facts["copy_bytes_per_second"]
        seconds = steady(engine, lambda: time_passes(engine, views, passes=self.passes, warm_up=5))
        times = timing(seconds, workers, history.num_tokens, in_use, linears + 1e3 * reading)
        self.results.add("cells", **asdict(times), gate=gate, **how(engine))
        if workers in self.looked_into:
            parts = breakdown(engine, views, times.ms, passes=min(10, self.passes))
            self.results.add("breakdown", **where, **parts)

    def _sampled(self, engine: Engine) -> None:
        """Tokens chosen by chance, over the shortest history.

        Flat distributions last: for some passes after them there is no lookahead.
        """
        history = fill(engine, Block("history"), self.lengths[0], seed=0).freeze()
        greedy = {
            cell["workers"]: cell["ms"]
            for cell in self.results.content.get("cells", [])
            if cell["history"] == history.num_tokens
        }
        found: dict[int, dict[str, float]] = {workers: {} for workers in greedy}
        for name, choice in SAMPLED.items():
            for workers, times in found.items():
                if not self.clock.allows(2):
                    self.results.leave_out(f"sampled, {name}, workers {workers}", "no time")
                    continue
                views = self._views(engine, history, workers)
                drawn = time_passes(engine, views, passes=self.passes, choice=choice)
                times[name] = round(1e3 * statistics.median(drawn), 4)
        for workers, times in found.items():
            where = {"workers": workers, "history": history.num_tokens}
            self.results.add("sampled", **where, **times, greedy_ms=greedy[workers])

    def _views(self, engine: Engine, history: Block, workers: int) -> list[View]:
        return views_of(seat(engine, history, workers, self.desk))


@torch.inference_mode()
def check_engine_op(engine: Engine, views: list[View], rows: list[int]) -> Checked:
    """The engine's own backend on its own memory and plan, in the first layer, with random queries."""
    adapter = executor_of(engine).adapter
    # A pass first: then every view has been met, and its newest key is written.
    engine.forward(Step([Row(view, (2,)) for view in views]))
    step = Step([Row(view, (3,)) for view in views])
    plan = engine.planner.plan(step)
    try:
        shape, store = adapter.layers[0], executor_of(engine).memory.stores[0]
        size = (plan.num_tokens, shape.num_heads, shape.head_dim)
        # Of a seed of their own: made-up keys begin with what the process's own generator may give next.
        numbers = torch.Generator(adapter.device).manual_seed(_QUERIES)
        q = torch.randn(size, generator=numbers, device=adapter.device).to(adapter.dtype)
        width, targets = shape.num_kv_heads, Targets.of(plan, adapter.device)
        new = torch.zeros(plan.num_tokens, width, shape.head_dim, device=adapter.device)
        store.write(targets, new.to(adapter.dtype), new.to(adapter.dtype))  # there was nothing yet
        call = LayerCall(layer=0, scaling=shape.head_dim**-0.5)
        backend = executor_of(engine).backend
        out = backend.attend(store, q, backend.prepare(plan, adapter.device), call)
        return check_op(out, store, q, plan, call, rows)
    finally:
        engine.pool.take_back()


def how(engine: Engine) -> dict[str, Any]:
    """The means of computing: the backend, and whether passes were replayed from CUDA graphs."""
    return {"backend": engine.facts.backend, "graphs": num_graphs(engine) > 0}


def num_graphs(engine: Engine) -> int:
    """Recorded so far."""
    recordings = recordings_of(engine)
    return 0 if recordings is None else recordings.num_graphs


def recording(engine: Engine) -> dict[str, Any]:
    """The cost of recording graphs, and the reason where none was recorded."""
    recordings = recordings_of(engine)
    return {
        "num_graphs": num_graphs(engine),
        "seconds_recording": 0.0 if recordings is None else round(recordings.seconds, 2),
        "trouble": None if recordings is None else recordings.trouble,
    }


def steady(engine: Engine, measure: Callable[[], list[float]]) -> list[float]:
    """The times that `measure` finds when no graph is recorded on the way: that is paid once for a shape.

    Loaded objects are kept from the collector of garbage meanwhile, as the command line does for good.
    """
    gc.collect()
    gc.freeze()
    try:
        for _ in range(3):
            before = num_graphs(engine)
            seconds = measure()
            if num_graphs(engine) == before:
                break
    finally:
        gc.unfreeze()
    return seconds


class Teams(Protocol):
    """Teams of several sizes on one network."""

    shape: Shape
    workers: tuple[int, ...]
    desk: int
    passes: int
    device: torch.device
    dtype: torch.dtype
    results: Results
    clock: Clock


def put_limits(of: Teams) -> dict[int, float]:
    """Put the speed of a copy, and milliseconds of the linear layers alone by rows, into the results.

    To be measured before anything else is in memory.
    """
    speed = copy_bandwidth(of.device)
    with torch.inference_mode():
        linears = linears_ms(of.shape.products(), list(of.workers), of.device, of.dtype)
    free(of.device)
    of.results.put(
        model=of.shape.title,
        dtype=str(of.dtype).removeprefix("torch."),
        desk=of.desk,
        passes=of.passes,
        copy_bytes_per_second=round(speed),
        linears_ms={str(rows): round(ms, 4) for rows, ms in linears.items()},
    )
    of.clock.say(f"{of.shape.title}: linears {linears}, copy {speed / 1e12:.2f} TB/s")
    return linears


def free(device: torch.device) -> None:
    """Give memory back before the next network."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Measured(Protocol):
    """All that one program measures of one network."""

    device: torch.device
    results: Results

    def run(self) -> None:
        """Measure it."""


def each_network(
    arguments: argparse.Namespace, make: Callable[[str, argparse.Namespace, Clock], Measured]
) -> None:
    """Measure each of `--models`; what is left of `--minutes` is shared alike by those that are to come."""
    whole, names = Clock(arguments.minutes), arguments.models.split(",")
    for index, name in enumerate(names):
        minutes = (whole.seconds - whole.spent) / 60 / (len(names) - index)
        part = make(name, arguments, Clock(minutes))
        with part.results.surviving("the rest"):
            part.run()
        free(part.device)


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=6.0)
    options.add_argument("--models", default="qwen3-8b,qwq-32b,codellama-7b,codellama-13b")
    options.add_argument("--quantise", default="none", choices=("none", "fp8", "int4"))
    options.add_argument("--lengths", default="", help="tokens of the history, comma-separated")
    arguments = options.parse_args(words)
    each_network(arguments, Decode)


if __name__ == "__main__":
    main()

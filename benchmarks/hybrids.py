"""Decoding and first tokens of hybrids, whose linear layers keep a state, beside the modelling code's own layers in the same process.

    python -m benchmarks.hybrids --models qwen3.5-9b,qwen3.5-27b,qwen3-next-80b-12 --minutes 6

Completions of one prompt, which is really fed: a state cannot be made up. Each pass reads every weight, the keys and values of the full
layers, and the state of each row, and writes a state for each row. The floor is all linear layers in one CUDA graph, plus those bytes at the
speed of a copy; of experts, those that its tokens have chosen, which are counted. Such passes are made in three ways:

    recorded    as CUDA graphs, with fused modules and linear layers by kernels (`manyhands/model/delta.py`)
    launched    the same, launch by launch
    before      launch by launch, by the modelling code's own modules, as it was without these

Then the first token of a prompt that comes alone, by both kinds of modules.

Random weights as they come forget a text within a token, and tell next to nothing of it. Decays and convolutions are drawn anew, such that
heads remember between ten and ten thousand tokens (arXiv 2312.00752, section 3.6, has the steps that training begins with).

The gate: logits of each row after some tokens, against the plain torch backend with the modelling code's layers over rows of their
own that were fed the same. The control is a row whose state is exchanged for that of an empty text: it must be red.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from benchmarks.breakdown import breakdown
from benchmarks.decode import Decode, each_network, free, put_limits, recording, steady
from benchmarks.engine_parts import executor_of
from benchmarks.experts import Watch, stacks_of
from benchmarks.gate import Checked, compare, plain
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, tiny_of
from benchmarks.start_up import first_tokens
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor, load_network
from manyhands.evaluation.bench import time_passes, timing
from manyhands.model.delta import DeltaLayer
from manyhands.model.recurrent import linear_layers, state_bytes
from manyhands.model.settings import ModelSettings

ROWS, HISTORY, PROMPTS = (1, 4, 16, 64), 4096, (512, 2048, 8192)
LOOKED_INTO = (4, 64)
_PART = 1024  # tokens of the history in a pass
_TOKENS = 4  # that each row is fed before its logits are compared
_TURNS = 3  # of each prompt, of which the first is not counted
_BESIDE = 3 * max(ROWS) + 16  # states: each row uses three in turn


class Way(NamedTuple):
    """A way to make a pass."""

    name: str
    is_ours: bool  # fused modules, and linear layers by kernels
    graphs: bool


RECORDED = Way("recorded", is_ours=True, graphs=True)
LAUNCHED = Way("launched", is_ours=True, graphs=False)
BEFORE = Way("before", is_ours=False, graphs=False)
WAYS = (RECORDED, LAUNCHED, BEFORE)


class Hybrids(Decode):
    """One network, in all ways."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(name, arguments, clock)
        tiny = arguments.tiny
        self.shape = tiny_of(SHAPES[name]) if tiny else SHAPES[name]
        self.workers = (1, 4) if tiny else ROWS
        self.history = 40 if tiny else HISTORY
        self.prompts = (30, 70) if tiny else PROMPTS
        self.ways = tuple(way for way in WAYS if way.name in arguments.ways.split(";"))
        self.results = Results(f"hybrids_{name}", arguments, clock)
        self.text = random.Random(0).choices(range(self.shape.config["vocab_size"]), k=20_000)

    def run(self) -> None:
        """The floor, the gate, each way, the experts that are read, and prompts."""
        linears = put_limits(self)
        cells: dict[int, dict[str, Any]] = {}
        for is_ours, ways in groupby(self.ways, lambda way: way.is_ours):
            self._load(is_ours)
            cells = cells or {rows: self._cell(rows, linears[rows]) for rows in self.workers}
            for way in ways:
                with layers_of(way), self.results.surviving(way.name):
                    self._way(way, cells)
                free(self.device)
            last = LAUNCHED if is_ours else BEFORE
            with layers_of(last), self.results.surviving(f"prompts, {last.name}"):
                self._prompts(last)
            del self.adapter
            free(self.device)

    def _load(self, is_ours: bool) -> None:
        """The network, with fused modules or without."""
        with tempfile.TemporaryDirectory() as folder:
            settings = ModelSettings(
                str(self.shape.write(Path(folder))),
                weights="dummy",
                device=str(self.device),
                dtype=self.results.content["dtype"],
                fuse="on" if is_ours else "off",
            )
            network = load_network(settings)
        self.adapter = network.adapter
        remembering(self.adapter.model)
        self.clock.say(f"{self.shape.title}: loaded, {network.fused}")
        self.results.put(
            kv_bytes_per_token=self.shape.token_bytes(self.dtype.itemsize),
            state_bytes=state_bytes(self.adapter.model),
            history=self.history,
        )

    def _engine_of(self, way: Way, slots: int = _BESIDE) -> Engine:
        """An engine over the one network."""
        grown = max(self.workers) * (256 + 8 * self.passes)
        settings = ModelSettings(
            backend=self.arguments.backend,
            memory_tokens=2 * max(self.history, *self.prompts) + grown,
            states=slots,
        )
        return Engine(LocalExecutor(self.adapter, settings, graphs=way.graphs), settings=settings)

    def _way(self, way: Way, cells: dict[int, dict[str, Any]]) -> None:
        """All cells of one way, behind a prompt that is fed in it."""
        engine = self._engine_of(way)
        prompt = Block("prompt")
        for at in range(0, self.history, _PART):
            part = self.text[at : min(at + _PART, self.history)]
            engine.forward(Step([Row(View([prompt]), tuple(part))]))
        prompt.freeze()
        self.clock.say(f"{way.name}: the prompt is fed")
        for rows, cell in cells.items():
            if not self.clock.allows(5):
                self.results.leave_out(f"{way.name}, {rows} rows", "no time")
                continue
            gate = self._gate(engine, prompt, rows)
            if not gate["is_green"]:
                self.results.add("red", way=way.name, rows=rows, gate=gate)
                continue
            views = forks(prompt, rows)
            seconds = steady(engine, partial(time_passes, engine, views, passes=self.passes))
            if way is RECORDED and rows in LOOKED_INTO:
                ms = 1e3 * statistics.median(seconds)
                parts = breakdown(engine, views, ms, passes=min(10, self.passes))
                self.results.add("breakdown", way=way.name, rows=rows, **parts)
            read = self._read(engine, views) if way is LAUNCHED and self.shape.num_experts else 0.0
            self._put(cell, way, seconds, gate, read)
        self.results.put(**{f"{way.name}: recording": recording(engine)})

    def _cell(self, rows: int, linears: float) -> dict[str, Any]:
        """The floor of so many rows, but for the experts that are chosen."""
        content = self.results.content
        in_use = self.history + rows * self.passes // 2
        num_bytes = content["kv_bytes_per_token"] * in_use + 2 * rows * content["state_bytes"]
        floor = linears + 1e3 * num_bytes / content["copy_bytes_per_second"]
        return {"rows": rows, "floor_ms": round(floor, 4)}

    def _put(
        self, cell: dict[str, Any], way: Way, seconds: list[float], gate: Any, read: float
    ) -> None:
        """The times of one way beside those of the others."""
        times = timing(seconds, cell["rows"], self.history, 0)
        told = {key: asdict(times)[key] for key in ("ms", "ms_mean", "ms_p10", "ms_p90")}
        cell[way.name] = {**told, "gate": gate}
        if read:
            num_bytes = read * self.shape.num_stacks * self.shape.expert_bytes(self.dtype.itemsize)
            cell["experts_read"] = round(read, 2)
            cell["floor_ms"] += round(
                1e3 * num_bytes / self.results.content["copy_bytes_per_second"], 4
            )
        cells = self.results.content.setdefault("cells", [])
        if cell not in cells:
            cells.append(cell)
        self.results.put()
        self.clock.say(
            f"{self.shape.title}, {way.name}, {cell['rows']} rows: {times.ms:.3f} ms, floor {cell['floor_ms']:.3f}"
        )

    def _gate(self, engine: Engine, prompt: Block, rows: int) -> dict[str, Any]:
        """Forks that are fed some tokens, here and by plain torch, and one of them from an empty text's state."""
        feeds = [self.text[row * _TOKENS : (row + 1) * _TOKENS] for row in range(rows)]
        adapter = self.adapter

        def logits(of: Engine, views: list[View]) -> torch.Tensor:
            for at in range(_TOKENS):
                step = [Row(view, (feed[at],)) for view, feed in zip(views, feeds, strict=True)]
                told = of.forward(Step(step)).float()
            return told

        def off(ours: torch.Tensor, theirs: torch.Tensor) -> Checked:
            return compare(ours, theirs, adapter.dtype, adapter.num_layers)

        ours = logits(engine, forks(prompt, rows))
        with layers_of(BEFORE):
            theirs = logits(plain(engine), forks(prompt, rows))
        checked = off(ours, theirs)
        told = {**asdict(checked), "is_green": checked.is_green}
        if rows == 1:
            with self._forgetting(engine):
                control = off(logits(engine, forks(prompt, rows)), theirs)
            told |= {"control": control.error, "is_green": checked.is_green > control.is_green}
        return told

    @contextmanager
    def _forgetting(self, engine: Engine) -> Iterator[None]:
        """All states are those of an empty text meanwhile."""
        states = executor_of(engine).states
        assert states is not None, "it is a hybrid"
        tensors = [store.states for store in states.stores.values()]
        kept = [each.cpu() for each in tensors]
        for each in tensors:
            each.zero_()
        try:
            yield
        finally:
            for each, was in zip(tensors, kept, strict=True):
                each.copy_(was)

    def _read(self, engine: Engine, views: list[View]) -> float:
        """Experts that a layer reads on average."""
        assert stacks_of(self.adapter.model), "it has experts"
        watch = Watch(engine, self.shape.config["num_experts_per_tok"])
        time_passes(engine, views, passes=self.passes, warm_up=0)
        watch.end()
        return float(watch.read.sum() / watch.passes.sum())

    def _prompts(self, way: Way) -> None:
        """Prompts that come alone: seconds until their first tokens, in parts as the engine feeds them."""
        engine = self._engine_of(way, slots=16)
        for length in self.prompts:
            seconds = []
            for turn in range(_TURNS):
                at = 100 * turn + length % 977
                if self.clock.allows(5):
                    seconds += first_tokens(engine, [tuple(self.text[at : at + length])])
            if len(seconds) < 2:
                self.results.leave_out(f"a prompt of {length}, {way.name}", "no time")
                continue
            told = [round(1e3 * each, 3) for each in seconds]
            self.results.add(
                "prompts",
                way=way.name,
                length=length,
                ms_first=round(statistics.median(told[1:]), 3),
                all_ms=told,
            )


@contextmanager
def layers_of(way: Way) -> Iterator[None]:
    """Linear layers are made by kernels meanwhile, or by the modelling code."""
    usual = DeltaLayer.serves
    with mock.patch.object(DeltaLayer, "serves", lambda step, x: way.is_ours and usual(step, x)):
        yield


@torch.no_grad()
def remembering(model: nn.Module) -> None:
    """Draw the decays and the convolutions of all linear layers anew."""
    for module in linear_layers(model).values():
        layer: Any = module
        layer.conv1d.weight.normal_(std=0.5)
        steps = 10 ** torch.empty_like(layer.dt_bias, dtype=torch.float32).uniform_(-4, -1)
        layer.dt_bias.copy_(steps.expm1().log())  # a softplus gives them back
        layer.A_log.zero_()


def forks(prompt: Block, rows: int) -> list[View]:
    """Rows that go on from one prompt."""
    return [View([prompt, Block()]) for _ in range(rows)]


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=6.0)
    options.add_argument("--models", default="qwen3.5-9b,qwen3.5-27b,qwen3-next-80b-12")
    options.add_argument(
        "--ways", default=";".join(way.name for way in WAYS), help="semicolons between them"
    )
    arguments = options.parse_args(words)
    each_network(arguments, Hybrids)


if __name__ == "__main__":
    main()

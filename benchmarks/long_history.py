"""Milliseconds per pass of a team behind a long history, with keys and values in 16 bits and in eight.

    python -m benchmarks.long_history --minutes 2                     QwQ-32B shapes on one H200

Teams of 4 and 16 workers over 128 k, 64 k and 16 k tokens that were made up, with one set of weights: first with keys
and values in the dtype of the network, then with them in int8 (`ModelSettings.kv_cache_dtype`). The floor is that of
`decode.py`: all linear layers alone, plus the bytes of keys and values in use (scales included) at the speed of a copy.
The gate is that of `decode.py` too; *apart* is how far the logits of the first pass lie from those with whole keys, which read the same
made-up history, as the root mean square of the difference over that of the logits.

A history for which the device has no room is left out, by name.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.breakdown import breakdown
from benchmarks.decode import DESK, check_engine_op, each_network, free, how, put_limits, steady
from benchmarks.gate import check_step
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor, Network, load_network
from manyhands.evaluation.bench import (
    fill,
    seat,
    time_passes,
    timing,
    tokens_in_use,
    views_of,
)
from manyhands.model.settings import KeyDtype, ModelSettings

LENGTHS, WORKERS, PASSES = (131072, 65536, 16384), (4, 16), 24
KINDS: tuple[KeyDtype, ...] = ("auto", "int8")
_BESIDE = (
    8 << 30
)  # bytes for what is neither weights nor keys: graphs, and the gate's copies in float64
_SECONDS = 4.0  # about what a cell takes


class LongHistory:
    """One network, all its cells."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        tiny = arguments.tiny
        self.lengths: tuple[int, ...] = (64, 32) if tiny else LENGTHS
        self.workers: tuple[int, ...] = (2, 4) if tiny else WORKERS
        self.passes, self.desk = (3, 8) if tiny else (PASSES, DESK)
        shape = TINY if tiny else SHAPES[name]
        positions = max(self.lengths) + 16384  # rotations cost the same wherever a key stands
        self.shape = Shape(shape.title, {**shape.config, "max_position_embeddings": positions})
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.results = Results(f"decode_long_{name}", arguments, clock)
        self.whole: dict[tuple[int, int], Tensor] = {}  # logits with keys as they are, on the host

    def run(self) -> None:
        """Floor, then all cells with whole keys, then all with rounded ones."""
        put_limits(self)
        if not self._fits():
            return
        with tempfile.TemporaryDirectory() as folder:
            settings = ModelSettings(
                str(self.shape.write(Path(folder))),
                weights="dummy",
                device=self.arguments.device,
                dtype=str(self.dtype).removeprefix("torch."),
                backend=self.arguments.backend,
                memory_tokens=self._memory(max(self.lengths)),
            )
            network = load_network(settings)
        self.clock.say(f"{self.shape.title}: loaded")
        for index, kind in enumerate(KINDS):
            minutes = (self.clock.seconds - self.clock.spent) / 60 / (len(KINDS) - index)
            with self.results.surviving(f"keys {kind}"):
                self._kind(network, replace(settings, kv_cache_dtype=kind), Clock(minutes))
            free(self.device)

    def _memory(self, longest: int) -> int:
        """Tokens of memory for this history and the largest team."""
        return longest + 2 * max(self.workers) * (self.desk + 3 * self.passes + 64) + 1024

    def _fits(self) -> bool:
        """Leave out histories that do not fit beside the weights, whole as keys are at first."""
        if self.device.type != "cuda":
            return True
        room = torch.cuda.mem_get_info(self.device)[0] - _BESIDE
        room -= sum(a * b for a, b in self.shape.products()) * self.dtype.itemsize
        token = self.shape.token_bytes(self.dtype.itemsize)
        fitting = tuple(n for n in self.lengths if self._memory(n) * token <= room)
        for length in set(self.lengths) - set(fitting):
            needed = self._memory(length) * token / 2**30
            why = f"its keys and values take {needed:.0f} GiB, and {room / 2**30:.0f} are free"
            self.results.leave_out(f"history {length}", why)
        self.lengths = fitting
        return bool(fitting)

    def _kind(self, network: Network, settings: ModelSettings, clock: Clock) -> None:
        executor = LocalExecutor(network.adapter, settings, fused=network.fused)
        engine = Engine(executor, None, settings)
        for length in self.lengths:
            self._teams(engine, settings.kv_cache_dtype, length, clock)

    def _teams(self, engine: Engine, kind: KeyDtype, length: int, clock: Clock) -> None:
        history = fill(engine, Block("history"), length, seed=0).freeze()
        for workers in self.workers:
            if clock.allows(_SECONDS):
                self._team(engine, kind, history, workers)
            else:
                self.results.leave_out(f"{kind}, history {length}, workers {workers}", "no time")

    def _team(self, engine: Engine, kind: KeyDtype, history: Block, workers: int) -> None:
        where = {"keys": kind, "workers": workers, "history": history.num_tokens}
        apart = self._apart(engine, kind, history, workers)
        views = self._views(engine, history, workers)
        step = check_step(engine, views, self._views(engine, history, workers))
        op = check_engine_op(engine, views, [workers - 1])
        gate = {"step": asdict(step), "op": asdict(op)}
        if not (step.is_green and op.is_green):
            self.results.add("red", **where, gate=gate)
            return
        in_use = tokens_in_use(views)
        facts = self.results.content
        reading = engine.facts.token_bytes * in_use / facts["copy_bytes_per_second"]
        seconds = steady(engine, lambda: time_passes(engine, views, passes=self.passes, warm_up=5))
        floor = facts["linears_ms"][str(workers)] + 1e3 * reading
        times = timing(seconds, workers, history.num_tokens, in_use, floor)
        parts = breakdown(engine, views, times.ms, passes=min(8, self.passes))
        self.results.add(
            "cells",
            keys=kind,
            **asdict(times),
            token_bytes=engine.facts.token_bytes,
            over_floor=round(times.ms / floor, 4),
            apart=apart,
            parts={name: ms for name, ms in parts.items() if name.startswith("ms_")},
            gate=gate,
            **how(engine),
        )

    def _apart(self, engine: Engine, kind: KeyDtype, history: Block, workers: int) -> float | None:
        """How far logits are from those with whole keys; None for these themselves."""
        views = self._views(engine, history, workers)
        logits = engine.forward(Step([Row(view, (1,)) for view in views])).float().cpu()
        at = history.num_tokens, workers
        if kind == KINDS[0]:
            self.whole[at] = logits
        if kind == KINDS[0] or at not in self.whole:
            return None
        whole = self.whole[at]
        error = (logits - whole).square().mean().sqrt() / whole.square().mean().sqrt()
        return float(f"{float(error):.3g}")

    def _views(self, engine: Engine, history: Block, workers: int) -> list[View]:
        return views_of(seat(engine, history, workers, self.desk))


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=2.0)
    options.add_argument("--models", default="qwq-32b")
    arguments = options.parse_args(words)
    each_network(arguments, LongHistory)


if __name__ == "__main__":
    main()

"""Tiles of the products of few tokens, tried in passes of a whole network.

    python -m benchmarks.tiles --models qwen3-8b,qwq-32b --minutes 3

A product that is called again and again flatters its kernel: weights that are loaded to be evicted first
leave the rest of the second-level cache alone, and part of a weight is still there when its turn comes
again. In a pass, everything else has gone through the cache in between, other kernels stand in front and
behind, and what was best alone may be worst. So here every choice of tiles is put into the network, the
pass is recorded anew and timed: one product after the other, each keeping its best for those that follow.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import astuple
from pathlib import Path
from unittest import mock

import torch

from benchmarks.decode import free
from benchmarks.engine_parts import executor_of
from benchmarks.products import NAMES
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY
from manyhands.cache.block import Block
from manyhands.engine.engine import Engine
from manyhands.evaluation.bench import fill, seat, time_passes, views_of
from manyhands.model.kernels import skinny
from manyhands.model.kernels.skinny import Tiles

WORKERS, HISTORY, DESK = 4, 1024, 128
FEW_OUTPUTS = (
    *(Tiles(64, 128, parts, 4, 6) for parts in (1, 2)),
    *(Tiles(64, 128, parts, 4, 4) for parts in (1, 2, 4, 8)),
    *(Tiles(64, 128, parts, 4, 3) for parts in (4, 8)),
    *(Tiles(32, 128, parts, 2, 5) for parts in (1, 2)),
    *(Tiles(32, 128, parts, 2, 6) for parts in (2, 4)),
    *(Tiles(64, 64, 4, 2, 6), Tiles(64, 256, 2, 4, 3), Tiles(128, 128, 4, 4, 3)),
)
MANY_OUTPUTS = (
    *(Tiles(64, 128, 1, 4, stages) for stages in (2, 3, 4)),
    *(Tiles(32, 128, 1, 2, stages) for stages in (4, 5, 6)),
    *(Tiles(128, 128, 1, warps, 3) for warps in (4, 8)),
    *(Tiles(64, 64, 1, warps, 6) for warps in (2, 4)),
    Tiles(32, 256, 1, 2, 3),
)
_MANY = 16384  # outputs
_GAIN = 0.998  # a choice replaces another if a pass takes at most this share of its time


class Tried:
    """One network, and the tiles that its products have at the moment."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.tiny = arguments.tiny
        self.shape = TINY if self.tiny else SHAPES[name]
        self.results = Results(f"tiles_{name}", arguments, clock)
        self.clock = clock
        with tempfile.TemporaryDirectory() as folder:
            self.engine = Engine.load(
                self.shape.write(Path(folder)),
                device=arguments.device,
                dtype="bfloat16" if arguments.device.startswith("cuda") else "float32",
                weights="dummy",
                memory_tokens=HISTORY + 2 * WORKERS * (DESK + 128) + 1024,
            )
        history = fill(self.engine, Block("history"), 32 if self.tiny else HISTORY, seed=0)
        self.history = history.freeze()
        self.table: dict[tuple[int, int], Tiles] = {}

    def run(self) -> None:
        """All products, those at the front first."""
        usual = skinny.choose_tiles

        def choose(
            tokens: int, outputs: int, inputs: int, device: torch.device, *, gated: bool
        ) -> Tiles:
            own = self.table.get((outputs, inputs))
            return own or usual(tokens, outputs, inputs, device, gated=gated)

        with mock.patch.object(skinny, "choose_tiles", choose):
            self.ms()  # whatever is set up once
            best = self.ms()
            self.results.put(
                model=self.shape.title, workers=WORKERS, history=HISTORY, ms_before=best
            )
            sizes = [*self.shape.products()[:4], self.shape.products()[-1]]
            for name, (inputs, outputs) in zip(NAMES, sizes, strict=True):
                best = self.best_of(name, (outputs, inputs), best)
            self.results.put(ms_after=self.ms())

    def best_of(self, name: str, size: tuple[int, int], best: float) -> float:
        """The pass's time with the best tiles for one product, which are kept."""
        usual = self.table.pop(size, None)
        tried = []
        for tiles in MANY_OUTPUTS if size[0] >= _MANY else FEW_OUTPUTS:
            if not self.clock.allows(2):
                self.results.leave_out(f"{name}: {tiles}", "no time")
                continue
            self.table[size] = tiles
            with self.results.surviving(f"{name}: {tiles}"):
                tried.append((self.ms(), tiles))
        tried.sort(key=lambda pair: pair[0])
        self.table.pop(size, None)
        if usual is not None:
            self.table[size] = usual
        if tried and tried[0][0] < _GAIN * best:
            best, self.table[size] = tried[0]
        lines = [[ms, *astuple(tiles)] for ms, tiles in tried]
        self.results.add("tiles", product=name, size=size, ms=best, tried=lines)
        return best

    def ms(self) -> float:
        """Milliseconds of a pass with the tiles of now."""
        forget = getattr(executor_of(self.engine).passes, "forget", None)
        if forget is not None:
            forget()
        views = views_of(seat(self.engine, self.history, WORKERS, 8 if self.tiny else DESK))
        time_passes(self.engine, views, passes=3)
        passes = 2 if self.tiny else 14
        return round(1e3 * statistics.median(time_passes(self.engine, views, passes=passes)), 4)


def main(words: list[str] | None = None) -> None:
    """Try."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument("--models", default="qwen3-8b,qwq-32b")
    arguments = options.parse_args(words)
    whole, names = Clock(arguments.minutes), arguments.models.split(",")
    for index, name in enumerate(names):
        minutes = (whole.seconds - whole.spent) / 60 / (len(names) - index)
        tried = Tried(name, arguments, Clock(minutes))
        tried.run()
        device = executor_of(tried.engine).adapter.device
        del tried
        free(device)


if __name__ == "__main__":
    main()

"""Prompts of 2 k and 8 k: attention of one layer, and the whole pass up to the first token behind it.

    python -m benchmarks.prefill --minutes 1                          Qwen3-8B shapes on one GPU

The attention is that of `attention.py` (its gate, its limit, its stopwatch), for networks that have its heads. A pass is timed as a run that comes alone
meets it: from its submission to its first token, nothing shared and nothing found. Beside it stands a floor: linear layers at
so many tokens, plus the attention's limit in all layers. The gate of a pass: its last token's logits against plain
torch attention; with experts also the modelling code's, which are given the choices of our routers (`benchmarks/routers.py`), and its
routers have to find hardly one far from their own. The floor knows neither experts nor other heads, and stands for networks without them. Each prompt is another one; the first two of its length, of which one
is recorded, are not counted. Between two series with experts in 16 bits stands one with the
modelling code's experts and routers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import situations
from benchmarks.attention import PREFILL_HEADS, Attention, Case
from benchmarks.decode import each_network, free
from benchmarks.engine_parts import executor_of
from benchmarks.gate import Checked, compare, plain
from benchmarks.results import Clock, Results, parser
from benchmarks.routers import (
    Alike,
    ChosenExperts,
    as_before,
    given_choices,
    routers_of,
    watched_routers,
)
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.start_up import first_token
from benchmarks.timing import linears_ms
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine

LENGTHS, REPEATS = (2048, 8192), 5


class Prefill(Attention):
    """One network: attention alone, then passes."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(arguments, clock)
        self.lengths = (40, 70) if arguments.tiny else LENGTHS
        self.shape: Shape = TINY if arguments.tiny else SHAPES[name]
        self.results = Results(f"prefill_{name}", arguments, clock)
        self.files["prefills"] = self.results  # `Attention` writes its cells there

    def run(self) -> None:
        """Attention, floor, passes."""
        self.results.put(
            model=self.shape.title,
            backend=self._backend(PREFILL_HEADS).name,
            dtype=str(self.dtype).removeprefix("torch."),
            copy_bytes_per_second=round(self.bandwidth),
            operations_per_second=round(self.rate),
        )
        config = self.shape.config
        heads = config["num_attention_heads"], config["num_key_value_heads"]
        for length in self.lengths if heads == PREFILL_HEADS else ():
            views = partial(situations.prefill, 0)
            with self.results.surviving(f"attention of {length}"):
                self._measure(Case("prefills", f"0 {length}", PREFILL_HEADS, views, length))
        # A prompt's pass has the head's product for its last token alone.
        products = self.shape.products()[:-1]
        with torch.inference_mode():
            linears = linears_ms(products, list(self.lengths), self.device, self.dtype)
        free(self.device)
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine.load(
                self.shape.write(Path(folder)),
                device=self.arguments.device,
                dtype=str(self.dtype).removeprefix("torch."),
                backend=self.arguments.backend,
                weights="dummy",
                memory_tokens=4 * max(self.lengths) + 4096,
            )
        for length in self.lengths:
            if not self.clock.allows(5):
                self.results.leave_out(f"passes of {length}", "no time")
                continue
            with self.results.surviving(f"passes of {length}"):
                self._passes(engine, length, linears[length])

    def _passes(self, engine: Engine, length: int, linears: float) -> None:
        numbers = random.Random(length)
        gate, alike = check_prompt(engine, self._prompt(numbers, engine, length))
        found = {"tokens": length, "gate": asdict(gate)}
        has_routers = bool(routers_of(engine))
        if has_routers:
            found |= {"same_experts": alike.same, "far_experts": alike.far}
        if not (gate.is_green and alike.is_green):
            self.results.add("red", **found)
            return
        seconds = self._seconds(engine, length, numbers)
        seconds_before: list[float] = []
        if has_routers and not self.shape.is_mxfp4:
            with as_before(engine):
                seconds_before = self._seconds(engine, length, numbers)
            seconds += self._seconds(engine, length, numbers)
        middle = statistics.median(seconds)
        cells = self.results.content.get("cells", [])
        limit = next((c["us_limit"] for c in cells if c["name"] == f"0 {length}"), None)
        floors = {}
        if limit is not None and not has_routers:
            floor = linears + 1e-3 * limit * self.shape.num_layers
            floors = {"floor_ms": round(floor, 3), "linears_ms": round(linears, 3)}
        self.results.add(
            "passes",
            **found,
            ms=round(1e3 * middle, 3),
            ms_worst=round(1e3 * max(seconds), 3),
            **floors,
            **_before(seconds_before, middle),
            tokens_per_second=round(length / middle),
        )

    def _seconds(self, engine: Engine, length: int, numbers: random.Random) -> list[float]:
        """Until the first tokens of some prompts. Passes that were recorded before are made anew."""
        forget = getattr(executor_of(engine).passes, "forget", None)
        if forget is not None:
            forget()
        repeats = 1 if self.arguments.tiny else REPEATS
        prompts = [self._prompt(numbers, engine, length) for _ in range(2 + repeats)]
        return [first_token(engine, prompt) for prompt in prompts][2:]

    def _prompt(self, numbers: random.Random, engine: Engine, length: int) -> tuple[int, ...]:
        return tuple(numbers.randrange(2, engine.facts.vocab_size) for _ in range(length))


def _before(seconds: list[float], middle: float) -> dict[str, float]:
    """What the same network takes by the modelling code's experts and routers, if it was asked."""
    if not seconds:
        return {}
    before = statistics.median(seconds)
    return {"ms_before": round(1e3 * before, 3), "times_as_fast": round(before / middle, 3)}


def check_prompt(engine: Engine, prompt: tuple[int, ...]) -> tuple[Checked, Alike]:
    """The same of one prompt, see `check_prompts`."""
    return check_prompts(engine, [prompt])


def check_prompts(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> tuple[Checked, Alike]:
    """The logits behind prompts in one step against those of plain torch attention; and the opinion of its routers about our choices."""
    chosen: list[list[ChosenExperts]] = [[] for _ in routers_of(engine)]

    def logits(of: Engine) -> Tensor:
        return of.forward(Step(Row(View([Block()]), prompt) for prompt in prompts)).float()

    with watched_routers(engine, lambda router, choice: chosen[router].append(choice)):
        ours = logits(engine)
    with as_before(engine), given_choices(engine, chosen) as alike:
        theirs = logits(plain(engine))
    adapter = executor_of(engine).adapter
    return compare(ours, theirs, adapter.dtype, adapter.num_layers), alike


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=1.0)
    options.add_argument("--models", default="qwen3-8b")
    options.set_defaults(outsiders=None)  # they take part in attention.py
    arguments = options.parse_args(words)
    each_network(arguments, Prefill)


if __name__ == "__main__":
    main()

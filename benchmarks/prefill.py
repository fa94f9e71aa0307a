"""Prompts of 1 k to 8 k: attention of one layer, and the whole pass up to the first token behind it.

    python -m benchmarks.prefill --minutes 1                          Qwen3-8B shapes on one GPU

The attention is that of `attention.py` (its gate, its limit, its stopwatch), for networks that have its heads. A pass is timed as a run that comes alone
meets it: from its submission to its first token, nothing shared and nothing found. Beside it stands a floor: linear layers at
so many tokens, plus the attention's limit in all layers. The gate of a pass: its last token's logits against plain
torch attention; with experts also the modelling code's, which are given the choices of our routers (`benchmarks/routers.py`), and its
routers have to find hardly one far from their own. The floor knows neither experts nor other heads, and stands for networks without them. Each prompt is another one; the first two
of each way are not counted. The ways, in turns, in an engine that got ready as a server does:

    ms             as users have it
    ms_launched    launch by launch, without recordings
    ms_before      the same by the modelling code's experts and routers, where experts have 16 bits
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
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
    unrecorded,
    watched_routers,
)
from benchmarks.shapes import SHAPES, TINY, Shape
from benchmarks.start_up import first_token
from benchmarks.timing import linears_ms
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine

LENGTHS, NOT_COUNTED, COUNTED = (1100, 2048, 8192), 2, 5


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
        began = time.perf_counter()
        engine.get_ready()
        self.results.put(seconds_to_get_ready=round(time.perf_counter() - began, 3))
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
        middle = statistics.median(seconds["ms"])
        cells = self.results.content.get("cells", [])
        limit = next((c["us_limit"] for c in cells if c["name"] == f"0 {length}"), None)
        floors = {}
        if limit is not None and not has_routers:
            floor = linears + 1e-3 * limit * self.shape.num_layers
            floors = {"floor_ms": round(floor, 3), "linears_ms": round(linears, 3)}
        self.results.add(
            "passes",
            **found,
            **{way: round(1e3 * statistics.median(found), 3) for way, found in seconds.items()},
            ms_worst=round(1e3 * max(seconds["ms"]), 3),
            **floors,
            tokens_per_second=round(length / middle),
        )

    def _seconds(
        self, engine: Engine, length: int, numbers: random.Random
    ) -> dict[str, list[float]]:
        """Until the first tokens of some prompts, in every way in turns."""
        ways: dict[str, list[Callable[[Engine], AbstractContextManager[None]]]] = {
            "ms": [],
            "ms_launched": [unrecorded],
        }
        if routers_of(engine) and not self.shape.is_mxfp4:
            ways["ms_before"] = [unrecorded, as_before]
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(2 if self.arguments.tiny else NOT_COUNTED + COUNTED):
            for way, contexts in ways.items():
                with ExitStack() as stack:
                    for context in contexts:
                        stack.enter_context(context(engine))
                    prompt = self._prompt(numbers, engine, length)
                    seconds[way].append(first_token(engine, prompt))
        not_counted = 1 if self.arguments.tiny else NOT_COUNTED
        return {way: each[not_counted:] for way, each in seconds.items()}

    def _prompt(self, numbers: random.Random, engine: Engine, length: int) -> tuple[int, ...]:
        return tuple(numbers.randrange(2, engine.facts.vocab_size) for _ in range(length))


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

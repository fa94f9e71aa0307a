"""Decoding with experts: milliseconds per pass, beside the modelling code's own experts in the same engine.

    python -m benchmarks.experts --models qwen3-30b-a3b,gpt-oss-20b --minutes 4

Teams of 1 to 16 workers and completions of one prompt, all behind 1 k. A pass reads the experts that its tokens have chosen,
so these are counted: the floor is all other linear layers in one CUDA graph, plus the bytes of those experts and
of the keys and values in use at the speed of a copy. The same passes are made by three engines with the same weights: with our kernels
(`manyhands/model/kernels/experts.py`) and a count in every layer, which is not timed, with our kernels alone, and with the
experts and routers of transformers, as it was without these kernels. Experts in mxfp4 (`kernels/mxfp4.py`) are held against ours
in 16 bits instead, where these have room. The weights are random, so a token's experts are as well.

The gate: experts of the first layer against float64, one token and one expert after the other; and whole steps as in
`benchmarks/decode.py`, where the other side is given the experts that ours has chosen. Left to itself it would round
otherwise, choose another expert for a token here and there, and be somewhere else after 48 layers of random weights.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.decode import (
    Decode,
    check_engine_op,
    each_network,
    free,
    put_limits,
    recording,
)
from benchmarks.engine_parts import executor_of
from benchmarks.gate import Checked, check_against, compare, plain
from benchmarks.results import Clock, Results, parser
from benchmarks.routers import as_before, routers_of
from benchmarks.shapes import SHAPES, tiny_of
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.evaluation.bench import fill, seat, time_passes, timing, tokens_in_use, views_of
from manyhands.model.experts import gate_of
from manyhands.model.quantised.mxfp4 import Mxfp4Stack
from manyhands.model.routing import routing_of

HISTORY, COMPLETIONS = 1024, (32, 64, 128, 256)
_SERIES = 3  # of passes, of which the last one counts
_ROOM = 0.6  # of a device's memory for experts in 16 bits
_CHECKED = 24  # tokens whose experts are looked at in float64


class Experts(Decode):
    """One network, all its cells."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        super().__init__(name, arguments, clock)
        self.shape = SHAPES[name]
        if arguments.tiny:
            self.shape = tiny_of(self.shape)
        self.results = Results(f"experts_{name}", arguments, clock)
        self.lengths = (32,) if arguments.tiny else (HISTORY,)
        self.completions = (8,) if arguments.tiny else COMPLETIONS
        self.teams = self.workers
        self.workers = (*self.teams, *self.completions)
        self.quantise = "auto" if self.shape.is_mxfp4 else "none"
        self.watch: Watch | None = None
        self.is_checked = False

    def run(self) -> None:
        """Floor, gate and counts, our kernels, those of before."""
        limits = put_limits(self)
        self.results.put(
            kv_bytes_per_token=self.shape.token_bytes(self.dtype.itemsize),
            expert_bytes=self.shape.expert_bytes(self.dtype.itemsize),
            num_experts=self.shape.num_experts,
        )
        with tempfile.TemporaryDirectory() as folder:
            place = self.shape.write(Path(folder))
            watched = self._each(place, self._watched)
            right = {rows for rows, found in watched.items() if found is not None}
            ours = self._each(place, self._timed, right)
            for rows, seconds in ours.items():
                self._put(rows, seconds, watched[rows], limits[rows])
            # The cells are written by now, whatever becomes of the other side.
            before = self._before(place, right & set(ours))
        for cell in self.results.content.get("cells", []):
            if (theirs := before.get(cell["rows"])) is not None:
                cell["before_ms"] = round(1e3 * statistics.median(theirs), 4)
        self.results.put()

    def _put(self, rows: int, seconds: list[float], found: Any, linears: float) -> None:
        gate, read, in_use = found
        num_bytes = self.results.content["kv_bytes_per_token"] * in_use
        num_bytes += self.results.content["expert_bytes"] * read * self.shape.num_stacks
        limit = linears + 1e3 * num_bytes / self.results.content["copy_bytes_per_second"]
        times = asdict(timing(seconds, rows, self.lengths[0], in_use, limit))
        self.results.add(
            "cells",
            rows=times.pop("workers"),
            team=rows in self.teams,
            **times,
            experts_read=round(read, 2),
            before_ms=None,
            gate=gate,
        )

    def _before(self, place: Path, wanted: Set[int]) -> dict[int, Any]:
        """Passes with the modelling code's experts; or, if these have mxfp4, with ours in 16 bits, where they have room."""
        if not self.shape.is_mxfp4:
            return self._each(place, self._timed_before, wanted)
        whole = replace(self.shape, config={**self.shape.config, "quantization_config": None})
        experts = self.shape.num_experts * self.shape.num_layers
        if self.device.type == "cuda":
            room = torch.cuda.get_device_properties(self.device).total_memory
            if experts * whole.expert_bytes(self.dtype.itemsize) > _ROOM * room:
                self.results.leave_out("experts in 16 bits", "no room")
                return {}
        self.quantise = "none"
        with tempfile.TemporaryDirectory() as folder:
            there = whole.write(Path(folder))
            # The same seed makes other weights of another form, so these may choose other experts.
            read = self._each(there, self._counted, wanted)
            for cell in self.results.content.get("cells", []):
                cell["before_experts_read"] = read.get(cell["rows"])
            return self._each(there, self._timed, wanted)

    def _each(
        self, place: Path, work: Callable[[Engine, Block, int], Any], wanted: Set[int] | None = None
    ) -> dict[int, Any]:
        """The work for each number of rows, in an engine of its own."""
        engine = self._engine(place)
        history = fill(engine, Block("history"), self.lengths[0], seed=0).freeze()
        found = {}
        for rows in self.workers:
            if wanted is not None and rows not in wanted:
                continue
            if self.clock.allows(3):
                with self.results.surviving(f"{rows} rows, {work.__name__.strip('_')}"):
                    found[rows] = work(engine, history, rows)
                self.clock.say(f"{work.__name__.strip('_')}, {rows} rows")
            else:
                self.results.leave_out(f"{rows} rows, {work.__name__.strip('_')}", "no time")
        self.results.put(**recording(engine))
        self.watch = None
        del engine, history
        free(self.device)
        return found

    def _watched(self, engine: Engine, history: Block, rows: int) -> Any:
        """How far off, the experts that a layer reads on average, and tokens in use; None if something is wrong."""
        stacks = stacks_of(executor_of(engine).adapter.model)
        is_packed = self.shape.is_mxfp4 and self.device.type == "cuda"
        assert isinstance(stacks[0], Mxfp4Stack) == is_packed, "these weights were asked for"
        if not self.is_checked:
            self.is_checked = True
            checked = check_experts(stacks[0], self.dtype, self.device)
            self.results.put(experts_gate=asdict(checked))
            if not checked.is_green:
                raise RuntimeError(
                    f"experts are {checked.error} off where {checked.tolerance} is allowed"
                )
        watch = self._watch(engine)
        views, twins = (self._seated(engine, history, rows) for _ in range(2))
        in_use = tokens_in_use(views)
        step = self._check_step(engine, watch, views, twins)
        op = check_engine_op(engine, views, sorted({0, rows - 1}))
        gate = {"step": asdict(step), "op": asdict(op)}
        if not (step.is_green and op.is_green):
            self.results.add("red", rows=rows, gate=gate)
            return None
        del views, twins  # their pages are wanted
        return gate, self._counted(engine, history, rows), in_use

    def _watch(self, engine: Engine) -> Watch:
        """The one of this engine."""
        if self.watch is None:
            self.watch = Watch(engine, self.shape.config["num_experts_per_tok"])
        return self.watch

    def _counted(self, engine: Engine, history: Block, rows: int) -> float:
        """Experts that a layer reads on average."""
        watch = self._watch(engine)
        self._timed(engine, history, rows)
        return round(float(watch.read.sum() / watch.passes.sum()), 2)

    def _timed(self, engine: Engine, history: Block, rows: int) -> list[float]:
        """Seconds of passes over views of their own, so that all engines write the same."""
        views = self._seated(engine, history, rows)
        for _ in range(
            _SERIES
        ):  # in the first ones passes are recorded; as many in each engine, so that rows write the same
            if self.watch is not None:
                self.watch.forget()
            seconds = time_passes(engine, views, passes=self.passes, warm_up=5)
        return seconds

    def _timed_before(self, engine: Engine, history: Block, rows: int) -> list[float]:
        """The same with the modelling code's experts and routers."""
        with as_before(engine):  # all passes of this engine are: nothing else is recorded
            return self._timed(engine, history, rows)

    def _check_step(
        self, engine: Engine, watch: Watch, views: list[View], twins: list[View]
    ) -> Checked:
        """One step of ours against plain torch attention and the modelling code's experts, which are given our choice."""
        ours = engine.forward(Step([Row(view, (1,)) for view in views])).float()
        watch.are_given = True
        try:
            with as_before(engine):
                theirs = plain(engine).forward(Step([Row(view, (1,)) for view in twins])).float()
        finally:
            watch.are_given = False
        adapter = executor_of(engine).adapter
        return compare(ours, theirs, adapter.dtype, adapter.num_layers)

    def _seated(self, engine: Engine, history: Block, rows: int) -> list[View]:
        if rows in self.teams:
            return views_of(seat(engine, history, rows, self.desk))
        desks = (fill(engine, Block(), self.desk, seed=1 + row) for row in range(rows))
        return [View((history, desk)) for desk in desks]


class Watch:
    """Notes in every layer, on the device and also in recordings, which experts a pass chose, and how many it reads."""

    def __init__(self, engine: Engine, chosen: int) -> None:
        adapter = executor_of(engine).adapter
        routers = routers_of(engine)
        routing = routing_of(routers[0])
        assert routing is not None, "it was found by its routing"
        num_layers, num_experts = len(routers), len(routing.weight_of(routers[0]))
        size, device = (num_layers, 2 * max(COMPLETIONS), chosen), adapter.device
        self.index = torch.zeros(size, dtype=torch.int64, device=device)
        self.shares = torch.zeros(size, dtype=routing.dtype or adapter.dtype, device=device)
        self.are_given = False  # routers give these, whatever they say
        self.seen = torch.zeros(num_layers, num_experts, device=device)
        self.read, self.passes = torch.zeros(2, num_layers, device=device)
        self._hooks = [
            router.register_forward_hook(self._of(layer)) for layer, router in enumerate(routers)
        ]

    def end(self) -> None:
        """Note nothing any more."""
        for hook in self._hooks:
            hook.remove()

    def forget(self) -> None:
        """Count from here on."""
        self.read.zero_()
        self.passes.zero_()

    def _of(self, layer: int) -> Any:
        def note(router: nn.Module, given: object, out: tuple[Tensor, Tensor, Tensor]) -> Any:
            logits, shares, index = out
            kept = [each[layer, : len(index)] for each in (self.shares, self.index)]
            if self.are_given:
                return logits, *kept
            for mine, each in zip(kept, (shares, index), strict=True):
                mine.copy_(each)
            self.seen[layer].zero_().index_fill_(0, index.flatten(), 1.0)
            self.read[layer] += self.seen[layer].sum()
            self.passes[layer] += 1
            return None

        return note


def stacks_of(model: nn.Module) -> list[Any]:
    """The stacks of experts, in the order of layers."""
    return [module for module in model.modules() if gate_of(module) is not None]


@torch.inference_mode()
def check_experts(stack: Any, dtype: torch.dtype, device: torch.device) -> Checked:
    """A stack as it is called, against float64, each token through one of its experts after the other."""
    gate = gate_of(stack)
    assert gate is not None, "it was found by its gate"
    clamp, chosen = gate[1], min(4, stack.num_experts)
    size = weight_of(stack, "gate_up_proj", 0).shape[1]
    x = torch.randn(_CHECKED, size, device=device).to(dtype)
    index = torch.rand(_CHECKED, stack.num_experts, device=device).topk(chosen).indices
    shares = torch.rand(_CHECKED, chosen, device=device).to(dtype)
    out = stack(x, index, shares)
    both_bias, down_bias = (
        torch.zeros(stack.num_experts, 1, dtype=torch.float64, device=device)
        if (bias := getattr(stack, f"{name}_bias", None)) is None
        else bias.double()
        for name in ("gate_up_proj", "down_proj")
    )
    want = torch.zeros(out.shape, dtype=torch.float64, device=device)
    for token in range(_CHECKED):
        for expert, share in zip(index[token].tolist(), shares[token].double(), strict=True):
            first, second = (
                weight_of(stack, name, expert) for name in ("gate_up_proj", "down_proj")
            )
            inner = first @ x[token].double() + both_bias[expert]
            if clamp:
                alpha, limit = clamp
                turned, value = inner[::2].clamp(max=limit), inner[1::2].clamp(-limit, limit)
                inner = turned * torch.sigmoid(alpha * turned) * (1 + value)
            else:
                turned, value = inner.chunk(2)
                inner = functional.silu(turned) * value
            want[token] += share * (second @ inner + down_bias[expert])
    return check_against(out, want)


def weight_of(stack: Any, name: str, expert: int) -> Tensor:
    """The weight [N, K] of one expert in float64."""
    if isinstance(stack, Mxfp4Stack):
        return stack.dequantised(name, expert, torch.float64)
    weight: Tensor = getattr(stack, name)[expert].double()
    return weight.T if stack.is_transposed else weight


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=4.0)
    options.add_argument("--models", default="qwen3-30b-a3b,gpt-oss-20b")
    arguments = options.parse_args(words)
    arguments.no_peers, arguments.quantise = True, "none"
    each_network(arguments, Experts)


if __name__ == "__main__":
    main()

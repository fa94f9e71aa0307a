"""The gate of whole engines, asked of this engine alone: itself in float32, itself in 16 bits, and that with faults planted.

    python -m benchmarks.gate_controls --models qwen3-8b,qwen3-30b-a3b,gpt-oss-20b-mxfp4

`benchmarks/whole_engines.py` lets two engines run beside each other if they agree on the tokens of a small network. How far apart
two right engines are is asked here: this engine writes in float32 with plain torch, and reads what it wrote in the dtype and with the
kernels that are timed. What follows are *controls*, each a fault that the gate is there for: a token of the prompt exchanged, two
experts of a layer, a bias left out, the sink of one head. A tolerance has to lie between the first line and those below. Which faults
it cannot see stands there as well: experts that hardly any row asks for, and one sink of sixteen.

With experts it is also asked of which tokens the routers chose another set of them in 16 bits, and how far off the others are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.decode import free
from benchmarks.engine_parts import executor_of
from benchmarks.results import Clock, Results, parser
from benchmarks.routers import ChosenExperts, watched_routers
from benchmarks.shapes import SHAPES, TINY, tiny_of
from benchmarks.vllm_process import Crowd, Tokens
from benchmarks.whole_engines import (
    GATE_CROWD,
    compare,
    gate_shape,
    read_along,
    save_small,
    write_along,
)
from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine

MODELS = ("qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b-mxfp4")
TINY_CROWD = Crowd("gate", 4, (48, 48), 12)
_EXCHANGED = ((0, 1), (2, 3), (4, 5))  # experts
_NO_SINK = -20.0


class _OneToken(Crowd):
    """A crowd whose shared prompt has another token in its midst."""

    def prompts(self, vocab_size: int, turn: int = 0) -> tuple[Tokens, list[Tokens]]:
        shared, tails = super().prompts(vocab_size, turn)
        place = len(shared) // 3
        shared[place] = (shared[place] + 7) % vocab_size
        return shared, tails


def measure(name: str, arguments: argparse.Namespace, clock: Clock) -> None:
    """All lines of one network."""
    results = Results(f"gate_controls_{name}", arguments, clock)
    shape, crowd = gate_shape(SHAPES[name]), GATE_CROWD
    if arguments.tiny:
        shape, crowd = tiny_of(SHAPES[name]) if shape.num_experts else TINY, TINY_CROWD
    results.put(model=shape.title, rows=crowd.rows, prompt=crowd.prompt[0])
    with tempfile.TemporaryDirectory() as folder:
        place = save_small(Path(folder) / "gate", shape)
        load = partial(Engine.load, place, device=arguments.device, memory_tokens=16384)
        exact = load(dtype="float32", backend="torch")
        half = load(dtype="bfloat16", backend=arguments.backend)
    likeliest = [Choice(logprobs=1)] * crowd.rows
    tokens, told = write_along(exact, crowd, crowd.tokens, lambda turn: likeliest)
    logprobs = [[each.logprob for each in row] for row in told]

    def add(what: str, crowd: Crowd = crowd) -> None:
        found = compare(half, crowd, tokens, logprobs)
        green = found.is_green(has_experts=shape.num_experts > 0)
        results.add("lines", what=what, green=green, **asdict(found))

    add("16 bits")
    if shape.num_experts:
        results.put(**other_experts(exact, half, crowd, tokens))
    add("one token of the prompt", _OneToken(**asdict(crowd)))
    for what, fault in faults(executor_of(half).adapter.model, shape.num_experts):
        with fault:
            add(what)
    add("16 bits once more")


# -- experts ---------------------------------------------------------------------------------------


def other_experts(
    exact: Engine, half: Engine, crowd: Crowd, tokens: Sequence[Tokens]
) -> dict[str, Any]:
    """Of how many tokens 16 bits chose other experts, and how far these and the others are from float32."""
    sets = [chosen_experts(engine, crowd, tokens) for engine in (exact, half)]
    far = [
        [[each.logprob for each in row] for row in read_along(engine, crowd, tokens)]
        for engine in (exact, half)
    ]
    distances: dict[bool, list[float]] = {False: [], True: []}
    for turn, (ours, theirs) in enumerate(zip(*sets, strict=True)):
        for row in range(crowd.rows):
            distance = abs(far[0][row][turn] - far[1][row][turn])
            distances[ours[row] != theirs[row]].append(distance)
    return {
        "with_other_experts": len(distances[True]),
        "worst_with_other_experts": round(max(distances[True], default=0.0), 4),
        "worst_with_the_same": round(max(distances[False]), 4),
        "mean_with_the_same": round(statistics.fmean(distances[False]), 4),
    }


def chosen_experts(
    engine: Engine, crowd: Crowd, tokens: Sequence[Tokens]
) -> list[list[tuple[tuple[int, ...], ...]]]:
    """Experts of every layer, in order, for each turn and each row of it."""
    layers: dict[int, list[list[tuple[int, ...]]]] = {}

    def note(router: int, chosen: ChosenExperts) -> None:
        rows = chosen.experts[-crowd.rows :].sort(-1).values.tolist()
        layers.setdefault(router, []).append([tuple(each) for each in rows])

    with watched_routers(engine, note):
        read_along(engine, crowd, tokens)
    turns = min(map(len, tokens))
    behind = [layer[-turns:] for layer in layers.values()]
    return [
        [tuple(layer[turn][row] for layer in behind) for row in range(crowd.rows)]
        for turn in range(turns)
    ]


def faults(model: Any, num_experts: int) -> Iterator[tuple[str, Any]]:
    """Faults by name, each a context in which the network has it."""
    layers = model.model.layers
    for at in sorted({0, len(layers) - 1}) if num_experts else ():
        stack = layers[at].mlp.experts
        held = [
            each for each in (*stack.buffers(), *stack.parameters()) if len(each) == num_experts
        ]
        for pair in _EXCHANGED:
            yield f"experts {pair[0]} and {pair[1]} of layer {at}", _exchanged(held, pair)
        bias = getattr(stack, "down_proj_bias", None)
        if bias is not None:
            yield f"no biases of second products in layer {at}", _changed(bias, Tensor.zero_)
    sinks = getattr(layers[0].self_attn, "sinks", None)
    if sinks is not None:
        yield f"no sink of one head of {len(sinks)}", _changed(sinks, _first_sink_gone)


def _first_sink_gone(sinks: Tensor) -> object:
    sinks[0] = _NO_SINK
    return sinks


@contextmanager
def _exchanged(held: Sequence[Tensor], pair: tuple[int, int]) -> Iterator[None]:
    """Two rows of all tensors in each other's place."""

    def turn() -> None:
        with torch.no_grad():
            for each in held:
                each[list(pair)] = each[list(pair[::-1])].clone()

    turn()
    try:
        yield
    finally:
        turn()


@contextmanager
def _changed(weight: Tensor, change: Callable[[Tensor], object]) -> Iterator[None]:
    """A weight changed in place."""
    before = weight.detach().clone()
    with torch.no_grad():
        change(weight)
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument("--models", default=",".join(MODELS))
    arguments = options.parse_args(words)
    clock = Clock(arguments.minutes)
    for name in arguments.models.split(","):
        measure(name, arguments, clock)
        free(torch.device(arguments.device))


if __name__ == "__main__":
    main()

"""The same decode steps in Hugging Face's own code, which shares nothing between the rows of a batch.

Every row of the batch keeps its own copy of all tokens that its worker sees. Two settings: as it comes
(SDPA, a cache that grows), and with a cache of fixed size under `torch.compile(mode="reduce-overhead")`,
whose start-up time is reported. Keys and values are made up here as in `manyhands.evaluation.bench`.

They also are a gate: one row over a made-up history must get the same logits from this project's engine
and from unmodified code on the same keys, values and weights.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, DynamicCache, StaticCache

from benchmarks.engine_parts import executor_of
from benchmarks.gate import Checked, compare
from benchmarks.results import Clock, Results, in_a_line
from manyhands.attention.rotary import Rope, rotate
from manyhands.attention.store import LayerShape
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import made_up
from manyhands.evaluation.bench import HEADER_TOKENS, MARKER_TOKENS, fill
from manyhands.model.dummy import dummy_model
from manyhands.model.quiet import quiet

WORKERS = (1, 2, 4)
COMPILED = ((0, 1), (0, 4), (1, 1))  # (which history, batch): what there is time to compile
_PASSES, _WARM_UP = 8, 3
_TOKEN = 5
_SECONDS_TO_LOAD, _SECONDS_TO_COMPILE = 25, 80
# The name that a network gives its cache.
_HAS_NEW_NAME = tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24)
_CACHE = "cache" if _HAS_NEW_NAME else "past_key_values"


@dataclass(frozen=True, eq=False)
class Probe:
    """The logits of this project's engine after one token on a made-up history."""

    history: int
    logits: Tensor  # [1, vocab], on the host
    ropes: tuple[Rope | None, ...]
    numbers: Any  # facts of the network for `made_up`
    seed: int = 77


@dataclass(frozen=True)
class _Numbers:
    """The sizes of keys and values, kept when the network is gone."""

    device: torch.device
    dtype: torch.dtype
    layers: tuple[LayerShape, ...]


def probe(engine: Engine, history: int) -> Probe:
    """Ask the engine, before its network makes room for the peers'."""
    adapter = executor_of(engine).adapter
    block = fill(engine, Block("probe"), history, seed=Probe.seed).freeze()
    logits = engine.forward(Step([Row(View([block, Block()]), (_TOKEN,))]))
    numbers = _Numbers(adapter.device, adapter.dtype, adapter.layers)
    return Probe(history, logits.float().cpu(), adapter.ropes, numbers)


@torch.no_grad()
def run_peers(
    place: Path,
    probes: Sequence[Probe],
    lengths: Sequence[int],
    desk: int,
    results: Results,
    clock: Clock,
) -> None:
    """Gate, then times; what there is no time for is left out by name."""
    if not clock.allows(_SECONDS_TO_LOAD):
        results.leave_out("peers", "the time was over")
        return
    numbers = probes[0].numbers
    config = AutoConfig.from_pretrained(place)
    try:
        with quiet():
            model = dummy_model(config, device=numbers.device, dtype=numbers.dtype)
    except torch.OutOfMemoryError:
        results.leave_out("peers", "their network does not fit")
        return
    model.set_attn_implementation("sdpa")
    verdicts = [_gate(model, probe) for probe in probes]
    for at, verdict in zip(probes, verdicts, strict=True):
        results.add("against_hf", history=at.history, **asdict(verdict), green=verdict.is_green)
    if not all(verdict.is_green for verdict in verdicts):
        results.leave_out("peers", "the two sides do not compute the same")
        return
    for length in lengths:
        for batch in WORKERS:
            tokens = length + 2 * HEADER_TOKENS + batch * desk + (batch - 1) * MARKER_TOKENS
            _measure("eager", model, config, numbers, length, tokens, batch, results)
    for which, batch in COMPILED if numbers.device.type == "cuda" else ():
        length = lengths[which]
        tokens = length + 2 * HEADER_TOKENS + batch * desk + (batch - 1) * MARKER_TOKENS
        if clock.allows(_SECONDS_TO_COMPILE):
            _measure("static, compiled", model, config, numbers, length, tokens, batch, results)
        else:
            results.leave_out(f"static, compiled: batch {batch}, history {length}", "no time")


def _gate(model: Any, at: Probe) -> Checked:
    cache = DynamicCache()
    for layer, rope in enumerate(at.ropes):
        k, v = made_up(at.numbers, layer, at.history, at.seed)
        k = rotate(k, torch.arange(at.history, device=k.device), rope)
        cache.update(k.transpose(0, 1)[None], v.transpose(0, 1)[None], layer)
    token = torch.tensor([[_TOKEN]], device=at.numbers.device)
    out = model(input_ids=token, use_cache=True, **{_CACHE: cache})
    logits = out.logits[:, -1].float().cpu()
    return compare(at.logits, logits, at.numbers.dtype, len(at.ropes))


def _measure(
    peer: str,
    model: Any,
    config: Any,
    numbers: _Numbers,
    length: int,
    tokens: int,
    batch: int,
    results: Results,
) -> None:
    """One cell of one peer; a cache that does not fit beside the weights is said to not fit."""
    step: Callable[..., Any] = model
    began = time.perf_counter()
    try:
        if peer == "eager":
            cache: Any = DynamicCache()
        else:
            cache = StaticCache(config=config, max_cache_len=tokens + _PASSES + _WARM_UP + 1)
            torch.compiler.reset()  # its start-up counts, every time
            step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
        for layer, shape in enumerate(numbers.layers):
            size = (batch, shape.num_kv_heads, tokens, shape.head_dim)
            k, v = (torch.randn(size, device=numbers.device, dtype=numbers.dtype) for _ in "kv")
            cache.update(k, v, layer)
        times = _passes(step, cache, batch, tokens, numbers.device)
    except RuntimeError as error:  # out of memory, or a compiler that gives up
        results.leave_out(f"{peer}: batch {batch}, history {length}", in_a_line(error))
        return
    finally:
        cache = None
        _free(numbers.device)
    median = statistics.median(times[_WARM_UP:])
    results.add(
        "peers",
        peer=peer,
        workers=batch,
        history=length,
        tokens=tokens,
        ms=round(1e3 * median, 3),
        tokens_per_second=round(batch / median, 2),
        start_seconds=round(time.perf_counter() - began - sum(times[_WARM_UP:]), 1),
    )


def _passes(
    step: Callable[..., Any], cache: Any, batch: int, tokens: int, device: torch.device
) -> list[float]:
    """Seconds of each decode step, the choice of the likeliest token included."""
    ids = torch.zeros(batch, 1, dtype=torch.long, device=device)
    times = []
    for index in range(_WARM_UP + _PASSES):
        began = time.perf_counter()
        position = torch.full((batch, 1), tokens + index, device=device)
        out = step(input_ids=ids, position_ids=position, use_cache=True, **{_CACHE: cache})
        ids = out.logits[:, -1:].argmax(-1).clone()
        ids[0, 0].item()
        times.append(time.perf_counter() - began)
    return times


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

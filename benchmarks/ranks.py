"""One model over several GPUs of a host: milliseconds per pass, beside the same passes on one GPU.

    python -m benchmarks.ranks --ranks 2 --minutes 4
    python -m benchmarks.ranks --ranks 2 --models qwq-32b --minutes 2
    pytest tests/engine/ranks/test_on_gpus.py             # first: are the numbers right

First a tiny network in float32 writes beside itself on one device: without equal tokens nothing is timed. Then each
network on `--ranks` GPUs, with sums of few tokens through peers' memory and, where those could be had, by NCCL
alone; at last the networks on one GPU. Teams of 1 and 4 workers over histories of 1 k and 16 k tokens, and 1 024
completions of one prompt of 1 k and 16 k for CodeLlama. Every cell prints its line and is on the disk at once.

`collectives_ms`: the time of kernels in which ranks meet, on rank 0, by torch's profiler; it contains the wait for
the slowest rank, and `joined_ms` of it is that of our own, which make residual sums and norms besides.
`idle_ms`: the wall clock's pass less the kernels on rank 0.

One GPU and several are not held at once: the ranks have ended before one GPU loads. Without a GPU, `--tiny
--device cpu` runs all of it over processes on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import World
from manyhands.evaluation.bench import fill, seat, time_passes, timing, tokens_in_use, views_of
from manyhands.model.quiet import quiet
from manyhands.model.settings import ModelSettings
from manyhands.strategies.base import Answer, Strategy

LENGTHS, WORKERS, DESK, PASSES = (1024, 16384), (1, 4), 128, 48
COMPLETIONS, SUFFIX = 1024, 16
MODELS = ("qwq-32b", "qwen3-8b", "codellama-7b")
_LOAD = 12  # seconds that a network and a cell take at least: none is begun without them


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 9)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--ranks", type=int, default=2)
    arguments = options.parse_args(argv)
    clock = Clock(arguments.minutes)
    names = arguments.models.split(",")
    files = {name: Results(f"ranks_{name}", arguments, clock) for name in names}
    world = World.start(arguments.ranks, arguments.device)
    clock.say(f"{arguments.ranks} ranks have started")
    try:
        same = _writes_the_same(world, arguments)
        for results in files.values():
            results.put(same_tokens=same)
        if not same:
            raise SystemExit("the ranks write other tokens than one device: nothing is timed")
        for name, results in files.items():
            with results.surviving(f"{name} on {arguments.ranks}"):
                if _measure(name, world, arguments, results):
                    _measure(name, world, arguments, results, peers=False)
    finally:
        world.end()
    for name, results in files.items():
        with results.surviving(f"{name} on 1"):
            _measure(name, None, arguments, results)


def _settings(folder: Path, arguments: argparse.Namespace, **more: Any) -> ModelSettings:
    return ModelSettings(
        folder, weights="dummy", device=arguments.device, backend=arguments.backend, **more
    )


def _engine(world: World | None, settings: ModelSettings) -> Engine:
    """On the ranks of a world, or on one device."""
    if world is None:
        names = ("weights", "device", "backend", "memory_tokens", "dtype")
        return Engine.load(settings.model, **{name: getattr(settings, name) for name in names})
    executor, tokenizer = RankedExecutor.on(world, settings)
    return Engine(executor, tokenizer, settings)


def _writing(count: int) -> Strategy:
    """Two rows that read each other write so many tokens."""
    blocks = [Block("one"), Block("two")]
    views = [View(blocks), View(blocks[::-1])]
    written: list[int] = []
    feeds: list[tuple[int, ...]] = [tuple(range(3, 40)), tuple(range(50, 60))]
    for _ in range(count):
        tokens = yield Step([Row(view, feed) for view, feed in zip(views, feeds, strict=True)])
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        feeds = [(token,) for token in tokens]
        written += tokens
    return Answer(text=" ".join(map(str, written)))


def _writes_the_same(world: World, arguments: argparse.Namespace) -> bool:
    """Whether a tiny network over the ranks writes what it writes on one device, by recorded passes too."""
    with tempfile.TemporaryDirectory() as place:
        folder, found = Path(place), []
        torch.manual_seed(0)  # dummy weights are each rank's own, so these are written and read
        with quiet():
            config = transformers.AutoConfig.for_model(**TINY.config)
            build: Any = transformers.AutoModelForCausalLM.from_config
            build(config).save_pretrained(folder)
            words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
            wrap: Any = transformers.PreTrainedTokenizerFast
            wrap(tokenizer_object=words).save_pretrained(folder)
        for where in (None, world):
            settings = ModelSettings(
                folder,
                device=arguments.device,
                backend=arguments.backend,
                memory_tokens=2048,
                dtype="float32",
            )
            engine = _engine(where, settings)
            found.append(engine.run(_writing(4 if arguments.tiny else 48)).text)
            del engine
    return found[0] == found[1]


def _measure(
    name: str,
    world: World | None,
    arguments: argparse.Namespace,
    results: Results,
    *,
    peers: bool = True,
) -> bool:
    """All cells of one network on these ranks, or on one device; whether sums went through peers' memory."""
    ranks = 1 if world is None else world.size
    if not results.clock.allows(0 if arguments.tiny else _LOAD):
        results.leave_out(f"{name} on {ranks}", "no time was left")
        return False
    shape = TINY if arguments.tiny else SHAPES[name]
    lengths = (32, 64) if arguments.tiny else LENGTHS
    passes = 3 if arguments.tiny else PASSES
    completions = 8 if arguments.tiny else COMPLETIONS
    is_shared = name.startswith("codellama")
    rows = completions if is_shared else max(WORKERS)
    each = SUFFIX if is_shared else DESK
    room = max(lengths) + rows * (each + 2 * passes + 128) + 4096
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        settings = _settings(shape.write(Path(folder)), arguments, memory_tokens=room, peers=peers)
        engine = _engine(world, settings)
    facts = engine.facts
    has_peers = world is not None and world.collectives.peers is not None
    results.put(model=shape.title, dtype=facts.dtype)
    results.add(
        "loads",
        ranks=ranks,
        peers=has_peers,
        seconds=round(time.monotonic() - began, 2),
        weight_bytes=facts.weight_bytes,
        token_bytes=facts.token_bytes,
        about=facts.about_ranks,
    )
    told = {"ranks": ranks, "peers": has_peers}
    try:
        for length in lengths:
            history = fill(engine, Block("history"), length, seed=0).freeze()
            if is_shared:
                _time(engine, _completing(engine, history, completions), told, passes, results)
            else:
                for workers in WORKERS:
                    views = views_of(seat(engine, history, workers, 8 if arguments.tiny else DESK))
                    _time(engine, views, told, passes, results)
            del history
    finally:
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return has_peers


def _completing(engine: Engine, prompt: Block, count: int) -> list[View]:
    return [View([prompt, fill(engine, Block(), SUFFIX, seed=1 + row)]) for row in range(count)]


def _time(
    engine: Engine, views: Sequence[View], told: dict[str, Any], passes: int, results: Results
) -> None:
    history, in_use = views[0].blocks[0].num_tokens, tokens_in_use(views)
    if not results.clock.allows(0):
        results.leave_out(f"{told} {history} {len(views)}", "no time was left")
        return
    seconds = time_passes(engine, views, passes=passes, warm_up=8)
    found = timing(seconds, len(views), history, in_use)
    line: dict[str, Any] = {
        **told,
        "history": history,
        "rows": len(views),
        "ms": found.ms,
        "ms_p90": found.ms_p90,
        "tokens_per_second": found.tokens_per_second,
    }
    if engine.facts.is_on_gpu:
        line |= _kernels(engine, views, passes, statistics.median(seconds))
    results.add("cells", **line)


def _kernels(
    engine: Engine, views: Sequence[View], passes: int, seconds: float
) -> dict[str, float]:
    """Milliseconds of a pass that rank 0's kernels take, and those of NCCL among them."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        time_passes(engine, views, passes=passes, warm_up=0)
        torch.cuda.synchronize()
    made = passes + 1  # the first has no pass before it, and is made all the same
    spent = {
        event.key: event.self_device_time_total / 1e3 / made for event in profile.key_averages()
    }
    whole = sum(spent.values())
    nccl = sum(ms for key, ms in spent.items() if "nccl" in key.lower())
    joined = sum(ms for key, ms in spent.items() if key == "_meet")
    return {
        "kernels_ms": round(whole, 4),
        "collectives_ms": round(nccl + joined, 4),
        "joined_ms": round(joined, 4),
        "idle_ms": round(1e3 * seconds - whole, 4),
    }


if __name__ == "__main__":
    main()

"""One model over several GPUs of a host: milliseconds per pass, beside the same passes on one GPU.

    python -m benchmarks.ranks --ranks 2 --minutes 4
    python -m benchmarks.ranks --ranks 2 --models qwq-32b --minutes 2
    python -m benchmarks.ranks --models qwq-32b --on one      # the one GPU alone
    pytest tests/engine/ranks/test_on_gpus.py                 # first: are the numbers right
    python -m benchmarks.two_gpus                             # all of it, in processes that may fail

First a tiny network in float32 writes beside itself on one device: without equal tokens nothing is timed. Then each
network on `--ranks` GPUs, with sums of few tokens through peers' memory and, where those could be had, by NCCL
alone; at last the networks on one GPU. Teams of 1 and 4 workers over histories of 1 k and 16 k tokens, and 1 024
completions of one prompt of 1 k and 16 k for CodeLlama. Every cell prints its line and is on the disk at once.

Of each cell there is a breakdown on rank 0 (`benchmarks/breakdown.py`). `ms_collectives`: kernels in which ranks
meet; it contains the wait for the slowest rank, and `_meet` among its kernels makes residual sums and norms besides.
`ms_idle`: the wall clock's pass less the time in which rank 0's device was busy.

One GPU and several are not held at once: the ranks have ended before one GPU loads. Without a GPU, `--tiny
--device cpu` runs all of it over processes on the CPU.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.breakdown import breakdown
from benchmarks.engine_parts import engine_on
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.executor import Places
from manyhands.engine.ranks.world import World
from manyhands.engine.rebuild import places_of
from manyhands.evaluation.bench import fill, seat, time_passes, timing, tokens_in_use, views_of
from manyhands.model.quiet import quiet
from manyhands.model.settings import ModelSettings
from manyhands.strategies.base import Answer, Strategy

LENGTHS, WORKERS, DESK, PASSES = (1024, 16384), (1, 4), 128, 48
LOOKED_AT = 8  # passes of a breakdown
# A completion takes one page, whatever is timed: SUFFIX, and all passes below, the uncounted ones included.
COMPLETIONS, SUFFIX, PAGE, COMPLETING = 1024, 16, 64, 16
MODELS = ("qwq-32b", "codellama-7b", "qwen3-8b")
SHORT = ("qwen3-8b",)  # measured over the shortest history alone
_SPARE = 4096  # tokens of memory
_LOAD = 8  # seconds that a network and a cell take at least: none is begun without them


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, 9)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--on", choices=("ranks", "one", "both"), default="both")
    options.add_argument("--sums", default="peers,nccl", help="how ranks add up, one after another")
    options.add_argument(
        "--again", default="4", help="workers of the teams that NCCL is timed with"
    )
    options.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="of the histories")
    options.add_argument("--workers", default=",".join(map(str, WORKERS)), help="of the teams")
    options.add_argument("--layers", type=int, help="of each network, to try out: it has its own")
    options.add_argument("--unchecked", action="store_true", help="do not compare tokens first")
    arguments = options.parse_args(argv)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    clock = Clock(arguments.minutes)
    names = arguments.models.split(",")
    beside = "_one" if arguments.on == "one" else ""
    files = {name: Results(f"ranks_{name}{beside}", arguments, clock) for name in names}
    if arguments.on != "one":
        _on_ranks(files, arguments, clock)
    if arguments.on != "ranks":
        for name, results in files.items():
            with results.surviving(f"{name} on 1"):
                _measure(name, None, arguments, results)


def _on_ranks(files: dict[str, Results], arguments: argparse.Namespace, clock: Clock) -> None:
    world = World.start(arguments.ranks, arguments.device)
    clock.say(f"{arguments.ranks} ranks have started in {world.seconds_starting:.1f} s")
    try:
        if not arguments.unchecked:
            same = writes_the_same(world, arguments)
            for results in files.values():
                results.put(same_tokens=same)
            if not same:
                raise SystemExit("the ranks write other tokens than one device: nothing is timed")
        for name, results in files.items():
            has_peers = True
            for kind in arguments.sums.split(","):
                # Completions are more tokens than go through peers' memory.
                if kind == "nccl" and (not has_peers or _is_shared(name)):
                    continue
                with results.surviving(f"{name} on {arguments.ranks}, {kind}"):
                    has_peers = _measure(name, world, arguments, results, peers=kind == "peers")
    finally:
        world.end()
    clock.say("the ranks have ended")


def _is_shared(name: str) -> bool:
    """Whether the network is measured by completions of one prompt."""
    return name.startswith("codellama")


def _settings(folder: Path, arguments: argparse.Namespace, **more: Any) -> ModelSettings:
    return ModelSettings(
        folder, weights="dummy", device=arguments.device, backend=arguments.backend, **more
    )


def _writing(count: int, length: int) -> Strategy:
    """Two rows that read each other write so many tokens, the first of them behind a prompt of this length."""
    blocks = [Block("one"), Block("two")]
    views = [View(blocks), View(blocks[::-1])]
    written: list[int] = []
    prompt = tuple(3 + at % 37 for at in range(length))
    feeds: list[tuple[int, ...]] = [prompt, tuple(range(50, 60))]
    for _ in range(count):
        tokens = yield Step([Row(view, feed) for view, feed in zip(views, feeds, strict=True)])
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        feeds = [(token,) for token in tokens]
        written += tokens
    return Answer(text=" ".join(map(str, written)))


def writes_the_same(world: World, arguments: argparse.Namespace, length: int = 37) -> bool:
    """Whether a tiny network over the ranks writes what it writes on one device, by recorded passes too, behind a prompt of this length."""
    with tempfile.TemporaryDirectory() as place:
        folder, found = Path(place), []
        torch.manual_seed(0)  # dummy weights are each rank's own, so these are written and read
        with quiet():
            config = transformers.AutoConfig.for_model(**{**TINY.config, "head_dim": 8})
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            words = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
            wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
            wrapped.save_pretrained(folder)
        for where in (None, world):
            settings = ModelSettings(
                folder,
                device=arguments.device,
                backend=arguments.backend,
                memory_tokens=2048,
                dtype="float32",
            )
            engine = engine_on(where, settings)
            found.append(engine.run(_writing(4 if arguments.tiny else 48, length)).text)
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
        return peers
    shape = _shape(name, arguments)
    lengths, workers = (
        [int(each) for each in told.split(",")] for told in (arguments.lengths, arguments.workers)
    )
    if not peers:
        workers = [int(each) for each in arguments.again.split(",")]
    if name in SHORT:
        lengths = lengths[:1]
    is_shared = _is_shared(name)
    passes, looked_at = (COMPLETING if is_shared else PASSES), LOOKED_AT
    completions = COMPLETIONS
    if arguments.tiny:
        lengths, completions, passes, looked_at = [32, 64], 8, 3, 2
    rows = completions if is_shared else max(workers)
    room = max(lengths) + rows * (PAGE if is_shared else 1024) + _SPARE
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        settings = _settings(shape.write(Path(folder)), arguments, memory_tokens=room, peers=peers)
        engine = engine_on(world, settings)
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
            # Views are held by the call alone: for those of two lengths there is no room.
            if is_shared:
                _time(
                    engine,
                    _completing(engine, history, completions),
                    told,
                    passes,
                    looked_at,
                    results,
                )
                continue
            for count in workers:
                desk = 8 if arguments.tiny else DESK
                _time(
                    engine,
                    views_of(seat(engine, history, count, desk)),
                    told,
                    passes,
                    looked_at,
                    results,
                )
    finally:
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return has_peers


def _shape(name: str, arguments: argparse.Namespace) -> Shape:
    shape = TINY if arguments.tiny else SHAPES[name]
    if arguments.layers is None:
        return shape
    config = {**shape.config, "num_hidden_layers": arguments.layers}
    return Shape(f"{shape.title}, {arguments.layers} layers", config)


def _completing(engine: Engine, prompt: Block, count: int) -> list[View]:
    """Views of so many completions that have begun, all made up at once."""
    blocks = [Block() for _ in range(count)]
    engine.pool.reserve([(block, SUFFIX) for block in blocks])
    engine.pool.make_moves(engine.executor.move)
    places = [places_of(block, 0, SUFFIX, engine.pool) for block in blocks]
    slots, offsets = (np.concatenate(each) for each in zip(*places, strict=True))
    engine.executor.make_up(Places(slots, offsets), 1)
    for block in blocks:
        block.tokens.extend(index % engine.facts.vocab_size for index in range(SUFFIX))
    return [View([prompt, block]) for block in blocks]


def _time(
    engine: Engine,
    views: Sequence[View],
    told: dict[str, Any],
    passes: int,
    looked_at: int,
    results: Results,
) -> None:
    history, in_use = views[0].blocks[0].num_tokens, tokens_in_use(views)
    if not results.clock.allows(0):
        results.leave_out(f"{told} {history} {len(views)}", "no time was left")
        return
    began = time.monotonic()
    seconds = time_passes(engine, views, passes=passes, warm_up=8)
    found = timing(seconds, len(views), history, in_use)
    line: dict[str, Any] = {
        **told,
        "history": history,
        "rows": len(views),
        "ms": found.ms,
        "ms_p10": found.ms_p10,
        "ms_p90": found.ms_p90,
        "tokens_per_second": found.tokens_per_second,
        "passes": passes,
        "counts": {name: n for name, n in asdict(engine.executor.counts).items() if n},
    }
    results.add("cells", **line, took=round(time.monotonic() - began, 2))
    if engine.facts.is_on_gpu:
        where = {**told, "history": history, "rows": len(views)}
        with results.surviving(f"breakdown of {where}"):
            parts = breakdown(engine, views, found.ms, passes=looked_at)
            results.add("breakdowns", **where, **parts)


if __name__ == "__main__":
    main()

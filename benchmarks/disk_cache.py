"""A prompt's keys and values from disk, against reading the prompt: time to its first token.

    python -m benchmarks.disk_cache --models qwen3-8b,qwq-32b --minutes 8      on one H200
    python -m benchmarks.disk_cache --models small --tokens 512,2048           on a CPU: ratios only

For each length a fresh memory reads a random prompt without a cache (`read`), another one reads and saves it (`saved`),
and a third one loads it (`loaded`): from files that the system still holds in its own memory, and after they were dropped from there
(`cold`, where the system lets go of them; below a virtual machine its host may hold them still). All times run from the submission of the run to its first token, checks
of the files included; `written` is what is left to write then. What a first prompt compiles is compiled before. `ready_read` and `ready_loaded` are the same in engines
that serve: they have made such passes before, so that on a GPU the pass of the first token is recorded and not launched kernel by kernel. The gate: the loaded prompt's
first tokens are those of the one that was read, and all of its whole sheets were loaded. Loading costs what the disk and the checksums cost, so the line that counts is
the one of the machine that serves.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.decode import free
from benchmarks.engine_parts import executor_of
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.model import shelf
from manyhands.model.adapter import ModelAdapter
from manyhands.model.settings import ModelSettings
from manyhands.strategies.base import Answer, Asked, Reserve, Sent
from manyhands.strategies.prompt_sharing import share_prompt

SMALL = Shape(
    "small",
    {
        **TINY.config,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 4096,
        "max_position_embeddings": 32768,
        "dtype": "float32",
    },
)
LENGTHS = (2048, 16384)
REPEATS = 3
LOADS = 4  # of one prompt
NUM_WRITTEN = 4  # tokens that are compared


def read_prompt(prompt: tuple[int, ...]) -> Generator[Asked, Sent, Answer]:
    """Read a prompt and write a few tokens behind it.

    The first of these has a pass of its own, whatever was loaded: products of another size round in another way.
    """
    block, own = Block("prompt"), Block("own")
    first = Row(View([block]), prompt[:-1])
    yield Reserve(len(prompt) + NUM_WRITTEN, 2, prompt=first)
    yield Step([first])
    view, feed, written = View([block, own]), prompt[-1:], []
    for _ in range(NUM_WRITTEN):
        tokens = yield Step([Row(view, feed, writer="reader")])
        assert isinstance(tokens, tuple)
        feed = tokens[-1:]
        written.append(tokens[-1])
    return Answer(" ".join(map(str, written)))


class Reader:
    """Engines over one network, each with a fresh memory and the same folder."""

    def __init__(self, adapter: ModelAdapter, settings: ModelSettings) -> None:
        self.adapter, self.settings = adapter, settings

    def read(self, prompt: tuple[int, ...], *, cached: bool = True) -> tuple[float, str, Engine]:
        """Seconds to the first token, the tokens, and the engine; with a cache or without."""
        engine = self.engine(cached=cached)
        return *read_in(engine, prompt), engine

    def engine(self, *, cached: bool = True) -> Engine:
        """A fresh one."""
        settings = self.settings
        if not cached:
            settings = replace(settings, cache=None, cache_size=None)
        return Engine(LocalExecutor(self.adapter, settings), None, settings)


def read_in(engine: Engine, prompt: tuple[int, ...]) -> tuple[float, str]:
    """Seconds to the first token, and the tokens."""
    began = time.perf_counter()
    run = engine.submit(share_prompt(read_prompt(prompt), engine.prefixes))
    seconds = 0.0
    while engine.step():
        if not seconds and run.usage.tokens_chosen:
            seconds = time.perf_counter() - began
    return seconds, run.result().text


def wait_until_written(engine: Engine) -> float:
    """Seconds until all that an engine has to save is in files; some of it had no room to wait in at first."""
    began = time.perf_counter()
    shelf = executor_of(engine)._shelf
    assert shelf is not None
    assert engine.shelving is not None
    while engine.shelving.num_unsaved:
        engine.step()
        time.sleep(0.01)
    shelf.files.flush()
    return time.perf_counter() - began


def measure(shape: Shape, arguments: argparse.Namespace, results: Results) -> None:
    """All lengths of one network."""
    asked = "64" if arguments.tiny else arguments.tokens
    lengths = [int(word) for word in asked.split(",")] if asked else LENGTHS
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "cache"
        settings = ModelSettings(
            str(shape.write(Path(place) / "model")),
            weights="dummy",
            device=arguments.device,
            backend=arguments.backend,
            memory_tokens=max(lengths) + 1024,
            cache=str(folder),
            cache_size=1000.0,
            sheet_tokens=16 if arguments.tiny else 256,
        )
        executor, _ = LocalExecutor.load(settings)
        reader = Reader(executor.adapter, settings)
        del executor
        numbers = random.Random(5)
        for length in lengths:
            prompts = [
                tuple(
                    numbers.randrange(shape.config["vocab_size"]) for _ in range(length + 1)
                )  # the last is fed with the first row that writes
                for _ in range(1 + (1 if arguments.tiny else arguments.repeats))
            ]
            if not results.clock.allows(20):
                results.leave_out(f"{shape.title}, {length} tokens", "no time")
                continue
            needed = (
                len(prompts) * length * shape.token_bytes(4 if arguments.device == "cpu" else 2)
            )
            if needed > (free_there := shutil.disk_usage(place).free):
                why = (
                    f"the disk has {free_there / 2**30:.0f} GiB free, it takes {needed / 2**30:.0f}"
                )
                results.leave_out(f"{shape.title}, {length} tokens", why)
                continue
            found, differ = line(reader, prompts, folder)
            if differ:
                results.add("red", model=shape.title, tokens=length, differ=differ)
            else:
                results.add("lengths", model=shape.title, **found)


def line(
    reader: Reader, prompts: list[tuple[int, ...]], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    """One length: medians over the prompts behind the first, which warms up; and what was not as it should be."""
    differ: list[str] = []
    times: dict[str, list[float]] = {}
    num_bytes, texts = 0, []
    size = reader.settings.sheet_tokens
    whole = (len(prompts[0]) - 1) // size * size

    def check(name: str, said: str, again: str, num_found: int) -> None:
        if said != again:
            differ.append(f"{said}, {name} {again}")
        if num_found != whole:
            differ.append(f"{name}: {num_found} tokens were loaded, {whole} were saved")

    for number, prompt in enumerate(prompts):
        if number < 2:
            times = defaultdict(list)  # without those of the first
        seconds, said, engine = reader.read(prompt, cached=False)
        texts.append(said)
        times["read_s"].append(seconds)
        del engine
        free(reader.adapter.device)
        seconds, again, engine = reader.read(prompt)
        check("saved", said, again, whole)
        times["saved_s"].append(seconds)
        times["written_s"].append(wait_until_written(engine))
        num_bytes = engine.shelf_counts.bytes_written
        del engine
        free(reader.adapter.device)
        for name in (*["loaded_s"] * LOADS, "cold_s"):
            if name == "cold_s":
                drop_from_memory(folder)
            seconds, again, engine = reader.read(prompt)
            check(name, said, again, engine.shelf_counts.tokens_found)
            times[name].append(seconds)
            del engine
            free(reader.adapter.device)
    landed = shelf._MOST_LANDED
    for name, most_landed in (
        ("ready_read_s", landed),
        ("ready_loaded_s", landed),
        ("ready_loaded_by_host_s", 0),
    ):
        is_cached = name != "ready_read_s"
        with patch.object(shelf, "_MOST_LANDED", most_landed):
            engine, num_before = reader.engine(cached=is_cached), 0
        for number, prompt in enumerate(prompts):
            for _ in range(LOADS if is_cached else 2):
                seconds, again = read_in(engine, prompt)
                engine.prefixes.clear()
                num_found = engine.shelf_counts.tokens_found
                check(name, texts[number], again, num_found - num_before if is_cached else whole)
                num_before = num_found
                times[name] += [seconds] * (number > 0)
        del engine
        free(reader.adapter.device)
    middle = {name: statistics.median(found) for name, found in times.items()}
    found = {
        "tokens": len(prompts[0]),
        "prompts": len(prompts) - 1,
        "loads": LOADS,
        "mebibytes": round(num_bytes / 2**20, 1),
        **{name: round(seconds, 4) for name, seconds in middle.items()},
        "faster": round(middle["read_s"] / middle["loaded_s"], 2),
        "faster_cold": round(middle["read_s"] / middle["cold_s"], 2),
        "faster_ready": round(middle["ready_read_s"] / middle["ready_loaded_s"], 2),
        "each": {name: [round(seconds, 4) for seconds in each] for name, each in times.items()},
    }
    return found, differ


def drop_from_memory(folder: Path) -> None:
    """Ask the system to let go of what it holds of these files."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in folder.glob("*/*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    options = parser(__doc__, minutes=8)
    options.add_argument("--models", default="qwen3-8b,qwq-32b")
    options.add_argument("--tokens", default="", help="lengths of prompts: 2048,16384")
    options.add_argument("--repeats", type=int, default=REPEATS, help="prompts of a length")
    arguments = options.parse_args()
    clock = Clock(arguments.minutes)
    for name in arguments.models.split(","):
        shape = TINY if arguments.tiny else SMALL if name == "small" else SHAPES[name]
        results = Results(f"disk_cache_{shape.title.lower()}", arguments, clock)
        results.put(disk="a temporary folder", threads=torch.get_num_threads())
        with results.surviving(name):
            measure(shape, arguments, results)


if __name__ == "__main__":
    main()

"""Ranks on GPUs: the same numbers as on one. Skipped where there are fewer than two GPUs.

    pytest tests/engine/ranks/test_on_gpus.py -q

Float32 with TF32 off: what is left is the order of sums. Run it before `python -m benchmarks.ranks`.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from manyhands.engine.engine import Engine
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import LONGEST_END, World
from manyhands.errors import ManyhandsError, RanksFailed
from manyhands.model.settings import ModelSettings
from tests.engine.ranks.models import family_folder, small_folder
from tests.engine.ranks.test_processes import is_gone
from tests.engine.small import counting, story, team
from tests.engine.test_preemption import SAMPLED
from tests.model.test_conformance import FLOAT32, ZOO, told_to

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="there are fewer than two GPUs here"
)
PROMPT = tuple(range(3, 20))
if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1, all_threads=True)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World.start(2, "cuda")
    yield world
    world.end()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


def one(folder: Path, **choices: object) -> Engine:
    return Engine.load(folder, device="cuda", dtype="float32", **choices)


def two(world: World, folder: Path, **choices: object) -> Engine:
    choices = {"dtype": "float32", **choices}
    settings = ModelSettings(folder, device="cuda", **choices)  # type: ignore[arg-type]
    executor, tokenizer = RankedExecutor.on(world, settings)
    return Engine(executor, tokenizer, settings)


@pytest.mark.parametrize("name", ZOO)
def test_every_family(name: str, world: World, tmp_path: Path) -> None:
    folder = family_folder(name, tmp_path)
    engines = one(folder, memory_tokens=4096), two(world, folder, memory_tokens=4096)
    expected, ours = (torch.cat(told_to(engine, "combined", 2)) for engine in engines)
    assert float((ours - expected).abs().max()) < FLOAT32
    assert engines[0].run(counting(PROMPT, 40)).text == engines[1].run(counting(PROMPT, 40)).text


@pytest.mark.parametrize("seed", range(2))
def test_recorded_passes_and_running_ahead(seed: int, world: World, small: Path) -> None:
    def make() -> object:
        return team(3, choice=SAMPLED, seed=seed, budget=80)

    ranked = two(world, small, memory_tokens=8192)
    assert story(ranked, make()) == story(one(small, memory_tokens=8192), make())  # type: ignore[arg-type]
    counts = ranked.executor.counts
    assert counts.recorded > 0
    assert counts.followed > 0
    assert ranked.executor.about is not None
    assert "were recorded" in ranked.executor.about


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_through_peers_memory(dtype: str, world: World, small: Path) -> None:
    """Of two ranks NCCL rounds as the kernel does: recorded or not, every token is the same."""

    def make() -> object:
        return team(3, choice=SAMPLED, seed=4, budget=60)

    choices: dict[str, object] = {"memory_tokens": 8192, "dtype": dtype}
    plain = two(world, small, peers=False, **choices)
    assert world.collectives.peers is None
    expected = story(plain, make())  # type: ignore[arg-type]
    ours = two(world, small, **choices)
    peers = world.collectives.peers
    if peers is None:
        pytest.skip(world.collectives.about_peers)
    before = int(peers.meeting.epochs[0])
    assert story(ours, make()) == expected  # type: ignore[arg-type]
    assert ours.executor.counts.recorded > 0
    assert int(peers.meeting.epochs[0]) > before, "they were made by the kernel"
    # The control: a rank whose term is left out is noticed.
    peers.give_up()
    torch.cuda.synchronize()
    peers.meeting.epochs.add_(1)  # rank 0 waits for a flag that comes one sum late
    with pytest.raises(ManyhandsError, match="not numbers"):
        ours.run(counting(PROMPT, 4))


@pytest.mark.parametrize("peers", [True, False], ids=["peers", "nccl"])
def test_a_killed_rank_ends_all_and_holds_no_memory(peers: bool, small: Path) -> None:
    """In the midst of recorded passes: rank 0 waits in a sum, for a rank that never comes."""
    world = World.start(2, "cuda")
    assert world.processes is not None
    engine = two(world, small, memory_tokens=8192, peers=peers)
    engine.run_all(counting(PROMPT, 40) for _ in range(8))
    assert engine.executor.counts.recorded > 0
    free = torch.cuda.mem_get_info(1)[0]
    threading.Timer(0.5, os.kill, (world.processes.pid, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        engine.run_all(counting(PROMPT, 900) for _ in range(8))
    assert time.monotonic() - began < LONGEST_END
    assert is_gone(world.processes.pid)
    time.sleep(1)
    assert torch.cuda.mem_get_info(1)[0] > free


@pytest.mark.parametrize("moment", [0.0, 0.4, 1.5])
def test_a_rank_that_is_killed_at_any_moment(moment: float, small: Path) -> None:
    """While it loads, tries peers' memory, compiles or records: one error, or the end of the process with it."""
    words = [sys.executable, "-c", _KILLED, str(small), str(moment)]
    began = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == RanksFailed.exit_code, done.stderr
    assert "rank 1 of 2 has ended" in done.stderr
    killed = float(done.stdout.split()[0])
    assert time.time() - killed < LONGEST_END + 5, f"began {time.monotonic() - began:.1f} s ago"


_KILLED = """
import os, pathlib, signal, sys, threading, time
from manyhands.engine.ranks.world import World
from manyhands.errors import RanksFailed
from tests.engine.ranks.test_on_gpus import PROMPT, two
from tests.engine.small import counting

def kill():
    print(time.time(), flush=True)
    os.kill(world.processes.pid, signal.SIGKILL)

if __name__ == "__main__":
    world = World.start(2, "cuda")
    threading.Timer(float(sys.argv[2]), kill).start()
    try:
        while True:
            engine = two(world, pathlib.Path(sys.argv[1]), memory_tokens=8192)
            engine.run_all(counting(PROMPT, 60) for _ in range(8))
    except RanksFailed as error:
        sys.stderr.write(str(error))
        os._exit(RanksFailed.exit_code)
"""

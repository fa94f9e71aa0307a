"""A rank on GPUs that is killed: one error, nothing is left over. Skipped where there are fewer than two GPUs.

    pytest tests/engine/ranks/test_lost_on_gpus.py -q -s

Each step is printed with the seconds since the one before, and a step that takes too long with all threads' places.
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
from typing import Any

import pytest
import torch

from manyhands.engine.ranks import world as world_of_ranks
from manyhands.engine.ranks.processes import Processes
from manyhands.engine.ranks.world import LONGEST_END, World
from manyhands.errors import RanksFailed
from tests.engine.ranks.models import small_folder
from tests.engine.ranks.test_on_gpus import PROMPT, two
from tests.engine.ranks.test_processes import is_gone
from tests.engine.small import counting

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="there are fewer than two GPUs here"
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


class Steps:
    """Prints what has been done and how long it took; where the process is, if a step takes `patience` seconds."""

    def __init__(self, patience: float = 25.0) -> None:
        self.patience = patience
        self.began = self.last = time.monotonic()
        faulthandler.dump_traceback_later(patience, file=sys.__stderr__)  # type: ignore[arg-type]

    def done(self, what: str) -> None:
        now = time.monotonic()
        text = f"  {now - self.began:6.2f} s, {now - self.last:6.2f} s for it: {what}"
        print(text, file=sys.stderr, flush=True)
        self.last = now
        faulthandler.dump_traceback_later(self.patience, file=sys.__stderr__)  # type: ignore[arg-type]

    def end(self) -> None:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.end()


def tell_of_the_end(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    """Print when each part of the end of a world begins and is over, in whichever thread."""
    from manyhands.engine.graphs import GraphedPasses  # needs Triton, which is not everywhere

    for owner, name in (
        (World, "_settled"),
        (World, "_free_sums"),
        (World, "end"),
        (World, "_force"),
        (Processes, "end"),
        (GraphedPasses, "forget"),
        (world_of_ranks, "leave_group"),
    ):
        right: Any = getattr(owner, name)
        what = f"{owner.__name__}.{name}"

        def told(*args: Any, right: Any = right, what: str = what) -> Any:
            thread = threading.current_thread().name
            steps.done(f"{what} begins, {thread}")
            try:
                return right(*args)
            finally:
                steps.done(f"{what} is over, {thread}")

        monkeypatch.setattr(owner, name, told)


@pytest.mark.parametrize("peers", [True, False], ids=["peers", "nccl"])
def test_a_killed_rank_ends_all_and_holds_no_memory(
    peers: bool, small: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of recorded passes: rank 0 waits in a sum, for a rank that never comes."""
    world = World.start(2, "cuda")
    steps.done(f"the ranks are there, the others' imports took {world.seconds_starting:.1f} s")
    assert world.processes is not None
    engine = two(world, small, memory_tokens=8192, peers=peers)
    steps.done("the model is loaded")
    engine.run_all(counting(PROMPT, 40) for _ in range(8))
    steps.done("eight runs of 40 tokens")
    assert engine.executor.counts.recorded > 0
    free = torch.cuda.mem_get_info(1)[0]
    tell_of_the_end(monkeypatch, steps)
    threading.Timer(0.5, os.kill, (world.processes.pid, signal.SIGKILL)).start()
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        engine.run_all(counting(PROMPT, 900) for _ in range(8))
    steps.done("the error, 0.5 s of them before the kill")
    assert time.monotonic() - began < LONGEST_END
    assert is_gone(world.processes.pid)
    time.sleep(1)
    assert torch.cuda.mem_get_info(1)[0] > free


@pytest.mark.parametrize("moment", [0.0, 0.4, 1.5])
def test_a_rank_that_is_killed_at_any_moment(moment: float, small: Path, steps: Steps) -> None:
    """While it loads, tries peers' memory, compiles or records: one error, or the end of the process with it."""
    code, printed, said = shown([sys.executable, "-c", _KILLED, str(small), str(moment)])
    ended = time.time()
    steps.done(f"it has ended with {code}")
    assert code == RanksFailed.exit_code, said
    assert "rank 1 of 2 has ended" in said
    assert ended - float(printed.split()[0]) < LONGEST_END + 5


def shown(words: list[str], longest: float = 100) -> tuple[int, str, str]:
    """A process's code and what it printed; its errors are passed on as they come, since this test may be cut off."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    end = threading.Timer(longest, process.kill)
    end.start()
    lines = []
    for line in process.stderr:
        print(line, end="", file=sys.stderr, flush=True)
        lines.append(line)
    printed = process.stdout.read()
    code = process.wait()
    end.cancel()
    return code, printed, "".join(lines)


_KILLED = """
import faulthandler, os, pathlib, signal, sys, threading, time
faulthandler.dump_traceback_later(25, repeat=True)
faulthandler.register(signal.SIGUSR1, all_threads=True)
began = time.monotonic()

def done(what):
    sys.stderr.write(f"  {time.monotonic() - began:6.2f} s: {what}\\n")

done("begins")
from manyhands.engine.ranks.world import World
from manyhands.errors import RanksFailed
done("its own imports")
from tests.engine.ranks.test_on_gpus import PROMPT, two
from tests.engine.small import counting

def kill():
    print(time.time(), flush=True)
    done("the kill")
    os.kill(world.processes.pid, signal.SIGKILL)

if __name__ == "__main__":
    done("the tests' imports")
    world = World.start(2, "cuda")
    done("the ranks are there")
    threading.Timer(float(sys.argv[2]), kill).start()
    try:
        while True:
            engine = two(world, pathlib.Path(sys.argv[1]), memory_tokens=8192)
            done("loaded")
            engine.run_all(counting(PROMPT, 60) for _ in range(8))
            done("eight runs")
    except RanksFailed as error:
        done(f"the error: {error}")
        os._exit(RanksFailed.exit_code)
"""

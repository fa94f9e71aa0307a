"""A rank on GPUs that is killed: one error, nothing is left over. Skipped where there are fewer than two GPUs.

pytest tests/engine/ranks/test_lost_on_gpus.py -q
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

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

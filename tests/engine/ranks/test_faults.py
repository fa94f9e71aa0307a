"""One rank alone fails, in processes and with gloo's sums: a clear error or the right answer, within seconds, and no process is left.

A cover of what `faults.py` can try: a hundred lines of a recording, in each of two and of three ranks, every verb in both of two, and each
line of torch's own that makes the process group.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.engine.ranks.world import LONGEST_END
from manyhands.model.quiet import quiet
from tests.covers import spared
from tests.engine.ranks.faults import NO_ROOM
from tests.engine.small import TOKENIZER, small_config
from tests.model.families_zoo import tiny_model
from tests.warm import run

pytest.importorskip("triton", reason="Triton comes for Linux only")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
)
# Seconds until rank 0 says that a rank has failed while all join; alone on two cores 0.8 to 1.2, and behind `LONGEST_END` its
# process would be ended by force.
AT_ONCE = 0.8 * LONGEST_END
LONGEST = 60.0  # seconds of a case; a load and a pass of one rank take one or two, and a sum would wait for minutes


def tried(folder: Path, size: int, cases: Sequence[str]) -> list[dict[str, Any]]:
    with quiet():
        tiny_model(small_config(2 * size, size)).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    ended = run(
        [sys.executable, "-m", "tests.engine.ranks.faults", str(folder), str(size), *cases],
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("size", [2, *spared(3)])
def test_memory_that_ends_in_the_midst_of_a_recording(size: int, tmp_path: Path) -> None:
    last = size - 1
    whole, *cases = tried(tmp_path, size, ["list:0", f"{last}:50", "0:400", f"{last}:400"])
    assert whole["recorded"] == 1
    assert len(whole["lines"]) > 800
    for each in cases:
        assert (each["status"], each["left"]) == (0, 0)
        assert each["seconds"] < LONGEST
    given_up, *ended = cases
    assert given_up["text"] == whole["text"]
    assert given_up["recorded"] == 0
    assert given_up["trouble"] == f"rank {last} of {size}: {NO_ROOM}"
    for rank, each in zip((0, last), ended, strict=True):
        assert each["error"].startswith(f"RanksFailed: rank {rank} of {size} failed: in the midst")
        assert NO_ROOM in each["error"]
        assert "fewer memory_tokens" in each["hint"]


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_that_ends_when_a_verb_is_told(rank: int, tmp_path: Path) -> None:
    """Of each kind one: before there is a group, while ranks load, in sums, and where all agree."""
    verbs = ["JOIN", "LOAD", "REPLAY", "ASK_ROOM"]
    for each in tried(tmp_path, 2, [f"{rank}:{verb}" for verb in verbs]):
        assert (each["status"], each["left"]) == (0, 0)
        assert each["seconds"] < LONGEST
        assert each["error"].startswith(f"RanksFailed: rank {rank}")
        assert NO_ROOM in each["error"]


@pytest.mark.parametrize("size", [2, *spared(3)])
def test_a_rank_that_fails_while_all_join_the_group(size: int, tmp_path: Path) -> None:
    """The others waited in torch, where nothing reached them, and after fifteen seconds their process was ended by force."""
    last = size - 1
    whole, *cases = tried(
        tmp_path,
        size,
        [
            "list:0:joins",
            f"{last}:joins:0",
            f"{last}:joins:60",
            f"{last}:joins:0:dies",
            "0:joins:60",
        ],
    )
    assert whole["recorded"] == 1
    assert len(whole["lines"]) > 150, "torch's own are looked at"
    for each in cases:
        assert (each["status"], each["left"]) == (0, 0)
        assert each["waited"] < AT_ONCE
        assert not each["is_joined"], "another model can be loaded"
    first, second, died, own = (each["error"] for each in cases)
    said = f"failed: OutOfMemoryError: {NO_ROOM}; all ranks of the model were ended"
    assert first == second == f"RanksFailed: rank {last} of {size} {said}"
    assert (
        died == f"RanksFailed: rank {last} of {size} has ended; all ranks of the model were ended"
    )
    assert own == f"RanksFailed: rank 0 {said}"

"""The timeline of a live team, with a device that takes no time: every kind of pass is there, and parts add up."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks.results import ROOT
from tests.warm import Warm

PARTS = ("plan: matrix", "plan: lists", "cut", "pack")


def test_kinds_of_passes_and_parts_of_the_host(tmp_path: Path) -> None:
    """In a process of its own: the benchmark puts clocks into the engine's modules."""
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--passes", "60", "--commit", "x"]
    process = Warm(
        [sys.executable, "-m", "benchmarks.step_timeline", *words, "--workers", "3"],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TRITON_INTERPRET": "1",
        },
    )
    assert process.wait() == 0
    (file,) = tmp_path.glob("*.json")
    kinds = {line["what"]: line for line in json.loads(file.read_text())["timelines"]}
    assert set(kinds) == {"following", "behind", "ended"}
    assert sum(line["passes"] for line in kinds.values()) == 60
    ended, following = kinds["ended"], kinds["following"]
    assert ended["fed"] > 3 == following["fed"]
    assert all(ended[part] > 0 for part in PARTS)
    assert sum(ended[part] for part in PARTS) < ended["host"] < ended["whole"]
    assert not set(PARTS) & set(following), "a pass that follows is not planned"
    for part in ("moves", "plan: routes", "plan: reads"):
        assert part not in ended, "they wait for the plan behind"

"""One plan behind several recordings, on a device that takes no time: which recordings are tried, and what is said of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks.results import ROOT
from tests.warm import Warm


def test_a_plan_is_repeated_behind_its_own_recording_and_others(tmp_path: Path) -> None:
    """In a process of its own: the engine there has recordings that do nothing."""
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "x"]
    process = Warm(
        [sys.executable, "-m", "benchmarks.recordings", *words],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TRITON_INTERPRET": "1",
        },
    )
    assert process.wait() == 0
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert not content.get("left_out")
    sizes = {line["what"]: line["sizes"] for line in content["recordings"]}
    assert {"its own", "wide", "16 rows, many", "64 rows, few, large tiles"} <= sizes.keys()
    assert all(each["tokens"] >= 4 for each in sizes.values())
    assert sizes["its own"]["entries"] < sizes["wide"]["entries"]

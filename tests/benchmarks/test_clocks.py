"""Clock and power beside a measurement: from NVIDIA's tool, and none of it where there is no such tool."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from benchmarks.clocks import Clocks

_TOOL = """#!/bin/sh
echo "$@" > {folder}/asked
echo "Failed to initialize NVML: no driver"
echo "1980, 120.00, 0x0000000000000000"
while [ ! -e {folder}/began ]; do sleep 0.01; done
echo "1700, 690.00, 0x0000000000000004"
echo "[N/A], 690.00, 0x0000000000000004"
echo "1750, 694.00, 0x0000000000000024"
echo "1950, 500.00, 0x0000000000000020"
exec sleep 60
"""


def _wait_for(clocks: Clocks, number: int) -> None:
    until = time.monotonic() + 20
    while len(clocks._samples) < number:
        assert time.monotonic() < until, "samples come while the tool runs"
        time.sleep(0.01)


def test_facts_are_those_of_the_time_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are no samples are left out, and the tool is gone behind it."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(_TOOL.format(folder=tmp_path))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with Clocks(torch.device("cpu")) as clocks:
        clocks._listen("--id=GPU-1")
        _wait_for(clocks, 1)
        assert clocks.facts(0.0) == {"clock_mhz": 1980, "watts": 120, "held_back": 0.0}
        began = clocks.now()
        assert clocks.facts(began) == {}
        (tmp_path / "began").touch()
        _wait_for(clocks, 4)
        assert clocks.facts(began) == {"clock_mhz": 1800, "watts": 628, "held_back": 0.67}
        process = clocks._tool
    assert process is not None
    assert process.poll() is not None
    assert "clocks.sm,power.draw" in (tmp_path / "asked").read_text()


def test_without_a_gpu_or_the_tool_there_are_no_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is an error: the measurement goes on."""
    with Clocks(torch.device("cpu")) as clocks:
        assert clocks._tool is None
        assert clocks.facts(0.0) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    with Clocks(torch.device("cpu")) as clocks:
        clocks._listen()
        assert clocks.facts(0.0) == {}

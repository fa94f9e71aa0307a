"""Getting ready covers every kernel of attention that passes launch later: none is compiled while somebody waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")
ROOT = Path(__file__).parents[2]


def test_parts_of_prompts_teams_completions_and_trees_find_their_kernels() -> None:
    """Control: with what is recorded alone, parts of prompts and trees miss some."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.tried_out"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["besides"] == {}
    for heads, number in found["tried"].items():
        assert 20 < number < 60
        missed = {name for name in found["only_recorded"] if name.startswith(f"{heads}: ")}
        assert any("behind" in name for name in missed)
        assert any("_" in name for name in missed)

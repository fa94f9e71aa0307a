"""Equal runs are laid out equally: plans, moves, places and free pages, in processes with other hashes and other addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def told(noise: int) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.engine.equal_runs", str(noise)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(noise)},
        check=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_equal_runs_are_laid_out_equally() -> None:
    """Copies of markers were made in the order of the markers' addresses, so that a fault in one layout did not come again in the next run."""
    one, *others = [told(noise) for noise in (1, 2, 3)]
    assert one["roomy"]["markers"] > 3, "of several teams at one time"
    assert one["tight"]["preemptions"] > 3
    for engine, found in one.items():
        assert len(found["lines"]) > 200
        assert any(line.startswith("moves") for line in found["lines"])
        for other in others:
            assert other[engine] == found

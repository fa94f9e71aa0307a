"""Equal runs are laid out equally: plans, moves, places and free pages, in processes with other hashes and other addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests import warm


def told(noise: int, run: Callable[..., Any], **hashes: str) -> dict[str, Any]:
    ended = run(
        [sys.executable, "-m", "tests.engine.equal_runs", str(noise)],
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **hashes},
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_equal_runs_are_laid_out_equally() -> None:
    """Copies of markers were made in the order of the markers' addresses, so that a fault in one layout did not come again in the next run.

    Copies of one process have its hashes, whatever they are; a new process has others.
    """
    new = partial(subprocess.run, capture_output=True, text=True)
    one, *others = told(1, warm.run), told(2, warm.run), told(3, new, PYTHONHASHSEED="3")
    assert one["roomy"]["markers"] > 3, "of several teams at one time"
    assert one["tight"]["preemptions"] > 3
    for engine, found in one.items():
        assert len(found["lines"]) > 200
        assert any(line.startswith("moves") for line in found["lines"])
        for other in others:
            assert other[engine] == found

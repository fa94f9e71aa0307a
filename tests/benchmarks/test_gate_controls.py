"""The gate of whole engines: faults that stop it, and rounding that does not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate_controls
from benchmarks.whole_engines import FAR, MEAN_TOLERANCE, Agreement

ALIKE = Agreement(tokens=1000, same=940, mean=MEAN_TOLERANCE, worst=0.0, far=0)


def test_a_few_far_tokens_are_let_through_where_there_are_experts() -> None:
    few = replace(ALIKE, worst=5.3, far=15)
    assert few.is_green(has_experts=True)
    assert not few.is_green(has_experts=False)
    assert not replace(few, far=16).is_green(has_experts=True)


def test_a_mean_that_is_too_large_is_red_however_few_are_far() -> None:
    assert ALIKE.is_green(has_experts=False)
    for mean in (MEAN_TOLERANCE + 1e-5, math.nan):
        assert not replace(ALIKE, mean=mean).is_green(has_experts=True)


def controls(out: Path, name: str) -> dict[str, Any]:
    gate_controls.main(
        ["--tiny", "--device", "cpu", "--commit", "abc", "--models", name, "--out", str(out)]
    )
    found: dict[str, Any] = json.loads((out / f"gate_controls_{name}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "faults"), [("qwen3-8b", 0), ("qwen3-30b-a3b", 6), ("gpt-oss-20b-mxfp4", 9)]
)
def test_every_fault_is_seen_and_taken_back(tmp_path: Path, name: str, faults: int) -> None:
    found = controls(tmp_path, name)
    first, *planted, last = found["lines"]
    assert len(planted) == 1 + faults
    assert {key: last[key] for key in ("same", "mean", "worst", "far")} == {
        key: first[key] for key in ("same", "mean", "worst", "far")
    }
    assert first["green"]
    assert all(line["mean"] != first["mean"] for line in planted)
    assert ("with_other_experts" in found) == (faults > 0)


def test_experts_that_rounding_changed_are_told_apart(tmp_path: Path) -> None:
    found = controls(tmp_path, "qwen3-30b-a3b")
    # Of 48 tokens some routers are undecided, and most are not.
    assert 0 < found["with_other_experts"] < 24
    assert 0 < found["worst_with_the_same"] < FAR

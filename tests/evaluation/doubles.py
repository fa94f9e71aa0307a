"""A task that costs nothing to import: its grader starts in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample


@dataclass(frozen=True)
class Doubles:
    """Twice the number. Grades by equality; some answers make its grader misbehave."""

    count: int = 4
    name = "doubles"
    about = "twice the number"

    def samples(self) -> Sequence[Sample]:
        return [Sample(f"d{n}", f"Twice {n}?", 2 * n) for n in range(1, self.count + 1)]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        if answer == "hang":
            time.sleep(60)
        if answer == "raise":
            raise RuntimeError("cannot read this")
        if answer == "die":
            os._exit(3)
        if answer == "seven":
            return Score(7.0, None, "too good")
        if answer == "bare":
            return 1.0  # type: ignore[return-value]
        if answer == "text":
            return Score("1", None, "no number")  # type: ignore[arg-type]
        if answer == "array":
            return Score(np.float32(1), np.arange(2), "two")  # type: ignore[arg-type]
        if answer == "bytes":
            return Score(1.0, b"2", "no JSON")  # type: ignore[arg-type]
        right = answer == str(sample.gold)
        return Score(float(right), answer, "right" if right else f"expected {sample.gold}")


@dataclass(frozen=True)
class Meets(Doubles):
    """Gives no grade before two processes have been asked for one; `folder` is where they see each other."""

    folder: str = ""

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        Path(self.folder, str(os.getpid())).touch()
        until = time.monotonic() + 50
        while len(os.listdir(self.folder)) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        met = len(os.listdir(self.folder)) >= 2
        if answer == "die":
            os._exit(3)
        return Score(float(met), answer, "met" if met else "alone")

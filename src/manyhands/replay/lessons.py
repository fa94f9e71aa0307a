"""Batches of lessons, the same for the same seed and step.

Lessons come from recorded traces (`Recorded`), or from scripted runs (`school/simulated.py`).

A batch depends on the seed and the number of its training step alone, not on how many processes make
batches or where training was resumed. Making one (simulation, planning, laying out) is work for the
CPU and is done by worker processes, ahead of the training loop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from manyhands.replay.forward import Replay, merge_trace
from manyhands.replay.merged import side_by_side
from manyhands.replay.simulate import Lesson
from manyhands.replay.trace import Trace


class Lessons(Protocol):
    """Where lessons come from."""

    def draw(self, seed: str) -> Lesson:
        """The lesson of this seed."""


class Recorded:
    """Runs that happened; every token that a writer wrote is learned, one as much as another."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.lessons = [trace_lesson(trace) for trace in traces]

    def draw(self, seed: str) -> Lesson:
        """See `Lessons`."""
        return random.Random(seed).choice(self.lessons)


def trace_lesson(trace: Trace) -> Lesson:
    """A recorded run as a lesson."""
    rows = [row for rows in trace.passes for row in rows]
    return Lesson(
        merge_trace(trace),
        np.array([row.token for row in rows], dtype=np.int64),
        np.array([row.writer is not None for row in rows], dtype=np.float32),
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """Lessons side by side, on one device. targets, weights [rows with a weight]."""

    replay: Replay
    targets: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls,
        lessons: Sequence[Lesson],
        budget: int,
        *,
        fused: bool = False,
        group: int | None = None,
    ) -> Batch:
        """Put lessons into one batch, on the CPU. `fused`, `group`: see `Replay.of`."""
        targets = np.concatenate([lesson.targets for lesson in lessons])
        weights = np.concatenate([lesson.weights for lesson in lessons])
        rows = weights.nonzero()[0]
        merged = side_by_side([lesson.merged for lesson in lessons])
        return cls(
            Replay.of(merged, rows, budget, fused=fused, group=group),
            torch.as_tensor(targets[rows]),
            torch.as_tensor(weights[rows]),
        )

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(self.replay.to(device), self.targets.to(device), self.weights.to(device))

    @property
    def weight(self) -> float:
        """Of all its tokens together."""
        return float(self.weights.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass."""
        return len(self.replay.token_ids)


class Batches(Dataset[list[Batch]]):
    """Batch number i of a training, in its parts, for any i. At least `num_tokens` tokens each."""

    def __init__(
        self,
        lessons: Lessons,
        seed: int,
        num_tokens: int,
        budget: int = 1 << 26,
        *,
        fused: bool = False,
        group: int | None = None,
        parts: int = 1,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """`budget`, `fused`, `group`: see `Replay.of`. `parts`: into how many each batch is divided.

        Of `ranks` processes that train together, number `rank` makes every `ranks`-th part, from its own number on.
        """
        self.parts = parts
        self.mine = range(rank, parts, ranks)
        self.group = group
        self.lessons = lessons
        self.fused = fused
        self.seed = seed
        self.num_tokens = num_tokens
        self.budget = budget

    def __getitem__(self, step: int) -> list[Batch]:
        drawn: list[Lesson] = []
        while sum(lesson.num_tokens for lesson in drawn) < self.num_tokens:
            drawn.append(self.lessons.draw(f"{self.seed}/{step}/{len(drawn)}"))
        divided = [drawn[part :: self.parts] for part in self.mine]
        return [
            Batch.of(part, self.budget, fused=self.fused, group=self.group)
            for part in divided
            if part
        ]

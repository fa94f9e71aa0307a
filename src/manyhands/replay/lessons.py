"""Batches of lessons, the same for the same seed and step.

Lessons come from recorded traces (`Recorded`), from scripted runs (`school/simulated.py`), from ordinary text (`Reading`), or
from several of these (`Mixed`).

A batch depends on the seed and the number of its training step alone, not on how many processes make
batches or where training was resumed. Making one (simulation, planning, laying out) is work for the
CPU and is done by worker processes, ahead of the training loop.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import index
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest, counted
from manyhands.replay.forward import Replay, merge_trace
from manyhands.replay.merged import merge_passes, side_by_side
from manyhands.replay.simulate import Lesson
from manyhands.replay.trace import Trace
from manyhands.schema.setting import in_brief, is_number, own_number, whole_number


class Lessons(Protocol):
    """Where lessons come from."""

    def draw(self, seed: str) -> Lesson:
        """The lesson of this seed."""


class Recorded:
    """Runs that happened; every token that a writer wrote is learned, as much as its run's score.

    A run that was not graded counts as 1. Raises InvalidRequest where nothing can be learned: of runs of score 0, and of rows
    that name no writer, whose mean loss would be no number.
    """

    def __init__(self, traces: Iterable[Trace]) -> None:
        found = [trace_lesson(trace) for trace in traces]
        self.lessons = [lesson for lesson in found if lesson.weights.any()]
        if not self.lessons:
            raise InvalidRequest(
                f"in none of {counted(len(found), 'recorded run')} to learn from a writer wrote a token "
                "that counts",
                hint="Give runs with a score above 0, whose rows name their writers: Row(view, feed, writer=name).",
            )

    def draw(self, seed: str) -> Lesson:
        """See `Lessons`."""
        return random.Random(seed).choice(self.lessons)


def trace_lesson(trace: Trace) -> Lesson:
    """A recorded run as a lesson; a run of score 0 has nothing to learn."""
    rows = [row for rows in trace.passes for row in rows]
    weight = 1.0 if trace.score is None else trace.score
    return Lesson(
        merge_trace(trace),
        np.array([row.token for row in rows], dtype=np.int64),
        np.array([weight * (row.writer is not None) for row in rows], dtype=np.float32),
    )


class Reading:
    """Ordinary text, read causally: every token of a piece is learned but the first.

    It keeps a model from forgetting what it knew. `documents` are token ids, one list for each text. Raises InvalidRequest where
    none has two tokens.
    """

    def __init__(self, documents: Iterable[Sequence[int]], num_tokens: int) -> None:
        try:
            held = [tuple(map(index, one)) for one in documents]
        except TypeError as error:
            raise InvalidRequest(
                f"the documents to read are {in_brief(documents)}; expected lists of token ids",
                hint="Write Reading([text.encode(one) for one in texts], 512).",
            ) from error
        self.documents = [one for one in held if len(one) > 1]
        self.num_tokens = whole_number("num_tokens", num_tokens, 1)
        if not self.documents:
            raise InvalidRequest(
                f"{len(held)} documents were given to be read, and none has two tokens or more",
                hint="Give some text, or leave the reading out.",
            )

    def draw(self, seed: str) -> Lesson:
        """See `Lessons`: a piece of at most `num_tokens` tokens, each document as likely as its length."""
        rng = random.Random(seed)
        document = rng.choices(self.documents, [len(one) for one in self.documents])[0]
        first = rng.randrange(max(1, len(document) - self.num_tokens))
        piece = document[first : first + self.num_tokens + 1]
        view = View([Block("text")])
        steps = (Step([Row(view, (token,))]) for token in piece[:-1])
        return Lesson(
            merge_passes(steps, len(piece) - 1),
            np.array(piece[1:], dtype=np.int64),
            np.ones(len(piece) - 1, dtype=np.float32),
        )


class Mixed:
    """Lessons of several kinds, each drawn with its share. Raises InvalidRequest for shares of which none can be drawn."""

    def __init__(self, kinds: Sequence[tuple[Lessons, float]]) -> None:
        self.kinds = [kind for kind, _ in kinds]
        self.shares = [own_number(share) for _, share in kinds]
        if not all(is_number(share) and 0 <= share < inf for share in self.shares) or not any(
            self.shares
        ):
            raise InvalidRequest(
                f"the shares of lessons are {in_brief(self.shares)}; expected numbers, 0 or more, and one above 0",
                hint="Write Mixed([(lessons, 0.8), (reading, 0.2)]).",
            )

    def draw(self, seed: str) -> Lesson:
        """See `Lessons`."""
        (kind,) = random.Random(f"{seed}/kind").choices(self.kinds, self.shares)
        return kind.draw(seed)


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
    ) -> Batch:
        """Put lessons into one batch, on the CPU. `fused`: see `Replay.of`."""
        targets = np.concatenate([lesson.targets for lesson in lessons])
        weights = np.concatenate([lesson.weights for lesson in lessons])
        rows = weights.nonzero()[0]
        merged = side_by_side([lesson.merged for lesson in lessons])
        return cls(
            Replay.of(merged, rows, budget, fused=fused),
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
        parts: int = 1,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """`budget`, `fused`: see `Replay.of`. `parts`: into how many each batch is divided.

        Of `ranks` processes that train together, number `rank` makes every `ranks`-th part, from its own number on.
        """
        self.parts = parts
        self.mine = range(rank, parts, ranks)
        self.lessons = lessons
        self.fused = fused
        self.seed = seed
        self.num_tokens = num_tokens
        self.budget = budget

    def __getitem__(self, step: int) -> list[Batch]:
        drawn: list[Lesson] = []
        while sum(lesson.num_tokens for lesson in drawn) < self.num_tokens:
            drawn.append(self.lessons.draw(f"{self.seed}/{step}/{len(drawn)}"))
        if not any(lesson.weights.any() for lesson in drawn):
            raise InvalidRequest(
                f"no token of the {len(drawn)} lessons of step {step} has a weight, so there is nothing to learn",
                hint="Let lessons come from runs whose rows name their writers, with a score above 0.",
            )
        divided = [drawn[part :: self.parts] for part in self.mine]
        return [Batch.of(part, self.budget, fused=self.fused) for part in divided if part]

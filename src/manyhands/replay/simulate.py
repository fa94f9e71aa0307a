"""Simulated runs: a strategy driven by a scripted predictor in the place of a model.

The strategy does not know the difference. What comes out is what an engine's run would have been, had
the model chosen the predictor's tokens, at the granularity of tokens: one token per worker per pass,
everybody reading what was fed up to that very pass. That is what makes coordination learnable; a
transcript written by turns would teach a team to read what it will never see in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from manyhands.cache.step import Step
from manyhands.replay.merged import Merged, merge_passes
from manyhands.strategies.base import Answer, Sent, Strategy
from manyhands.strategies.listening import Heard, Listen


class Predictor(Protocol):
    """Chooses a token for every row of a step, and says how much each is worth learning (0: not)."""

    def __call__(self, step: Step) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Tokens and weights, one per row."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """A run to learn from: its attention, and for each row the token to predict and its weight."""

    merged: Merged
    targets: np.ndarray  # [R] token ids
    weights: np.ndarray  # [R] float32

    @property
    def num_tokens(self) -> int:
        """Tokens fed in all passes: what a forward over the lesson costs."""
        return self.merged.plan.num_tokens


@dataclass
class Simulation:
    """Drives one strategy to its end and keeps what was chosen.

    `heard` is asked whenever the strategy listens, which a team does before each pass.
    """

    strategy: Strategy
    predict: Predictor
    heard: Callable[[], Heard] = Heard
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    answer: Answer | None = None

    def steps(self) -> Iterator[Step]:
        """Every step as it is asked for. Whoever iterates appends the feeds to the blocks."""
        sent: Sent = None
        while True:
            try:
                asked = self.strategy.send(sent)
            except StopIteration as end:
                self.answer = end.value
                return
            if not isinstance(asked, Step):
                sent = self.heard() if isinstance(asked, Listen) else None
                continue
            sent, weights = self.predict(asked)
            self.targets += sent
            self.weights += weights
            yield asked

    def run(self) -> Answer:
        """To the end, without planning anything."""
        for step in self.steps():
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
        assert self.answer is not None, "a strategy ends with an answer"
        return self.answer

    def lesson(self, max_tokens: int = 8192) -> Lesson:
        """To the end, as something to learn from; `max_tokens` bounds what all passes feed."""
        merged = merge_passes(self.steps(), max_tokens)
        return Lesson(
            merged, np.array(self.targets, dtype=np.int64), np.array(self.weights, np.float32)
        )

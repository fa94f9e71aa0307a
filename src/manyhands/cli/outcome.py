"""How a run ended, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import ManyhandsError
from manyhands.strategies.base import Answer

INTERRUPTED = "interrupted"  # a finish reason that only the front door knows


@dataclass(frozen=True)
class Outcome:
    """How a run ended: by itself, interrupted, or with an error after some passes."""

    answer: Answer
    seconds: float = 0.0
    error: ManyhandsError | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it."""
        return self.answer.finish_reason == INTERRUPTED

    @property
    def is_cut_short(self) -> bool:
        """Whether somebody was still writing."""
        return self.interrupted or self.error is not None

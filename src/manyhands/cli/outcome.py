"""How a run ended, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import ManyhandsError
from manyhands.strategies.base import Answer
from manyhands.strategies.listening import Item

INTERRUPTED = "interrupted"  # a finish reason that only the front door knows
_NO_WORDS = "?.,;- "  # an answer of these alone says that there is none


@dataclass(frozen=True)
class Outcome:
    """How a run ended: by itself, interrupted, or with an error after some passes.

    `signal` is the one that interrupted it. `unheard` are the items that were said too late.
    """

    answer: Answer
    seconds: float = 0.0
    error: ManyhandsError | None = None
    signal: int | None = None
    unheard: tuple[Item, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it."""
        return self.answer.finish_reason == INTERRUPTED

    @property
    def is_cut_short(self) -> bool:
        """Whether somebody was still writing."""
        return self.interrupted or self.error is not None

    @property
    def has_answer(self) -> bool:
        """Whether there is a final answer, and it says more than "?".

        One that is known in part is one: it says itself which items it lacks, and others are often what was wanted.
        """
        return bool((self.answer.answer or "").strip(_NO_WORDS))

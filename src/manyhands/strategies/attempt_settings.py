"""The choices of the methods that take independent attempts, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.settings import MAX_WORKERS, EndSettings, check_budget

MODES = ("final", "vote")
SAMPLED = Choice(temperature=0.7)  # what Wang et al. (2022) mostly sample with


@dataclass(frozen=True)
class AttemptSettings:
    """What the methods share; the words of `TeamSettings`.

    The likeliest tokens are the same for everybody, so more than one worker needs a temperature.
    """

    method: ClassVar[str]

    workers: int = 4
    budget: int = 2048
    choice: Choice = SAMPLED
    seed: int = 0
    snapshots: tuple[int, ...] = ()
    end: EndSettings = field(default_factory=EndSettings)

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_WORKERS:
            raise InvalidRequest(f"workers is {self.workers}; expected 1 to {MAX_WORKERS}")
        check_budget(self.budget, self.snapshots)
        if self.workers > 1 and self.choice.temperature == 0:
            raise InvalidRequest(
                f"{self.method} was given {self.workers} workers at temperature 0, who would all "
                "write the same",
                hint=f"Set a temperature, {SAMPLED.temperature} for instance.",
            )


@dataclass(frozen=True)
class VoteSettings(AttemptSettings):
    """All choices of self-consistency.

    `mode` says how many attempts become one answer: `final` (one row reads all of them and answers)
    or `vote` (the majority of their boxes).
    """

    method: ClassVar[str] = "self_consistency"

    mode: str = "final"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise InvalidRequest(f"mode is {self.mode!r}; expected one of {', '.join(MODES)}")


@dataclass(frozen=True)
class BestSettings(AttemptSettings):
    """All choices of best-of-n."""

    method: ClassVar[str] = "best_of_n"

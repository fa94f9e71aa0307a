"""The choices of a skeleton run, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from manyhands.cache.step import GREEDY, Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.settings import MAX_WORKERS, EndSettings, check_budget


@dataclass(frozen=True)
class SkeletonSettings:
    """All choices of a run of skeleton-of-thought; the words of `SoloSettings`, and

    `workers`: how many work on the points, 0: one for each point. Of k workers, worker i takes points
    i, i + k, i + 2k, …, one after another. An outline must be closed within `outline_tokens`,
    with titles of at most `title_tokens`, or it is taken for ordinary text; of its points the first
    `max_points` are worked out, each in at most `thread_tokens`.
    """

    workers: int = 0
    budget: int = 2048
    outline_tokens: int = 256
    title_tokens: int = 48
    max_points: int = 32
    thread_tokens: int = 1024
    choice: Choice = GREEDY
    seed: int = 0
    snapshots: tuple[int, ...] = ()
    end: EndSettings = field(default_factory=EndSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= MAX_WORKERS:
            raise InvalidRequest(
                f"workers is {self.workers}; expected 0 (one for each point) to {MAX_WORKERS}"
            )
        for name in ("outline_tokens", "title_tokens", "max_points", "thread_tokens"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; expected 1 or more")
        check_budget(self.budget, self.snapshots)

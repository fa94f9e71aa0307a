"""The contract between a strategy and whoever drives it.

A strategy is a generator. It *yields* a Step and is *sent* one token per row: the token chosen from
the logits after that row's feed. It returns its Answer. In between it may yield

    Reserve    how much memory it will need at most; it is resumed once there is room for it
    Event      something that a person watching would like to know; it is resumed at once

    def echo(prompt):
        yield Reserve(num_tokens=len(prompt) + 10, num_blocks=1)
        view, feed = View([Block()]), prompt
        for _ in range(10):
            (token,) = yield Step([Row(view, feed)])
            feed = (token,)
        return Answer(text="...")

Closing the generator cancels the strategy, and what its blocks held is freed. An error of the engine
(no memory, a context too long) is thrown into the generator that asked for it, and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from manyhands.cache.step import Step


@dataclass(frozen=True)
class Reserve:
    """An upper bound of what the strategy will keep in memory, in tokens and in blocks.

    `renew` says it anew while the strategy waits, where that depends on what others do. Asked again, for
    no more than it has, the strategy goes on before the next pass: so it can wait for others.
    `num_shared_tokens` are those of them that a prefix tree will keep for others too.
    """

    num_tokens: int
    num_blocks: int
    renew: Callable[[], Reserve] | None = field(default=None, compare=False, repr=False)
    num_shared_tokens: int = 0

    def now(self) -> Reserve:
        """The bound as it is now."""
        return self if self.renew is None else self.renew()


@dataclass(frozen=True)
class Event:
    """Root of what a strategy reports. `forward_pass` counts the passes it has asked for so far."""

    forward_pass: int


@dataclass(frozen=True)
class TokenWritten(Event):
    """A worker wrote a token. `text` is what became readable by it; it may be empty."""

    worker: int
    token: int
    text: str


@dataclass(frozen=True)
class StepBegun(Event):
    """A worker opened a step; `text` is its prefix, inserted and not written by the model."""

    worker: int
    step: int
    text: str


@dataclass(frozen=True)
class StepEnded(Event):
    """A worker finished a step, which from now on everybody finds in the history."""

    worker: int
    step: int
    text: str


@dataclass(frozen=True)
class CheckAsked(Event):
    """A worker was asked whether its work is redundant, at the beginning of this step."""

    worker: int
    step: int


@dataclass(frozen=True)
class WorkerJoined(Event):
    """A worker that was not there from the start comes to the run, under this name."""

    worker: int
    name: str


@dataclass(frozen=True)
class WorkerStopped(Event):
    """A worker takes no further part. `reason` "stopped": its newest token ended its turn."""

    worker: int
    reason: str = "stopped"


@dataclass(frozen=True)
class AnswerFound(Event):
    """A final answer stands in a box. `worker` None: it was asked for when the budget was spent."""

    worker: int | None
    answer: str | None


@dataclass(frozen=True)
class Snapshot(Event):
    """What the answer would be if the budget were `forward_pass`."""

    answer: str | None


@dataclass(frozen=True)
class ReplyWritten(Event):
    """A piece of the final reply to the user."""

    text: str


@dataclass(frozen=True)
class FinishedStep:
    """One step of one worker as it stands in the transcript."""

    worker: int
    step: int
    text: str
    first_pass: int
    last_pass: int


@dataclass(frozen=True)
class Answer:
    """What a run comes back with, and its evidence.

    `answer` is the content of the final box, None if there was none; `text` the reply to the user.
    `finish_reason` is "answer" (a box was closed), "stopped" (every worker ended its turn), "budget",
    or "context" (the model's positions reach no further). `forward_passes` are those counted against
    the budget; `extra_passes` those of the finisher, of snapshots and of the reply, which no method is
    charged for (paper, section 4.1). `tokens` were written by each worker, prefixes not counted.
    """

    text: str
    answer: str | None = None
    finish_reason: str = "stopped"
    forward_passes: int = 0
    extra_passes: int = 0
    tokens: tuple[int, ...] = ()
    steps: tuple[FinishedStep, ...] = ()
    snapshots: Mapping[int, str | None] = field(default_factory=dict)


Strategy = Generator[Step | Reserve | Event, tuple[int, ...] | None, Answer]

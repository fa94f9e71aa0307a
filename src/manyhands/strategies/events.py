"""Events: everything that happens in a run and that a person watching would like to know.

    TokenWritten, StepEnded, ...   what the strategy does. It yields them; they are its behaviour, so a
                                   run that is repeated reports them again
    EngineEvent: Queued, ...       what the engine does with the run: when it waits, leaves, comes back,
                                   and who reads what. Two runs of one strategy may differ in them

One encoding serves traces, streams and pages:

    to_line(StepEnded(7, 0, 1, "Done."))     {"event": "StepEnded", "forward_pass": 7, "worker": 0, ...}
    from_line({"event": "StepEnded", ...})   StepEnded(7, 0, 1, "Done.")

An event of one's own is a frozen dataclass that inherits from Event: it is entered in the registry where
it is defined. Fields are plain: numbers, text, None, and tuples, mappings and dataclasses of these. Numbers of other
libraries become Python's own in a line, arrays of them lists. What would not come back from there is refused: a value that its
annotation does not say, nan and what is infinite, an annotation that no JSON says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyhands.cache.logprobs import Logprobs
from manyhands.cache.usage import Usage
from manyhands.strategies.registry import Registry

BlockIds = (
    int | tuple[tuple[Any, ...], ...]
)  # a block of a view by its number, or lanes of BlockIds


@dataclass(frozen=True)
class Event:
    """Root of what a strategy reports. `forward_pass` counts the passes it has asked for so far."""

    forward_pass: int

    def __init_subclass__(cls) -> None:
        EVENTS.add(cls)


EVENTS: Registry[Event] = Registry("event")


def to_line(event: Event) -> dict[str, Any]:
    """The event as plain data, for JSON. Raises InvalidRequest for one that would not come back from it."""
    return EVENTS.to_line(event)


def from_line(line: Mapping[str, Any]) -> Event:
    """`to_line` backwards. Raises BrokenTrace for an event that is unknown, or does not fit."""
    return EVENTS.from_line(line)


# -- what the strategy does ------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class TokenWritten(Event):
    """A worker wrote a token. `text` is what became readable by it; it may be empty.

    `logprobs` are told where `Choice.logprobs` asks for them, and a line has them only then.
    """

    worker: int
    token: int
    text: str
    logprobs: Logprobs | None = None

    def __init__(
        self,
        forward_pass: int,
        worker: int,
        token: int,
        text: str,
        logprobs: Logprobs | None = None,
    ) -> None:
        # One for each row of each pass: that of a frozen dataclass takes twice as long.
        fields = self.__dict__
        fields["forward_pass"], fields["worker"], fields["token"] = forward_pass, worker, token
        fields["text"], fields["logprobs"] = text, logprobs


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
class StepCut(Event):
    """A worker wrote a line that could pass for the team's own structure, and the step ends before it.

    `text` is what was dropped: the end of all that the worker has written in this step. A step without
    any other text does not end, it is begun again.
    """

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
    """A worker that was not there from the start comes to the run, under this name.

    A person who speaks to the run joins it too: with steps, and without tokens.
    """

    worker: int
    name: str
    is_person: bool = False


@dataclass(frozen=True)
class WorkerPaused(Event):
    """A worker writes nothing until it is told to go on; its unfinished step stays readable."""

    worker: int


@dataclass(frozen=True)
class WorkerResumed(Event):
    """A worker that was paused writes again."""

    worker: int


@dataclass(frozen=True)
class WorkerStopped(Event):
    """A worker takes no further part. `reason` "stopped": its newest token ended its turn."""

    worker: int
    reason: str = "stopped"


@dataclass(frozen=True)
class RequestRefused(Event):
    """Something was said to the run that cannot be done, and why. The run goes on as if it had not."""

    request: str
    reason: str


@dataclass(frozen=True)
class ForkRefused(Event):
    """A worker wrote the mark behind which its text parts, and it does not part there: why.

    The mark is text like any other, and the worker goes on behind it.
    """

    worker: int
    reason: str


@dataclass(frozen=True)
class AnswerFound(Event):
    """A final answer stands in a box. `worker` None: it was asked for when the budget was spent."""

    worker: int | None
    answer: str | None


@dataclass(frozen=True)
class Snapshot(Event):
    """The answer of the run if its budget were `forward_pass`."""

    answer: str | None


@dataclass(frozen=True)
class ReplyWritten(Event):
    """A piece of the final reply to the user."""

    text: str


# -- what the engine does with the run -------------------------------------------------------------


@dataclass(frozen=True)
class EngineEvent(Event):
    """Root of what the engine reports. `forward_pass` counts all passes of the run, its ending's too.

    No strategy yields one. A trace may hold some; restoring a run ignores them.
    """


@dataclass(frozen=True)
class Queued(EngineEvent):
    """The run waits until the memory that it reserves is free."""


@dataclass(frozen=True)
class Admitted(EngineEvent):
    """The run was let in, and takes part in the passes from now on."""


@dataclass(frozen=True)
class Preempted(EngineEvent):
    """The run left memory, because a pass did not fit; its blocks keep their tokens."""


@dataclass(frozen=True)
class Resumed(EngineEvent):
    """A preempted run came back: its keys and values are in memory again."""


@dataclass(frozen=True)
class ViewsChanged(EngineEvent):
    """Rows read other blocks from this pass on. Enough to draw who saw what.

    `views` has the rows that changed, by their writer; each lists the numbers of its blocks in the order
    in which they are read, its own block last (lanes as lists of numbers, see `cache/view.py`). Writers that
    are not named read what they read before. `blocks` names the blocks that are met for the first time.
    Blocks are numbered as the run meets them, which is how a trace of it numbers them. Passes are told
    apart by the order of the events: a ViewsChanged stands before the tokens of its pass.
    """

    views: Mapping[str, tuple[BlockIds, ...]]
    blocks: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        views = {writer: tuple(map(block_ids, items)) for writer, items in self.views.items()}
        object.__setattr__(self, "views", views)


@dataclass(frozen=True)
class UsageCounted(EngineEvent):
    """The cost of the whole run: the last event that a stream reports before the Answer."""

    usage: Usage


def block_ids(item: object) -> BlockIds:
    """A block's number, or lanes of these, as tuples at every depth. TypeError for anything else."""
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if not isinstance(item, list | tuple):
        raise TypeError(f"views hold {item!r}; expected the number of a block, or lanes of numbers")
    lanes = tuple(item)
    if not all(isinstance(lane, list | tuple) for lane in lanes):
        raise TypeError(f"views hold {item!r}; expected lanes, each a list of blocks")
    return tuple(tuple(map(block_ids, lane)) for lane in lanes)

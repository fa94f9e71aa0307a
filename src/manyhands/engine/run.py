"""A Run: one live strategy, from its first word to its answer.

At any time a run is in one state, and in the scheduler's queue of that state:

    submitted ─▶ WAITING ──▶ RUNNING ◀──▶ BLOCKED       BLOCKED: it asked for memory again
                                │            │
                                └▶ PREEMPTED ◀┘         and from there back to either
                                                         from anywhere to DONE

`Run.enter` is the one place where the state changes.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping
from enum import Enum, auto

from manyhands.cache.pages import Strip
from manyhands.cache.step import Step
from manyhands.engine.past import Past
from manyhands.engine.usage import Usage
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.strategies.base import Answer, Event, Reserve, Strategy


class RunState(Enum):
    """Where a run stands between its submission and its end."""

    WAITING = auto()  # not admitted yet: its first reservation does not fit
    RUNNING = auto()  # it has a step, which takes part in the passes
    BLOCKED = auto()  # admitted, and asks again: for more memory, or to wait for another run
    PREEMPTED = auto()  # its pages are freed until there is room; its blocks keep their tokens
    DONE = auto()  # with an answer, with an error, or cancelled


Queues = Mapping[RunState, "OrderedDict[Run, None]"]


def new_queues() -> Queues:
    """An empty queue for every state."""
    return {state: OrderedDict() for state in RunState}


class Run:
    """One live strategy: its state, what it asks for, what it reported, how it ended."""

    def __init__(self, strategy: Strategy, queues: Queues) -> None:
        check_strategy(strategy)
        self.strategy = strategy
        self.request: Step | Reserve | None = None  # None: while it computes, and at the end
        self.reserved_pages = 0
        self.age: int | None = None  # its number among those admitted: the lowest is the oldest
        self.past: Past | None = None  # of a preemptible run: what it was fed
        self.strips: list[Strip] = []  # of a preempted run: where its blocks wait for pages
        self.num_preemptions = 0
        self.events: deque[Event] = deque()
        self.usage = Usage()
        self.outcome: Answer | Exception | None = None
        self.state = RunState.WAITING
        self._queues = queues
        queues[self.state][self] = None

    def enter(self, state: RunState) -> None:
        """Change the state: leave one queue for the end of another."""
        if state is self.state:
            return
        self._queues[self.state].pop(self, None)
        self.state = state
        self._queues[state][self] = None
        if state is RunState.DONE:  # whatever holds blocks is let go
            self.request = self.past = None
            self.strips = []

    def enter_as_requested(self) -> None:
        """Enter the state that follows from what the run asks for."""
        if isinstance(self.request, Step):
            self.enter(RunState.RUNNING)
        elif self.age is not None:
            self.enter(RunState.BLOCKED)

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self.state is RunState.DONE

    @property
    def is_preemptible(self) -> bool:
        """Whether its pages may be taken: what it was fed is written down."""
        return self.past is not None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a reservation, its first or another."""
        return self.state in (RunState.WAITING, RunState.BLOCKED)

    @property
    def step(self) -> Step | None:
        """The step it asks for."""
        return self.request if isinstance(self.request, Step) else None

    @property
    def asked(self) -> Reserve | None:
        """The reservation it asks for."""
        return self.request if isinstance(self.request, Reserve) else None

    def take_events(self) -> list[Event]:
        """What it reported since they were taken last."""
        events = list(self.events)
        self.events.clear()
        return events

    def resume(self, tokens: tuple[int, ...] | None) -> None:
        """Send tokens in; take what comes out, up to the next step, reservation or end."""
        self._advance(lambda: self.strategy.send(tokens))

    def fail(self, error: ManyhandsError) -> None:
        """Throw an error in; the strategy may handle it and go on."""
        self._advance(lambda: self.strategy.throw(error))

    def cancel(self) -> None:
        """End the run; its blocks are freed. An error of the strategy's farewell is kept."""
        if self.done:
            return
        self.enter(RunState.DONE)
        try:
            self.strategy.close()
        except Exception as error:
            self.outcome = error
            _forget_frames(error)

    def result(self) -> Answer:
        """The answer of a run that is done; raises what the strategy raised."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is None:
            state = "was cancelled" if self.done else "has not ended yet"
            raise InvalidRequest(
                f"the run {state} and has no answer", hint="Call engine.step() until run.done."
            )
        return self.outcome

    def _advance(self, move: Callable[[], Step | Reserve | Event]) -> None:
        self.request = None
        try:
            asked = move()
            while isinstance(asked, Event):
                self.events.append(asked)
                asked = self.strategy.send(None)
        except StopIteration as end:
            self._end(end.value)
        # A strategy is anybody's program. Whatever it raises belongs to its own run, is kept there
        # and raised again by `result`; the other runs of this pass still get their tokens.
        except Exception as error:
            self.outcome = error
            self.enter(RunState.DONE)
            _forget_frames(error)
        except BaseException:  # an interrupt is everybody's, but the strategy that it met is over
            self.enter(RunState.DONE)
            raise
        else:
            self._wait_for(asked)

    def _wait_for(self, asked: object) -> None:
        if isinstance(asked, Step) and self.state is RunState.RUNNING:
            self.request = asked  # as in nearly every pass
        elif isinstance(asked, Step | Reserve):
            self.request = asked
            if self.state is not RunState.PREEMPTED:  # its pages come first
                self.enter_as_requested()
        else:
            kind = type(asked).__name__
            self.fail(
                InvalidRequest(f"a strategy yielded a {kind}; expected Step, Reserve or Event")
            )

    def _end(self, answer: object) -> None:
        if isinstance(answer, Answer):
            self.outcome = answer
        else:
            kind = type(answer).__name__
            self.outcome = InvalidRequest(
                f"a strategy ended with a {kind}; expected an Answer",
                hint='Let the generator end with `return Answer(text="...")`.',
            )
        self.enter(RunState.DONE)


def check_strategy(strategy: object) -> None:
    """Raise InvalidRequest if this is no strategy, as when its function was given uncalled."""
    if not isinstance(strategy, Generator):
        raise InvalidRequest(
            f"a {type(strategy).__name__} was given as a strategy; expected a generator",
            hint="Call the function that yields steps, and give what it returns.",
        )


def _forget_frames(error: BaseException) -> None:
    """Clear the variables of the frames an error came through: they hold the run's blocks.

    Our own frames are cut off: from them a way leads to the engine's, which hold other runs' blocks.
    The error lives as long as somebody wants the result; keys and values must not wait for that.
    """
    seen: BaseException | None = error
    while seen is not None:
        frames = seen.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        seen.__traceback__ = frames
        traceback.clear_frames(frames)
        seen = seen.__context__

"""A Run: one live strategy, from its first word to its answer.

At any time a run is in one state, and in the scheduler's queue of that state:

    submitted ─▶ WAITING ──▶ RUNNING ◀──▶ BLOCKED       BLOCKED: it asked for memory again
                                │            │
                                └▶ PREEMPTED ◀┘         and from there back to either
                                                         from anywhere to DONE

`Run.enter` is the one place where the state changes. Interrupted, it may leave a run in two queues, and never
in none; `state` is true, and the scheduler's next step puts the queues right.
"""

from __future__ import annotations

import threading
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import Any

from manyhands.cache.block import Block
from manyhands.cache.chunks import without
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Strip
from manyhands.cache.step import Step
from manyhands.cache.usage import Usage
from manyhands.engine.inbox import Inbox
from manyhands.engine.past import Past
from manyhands.engine.seating import Seating
from manyhands.errors import InvalidRequest, RunCancelled
from manyhands.strategies.base import Answer, Asked, Reserve, Strategy, check_generator
from manyhands.strategies.events import EngineEvent, Event, Preempted, Queued, Resumed
from manyhands.strategies.listening import NOTHING, Heard, Item, Listen, check_item, does_not_listen


def has_ended() -> InvalidRequest:
    """The error of words to a run that is done."""
    return InvalidRequest("the run has ended and hears nothing", hint="Begin another one.")


class RunState(Enum):
    """Where a run stands between its submission and its end."""

    WAITING = auto()  # not admitted yet: its first reservation does not fit
    RUNNING = auto()  # it has a step, which takes part in the passes
    BLOCKED = auto()  # admitted, and asks again: for more memory, or to wait for another run
    PREEMPTED = auto()  # its pages are freed until there is room; its blocks keep their tokens
    DONE = auto()  # with an answer, with an error, or cancelled


class Queue(OrderedDict["Run", None]):
    """The runs of one state, in their turns."""

    def __init__(self) -> None:
        super().__init__()
        # Of those that run: some whose first step feeds a prompt, and has not been answered. No row of theirs
        # writes yet, so a search for rows that do may leave them out.
        self.unbegun: dict[Run, None] = {}

    def leave(self, run: Run) -> None:
        """Take a run out, if it is here."""
        self.unbegun.pop(run, None)
        self.pop(run, None)


Queues = Mapping[RunState, Queue]


def new_queues() -> Queues:
    """An empty queue for every state."""
    return {state: Queue() for state in RunState}


class Run:
    """One live strategy: its state, what it asks for, what it reported, how it ended.

    With `lifecycle`, `events` also holds what the engine does with it (`events.py::EngineEvent`).
    """

    def __init__(self, strategy: Strategy, queues: Queues, *, lifecycle: bool = False) -> None:
        check_strategy(strategy)
        self.strategy = strategy
        self.request: Step | Reserve | None = None  # None: while it computes, and at the end
        self.reserved_pages = 0
        self.age: int | None = None  # its number among those admitted: the lowest is the oldest
        self.past: Past | None = None  # of a preemptible run: what it was fed
        self.strips: list[Strip] = []  # of a preempted run: where its blocks wait for pages
        self.num_preemptions = 0
        self.num_passes = 0  # answered, those of the ending included
        # Of a step that is fed in parts: how long its blocks were before the first.
        self.lengths: dict[Block, int] = {}
        self.events: deque[Event] = deque()
        self._was_queued = False
        self.listens = False  # whether the strategy hears what is said
        self._inbox = Inbox()
        self._seating = Seating() if lifecycle else None
        self.usage = Usage()
        self.outcome: Answer | Exception | None = None
        self.state = RunState.WAITING
        self._queues, self._unbegun = queues, queues[RunState.RUNNING].unbegun
        queues[self.state][self] = None

    def is_in(self, queues: Queues) -> bool:
        """Whether it stands in these queues, which are those of its scheduler."""
        return self._queues is queues

    def enter(self, state: RunState) -> None:
        """Change the state: leave one queue for the end of another."""
        if state is self.state:
            return
        before = self.state
        if state is RunState.PREEMPTED:
            self.num_preemptions += bool(self.strips)  # none: its first step did not fit, and waits
            self.happened(Preempted)
        elif before is RunState.PREEMPTED and state is not RunState.DONE:
            self.happened(Resumed)
        self._queues[state][self] = None
        self.state = state
        self._queues[before].leave(self)
        if state is RunState.DONE:
            self._let_go()

    def _let_go(self) -> None:
        """Drop whatever holds blocks."""
        self.request = self.past = None
        self.strips = []
        self.lengths = {}

    def put_right(self) -> None:
        """After an interrupt: the run is in the queue of its state, and its state is that of its pages.

        A run that was struck while it computed asks for nothing, and is over.
        """
        if self.request is None or self.done:
            self.cancel()
            self._let_go()
        elif self.strips:
            self.enter(RunState.PREEMPTED)
        else:
            self._enter_unless_preempted()
        for state, queue in self._queues.items():
            if state is not self.state:
                queue.leave(self)

    def _enter_unless_preempted(self) -> None:
        if self.state is not RunState.PREEMPTED:  # its pages come first
            self.enter_as_requested()

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

    def asks(self) -> Reserve | None:
        """The reservation it asks for, as it is now; None where its `renew` raises, which is thrown into the strategy, or cancels it."""
        if self.asked is None:
            return None
        try:
            asked = self.asked.now()
        except Exception as error:  # like the strategy itself, it is anybody's program
            problem = error
        else:
            return None if self.done else asked
        try:
            if not self.done:
                self.fail(problem)
        finally:
            del problem  # its way through here would hold the run's blocks
        return None

    def take_events(self) -> list[Event]:
        """The events reported since the last call."""
        events = list(self.events)
        self.events.clear()
        return events

    def say(self, item: Item) -> None:
        """Say something to the run; it is heard when its strategy listens next. Safe from any thread.

        Raises InvalidRequest if the strategy does not listen, or has ended, or was told as much as a run is; Busy while as much waits to be
        heard as may (`engine/inbox.py`).
        """
        check_item(item)
        if self.done:
            raise has_ended()
        if not self.listens:
            raise does_not_listen()
        self._inbox.put(item)

    @property
    def unheard(self) -> tuple[Item, ...]:
        """Items that were said and not heard; of a run that has ended, those that came too late."""
        return self._inbox.items

    def happened(self, kind: type[EngineEvent]) -> None:
        """Report that the engine has queued, admitted, preempted or resumed the run."""
        if self._seating is not None:
            self.events.append(kind(self.num_passes))

    def resume(self) -> None:
        """Begin, or go on with what was reserved, up to the next step, reservation or end."""
        self._advance(self.strategy.send, None)

    def prepare(self) -> None:
        """Let the strategy do what it can do while its step is fed (`Step.meanwhile`)."""
        step = self.step
        if step is None or step.meanwhile is None:
            return
        # Whatever it raises it will raise again where it needs that work.
        with suppress(Exception):
            step.meanwhile()

    def answer(self, tokens: tuple[int, ...], usage: Usage) -> None:
        """Go on with the tokens of the step, which was fed; `usage` is that of the run up to here.

        Interrupted before the strategy goes on, it can be called again.
        """
        self.usage = usage
        if self.past is not None and self.step is not None:
            self.past.remember(self.step, self.num_passes)
        self._advance(self.strategy.send, tokens, num_passes=1)

    def fed(self, part: Step, usage: Usage) -> None:
        """Part of the step was fed, and the rest is asked for. Interrupted, it can be called again."""
        assert self.step is not None, "only a step has parts"
        for row in part.rows:
            self.lengths.setdefault(row.view.own, row.view.own.num_tokens - len(row.feed))
        self.usage = usage
        if self.past is not None:
            self.past.remember_part(part)
        self.request = without(self.step, part)

    def fail(self, error: Exception) -> None:
        """Throw an error in; the strategy may handle it and go on."""
        self._advance(self.strategy.throw, error)

    def fail_step(self, error: Exception, pool: PagePool) -> None:
        """Throw an error in for a step, in memory or not: it fails as a whole, and what was fed of it before is taken off its blocks.

        Interrupted, the run is over: the rest of the step would be fed to blocks without its beginning.
        """
        if self.lengths:
            self.request = None
        for block, size in self.lengths.items():
            pool.shorten(block, size)
        if self.past is not None:
            self.past.forget_parts()
        self.fail(error)

    def cancel(self) -> None:
        """End the run; its blocks are freed. An error of the strategy's farewell is kept."""
        self.enter(RunState.DONE)
        try:
            self.strategy.close()
        except Exception as error:
            self.outcome = error
            _forget_frames(error)

    def result(self) -> Answer:
        """The answer of a run that is done; raises what the strategy raised."""
        if self.outcome is None and not self.done:
            raise InvalidRequest(
                "the run has not ended yet and has no answer",
                hint="Call engine.step() until run.done.",
            )
        end = self.end
        if not isinstance(end, Exception):
            return end
        try:
            raise end
        finally:
            del self, end  # the error's traceback has this frame: a circle

    @property
    def end(self) -> Answer | Exception:
        """Of a run that is done, what `result` returns or raises. An error that was not raised again holds no frames of its readers."""
        assert self.done or self.outcome is not None, "it has not ended"
        if self.outcome is None:
            return RunCancelled("the run was cancelled and has no answer")
        return self.outcome

    def _advance(self, move: Callable[[Any], Asked], sent: object, *, num_passes: int = 0) -> None:
        try:
            self._unbegun.pop(self, None)
            self.num_passes += num_passes
            self.request = None
            if self.lengths:
                self.lengths = {}
            asked = move(sent)
            send, report = self.strategy.send, self.events.append
            while True:
                if isinstance(asked, Event):
                    report(asked)
                    asked = send(None)
                elif isinstance(asked, Listen):
                    asked = send(self._heard())
                else:
                    break
        except StopIteration as end:
            self._end(end.value)
        # A strategy is anybody's program. Whatever it raises belongs to its own run, is kept there
        # and raised again by `result`; the other runs of this pass still get their tokens.
        except Exception as error:
            self.outcome = error
            self.enter(RunState.DONE)
            _forget_frames(error)
        except BaseException as error:
            # An interrupt is everybody's, but the strategy that it met is over.
            self.enter(RunState.DONE)
            if isinstance(error, KeyboardInterrupt) or _is_in_main_thread():
                raise
            self.outcome = _left(error)
        else:
            self._wait_for(asked)

    def _heard(self) -> Heard:
        """The items that were said since the strategy listened last."""
        self.listens = True
        items = self._inbox.take()
        return Heard(items) if items else NOTHING

    def _wait_for(self, asked: object) -> None:
        if isinstance(asked, Step):
            self.request = asked
            if self._seating is not None:
                self.events.extend(self._seating.changes(asked, self.num_passes + 1))
            if self.state is not RunState.RUNNING:  # as it is in nearly every pass
                self._enter_unless_preempted()
            if (
                not self.num_passes
                and self.state is RunState.RUNNING
                and len(asked.rows[0].feed) > 1
            ):
                self._unbegun[self] = None
        elif isinstance(asked, Reserve):
            self.request = asked
            if self.age is None and not self._was_queued:  # the first one; others belong to it
                self._was_queued = True
                self.happened(Queued)
            self._enter_unless_preempted()
        else:
            kind = type(asked).__name__
            self.fail(
                InvalidRequest(
                    f"a strategy yielded a {kind}; expected Step, Reserve, Listen or Event"
                )
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


def _is_in_main_thread() -> bool:
    """Whether this is the one thread whose `SystemExit` ends the program."""
    return threading.current_thread() is threading.main_thread()


def _left(error: BaseException) -> InvalidRequest:
    """The outcome of a strategy that would have ended a thread which is everybody's, as `sys.exit` does."""
    _forget_frames(error)
    found = InvalidRequest(
        f"a strategy raised {type(error).__name__}({error}), which ends no more than its own run here",
        hint="Let it return an Answer, or raise an Exception.",
    )
    found.__cause__ = error
    return found


def check_strategy(strategy: object) -> None:
    """Raise InvalidRequest if this is no strategy, as when its function was given uncalled, or one that has begun."""
    check_generator(strategy)
    if isinstance(strategy, GeneratorType) and getgeneratorstate(strategy) != GEN_CREATED:
        raise InvalidRequest(
            "a strategy was given that has begun already, or is over",
            hint="Make a new one for each run: call the function again.",
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

"""A Run: one live strategy, from its first word to its answer."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Generator

from manyhands.cache.pages import Strip
from manyhands.cache.step import Step
from manyhands.cache.usage import Usage
from manyhands.engine.past import Past
from manyhands.engine.seating import Seating
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.strategies.base import Answer, Asked, Reserve, Strategy
from manyhands.strategies.events import EngineEvent, Event, Queued
from manyhands.strategies.listening import ITEMS, NOTHING, Heard, Item, Listen


class Run:
    """One live strategy: the step it waits for, what it reported, how it ended.

    With `lifecycle`, `events` also holds what the engine does with it (`events.py::EngineEvent`).
    """

    def __init__(self, strategy: Strategy, *, lifecycle: bool = False) -> None:
        if not isinstance(strategy, Generator):
            raise InvalidRequest(
                f"a {type(strategy).__name__} was given as a strategy; expected a generator",
                hint="Call the function that yields steps, and give what it returns.",
            )
        self.strategy = strategy
        self.step: Step | None = None
        self.untold: tuple[int, ...] | None = None  # chosen by its step, not sent to it yet
        self.asked: Reserve | None = None  # waiting for this much memory
        self.reserved_pages = 0
        self.number: int | None = None  # runs are numbered as they begin: the lowest is the oldest
        self.past: Past | None = None  # of a guest, which may be set aside; see engine/guests.py
        self.away: list[Strip] | None = None  # while it is: where its blocks wait for pages
        self.num_preemptions = 0  # how often it was
        self.num_passes = 0  # answered, those of the ending included
        self.events: deque[Event] = deque()
        self.listens = False  # whether the strategy hears what is said
        self._unheard: deque[Item] = deque()  # an append and a popleft are safe from any thread
        self._seating = Seating() if lifecycle else None
        self.usage = Usage()
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.done = False

    @property
    def is_away(self) -> bool:
        """Whether the run was set aside and waits for room."""
        return self.away is not None

    def say(self, item: Item) -> None:
        """Say something to the run; it is heard when its strategy listens next. Safe from any thread.

        Raises InvalidRequest if the strategy does not listen, or has ended.
        """
        if not isinstance(item, Item):
            raise InvalidRequest(
                f"a {type(item).__name__} was said to a run; expected one of {', '.join(ITEMS.kinds)}",
                hint='For example: run.say(Said("Try it mod 7.", "Dana")).',
            )
        if self.done:
            raise InvalidRequest("the run has ended and hears nothing", hint="Begin another one.")
        if not self.listens:
            raise InvalidRequest(
                "this method does not listen", hint="The method hogwild does: its workers read it."
            )
        self._unheard.append(item)

    def happened(self, kind: type[EngineEvent]) -> None:
        """Report that the engine has queued, admitted, preempted or resumed the run."""
        if self._seating is not None:
            self.events.append(kind(self.num_passes))

    def resume(self, tokens: tuple[int, ...] | None) -> None:
        """Send tokens in; take what comes out, up to the next step, reservation or end."""
        self.num_passes += tokens is not None
        self._advance(lambda: self.strategy.send(tokens))

    def fail(self, error: ManyhandsError) -> None:
        """Throw an error in; the strategy may handle it and go on."""
        self._advance(lambda: self.strategy.throw(error))

    def cancel(self) -> None:
        """End the run; its blocks are freed."""
        self.done = True
        self.step = self.untold = self.asked = self.past = None
        self.strategy.close()

    def result(self) -> Answer:
        """The answer of a run that is done; raises what the strategy raised."""
        if self.error is not None:
            raise self.error
        if self.answer is None:
            state = "was cancelled" if self.done else "has not ended yet"
            raise InvalidRequest(
                f"the run {state} and has no answer", hint="Call engine.step() until run.done."
            )
        return self.answer

    def _advance(self, move: Callable[[], Asked]) -> None:
        self.step = self.asked = None
        try:
            asked = move()
            while isinstance(asked, Event | Listen):
                asked = self.strategy.send(self._reply(asked))
        except StopIteration as end:
            self._end(end.value)
        # A strategy is anybody's program. Whatever it raises belongs to its own run, is kept there
        # and raised again by `result`; the other runs of this pass still get their tokens.
        except Exception as error:
            self.error, self.done, self.past = error, True, None
            _forget_frames(error)
        except BaseException:  # an interrupt is everybody's, but the strategy that it met is over
            self.done, self.past = True, None
            raise
        else:
            self._wait_for(asked)

    def _reply(self, asked: Event | Listen) -> Heard | None:
        """What is sent at once."""
        if isinstance(asked, Event):
            self.events.append(asked)
            return None
        self.listens = True
        items = []
        while self._unheard:
            items.append(self._unheard.popleft())
        return Heard(tuple(items)) if items else NOTHING

    def _wait_for(self, asked: object) -> None:
        if isinstance(asked, Reserve):
            self.asked = asked
            if self.number is None:
                self.happened(Queued)
        elif isinstance(asked, Step):
            self.step = asked
            if self._seating is not None:
                self.events.extend(self._seating.changes(asked, self.num_passes + 1))
        else:
            kind = type(asked).__name__
            self.fail(
                InvalidRequest(
                    f"a strategy yielded a {kind}; expected Step, Reserve, Listen or Event"
                )
            )

    def _end(self, answer: object) -> None:
        self.done, self.past = True, None
        if isinstance(answer, Answer):
            self.answer = answer
        else:
            kind = type(answer).__name__
            self.error = InvalidRequest(
                f"a strategy ended with a {kind}; expected an Answer",
                hint='Let the generator end with `return Answer(text="...")`.',
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

"""Many strategies in one forward pass (continuous batching).

Each live run waits for the tokens of one step. A pass gathers the rows of all of them, runs the model
once and hands every run its own tokens back. Runs know nothing of each other: what one of them is
sent is what it would be sent alone, and what goes wrong in one ends that one.

A run that reserves memory is admitted when its reservation fits beside those of the runs before it;
until then it waits, in order. One that could never fit is told so at once.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import islice

from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.errors import InvalidRequest, ManyhandsError, OutOfMemory
from manyhands.strategies.base import Answer, Event, Reserve, Strategy


class Run:
    """One live strategy: the step it waits for, what it reported, how it ended."""

    def __init__(self, strategy: Strategy) -> None:
        if not isinstance(strategy, Generator):
            raise InvalidRequest(
                f"a {type(strategy).__name__} was given as a strategy; expected a generator",
                hint="Call the function that yields steps, and give what it returns.",
            )
        self.strategy = strategy
        self.step: Step | None = None
        self.asked: Reserve | None = None  # waiting for this much memory
        self.reserved_pages = 0
        self.events: deque[Event] = deque()
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.done = False

    def resume(self, tokens: tuple[int, ...] | None) -> None:
        """Send tokens in; take what comes out, up to the next step, reservation or end."""
        self._advance(lambda: self.strategy.send(tokens))

    def fail(self, error: ManyhandsError) -> None:
        """Throw an error in; the strategy may handle it and go on."""
        self._advance(lambda: self.strategy.throw(error))

    def cancel(self) -> None:
        """End the run; its blocks are freed."""
        self.done = True
        self.step = self.asked = None
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

    def _advance(self, move: Callable[[], Step | Reserve | Event]) -> None:
        self.step = self.asked = None
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
            self.error, self.done = error, True
            _forget_frames(error)
        else:
            self._wait_for(asked)

    def _wait_for(self, asked: object) -> None:
        if isinstance(asked, Reserve):
            self.asked = asked
        elif isinstance(asked, Step):
            self.step = asked
        else:
            kind = type(asked).__name__
            self.fail(
                InvalidRequest(f"a strategy yielded a {kind}; expected Step, Reserve or Event")
            )

    def _end(self, answer: object) -> None:
        self.done = True
        if isinstance(answer, Answer):
            self.answer = answer
        else:
            kind = type(answer).__name__
            self.error = InvalidRequest(
                f"a strategy ended with a {kind}; expected an Answer",
                hint='Let the generator end with `return Answer(text="...")`.',
            )


class Scheduler:
    """Drives runs. `predict` runs the model on a step and returns one token per row.

    It must change nothing if it raises: the steps of the other runs are then asked for again.
    """

    def __init__(
        self,
        predict: Callable[[Step], tuple[int, ...]],
        pool: PagePool,
        max_tokens_per_pass: int,
    ) -> None:
        self.predict = predict
        self.pool = pool
        self.max_tokens_per_pass = max_tokens_per_pass
        self.runs: deque[Run] = deque()

    def submit(self, strategy: Strategy) -> Run:
        """Begin a strategy; it takes part from the next pass on."""
        run = Run(strategy)
        self.runs.append(run)
        run.resume(None)
        return run

    def step(self) -> bool:
        """One forward pass for everybody who waits for one; False when nobody is left."""
        self._admit()
        ready = self._gather()
        if ready:
            self._answer(ready)
        self._sweep()
        return bool(self.runs)

    def cancel(self, run: Run) -> None:
        """End a run before its time; nobody else's tokens change."""
        run.cancel()
        self._sweep()

    def _gather(self) -> list[Run]:
        """Runs with a step, up to the size of a pass; who had to wait comes first the next time."""
        ready: list[Run] = []
        num_tokens = 0
        for run in self.runs:
            if run.step is None:
                continue
            num_tokens += sum(len(row.feed) for row in run.step.rows)
            if ready and num_tokens > self.max_tokens_per_pass:
                break
            ready.append(run)
        if len(ready) < len(self.runs):
            self.runs = deque([run for run in self.runs if run not in ready] + ready)
        return ready

    def _answer(self, ready: Sequence[Run]) -> None:
        try:
            answers = self._pass(ready)
        except ManyhandsError as error:
            problem = error.with_traceback(None)  # its way through the engine would hold blocks
        else:
            for run, tokens in zip(ready, answers, strict=True):
                run.resume(tokens)
            return
        if len(ready) == 1:
            ready[0].fail(problem)
        else:  # find out whose it is; nothing has changed yet
            for run in ready:
                self._answer([run])

    def _pass(self, ready: Sequence[Run]) -> list[tuple[int, ...]]:
        """Each run's own tokens, by one forward pass over the rows of all of them."""
        steps = [run.step for run in ready if run.step is not None]
        tokens = iter(self.predict(Step(row for step in steps for row in step.rows)))
        return [tuple(islice(tokens, len(step.rows))) for step in steps]

    def _admit(self) -> None:
        """Let runs in that wait for memory, in order, while their reservations fit."""
        taken = sum(run.reserved_pages for run in self.runs)
        for run in self.runs:
            if run.asked is None:
                continue
            pages = run.asked.num_tokens // self.pool.page_size + run.asked.num_blocks
            if pages > self.pool.num_pages:
                run.fail(_never_fits(run.asked, self.pool))
            elif taken - run.reserved_pages + pages <= self.pool.num_pages:
                taken += pages - run.reserved_pages
                run.reserved_pages = pages
                run.resume(None)
            else:
                if all(other.step is None for other in self.runs):
                    run.fail(_deadlock(run.asked, taken, self.pool))
                break

    def _sweep(self) -> None:
        self.runs = deque(run for run in self.runs if not run.done)


def _never_fits(asked: Reserve, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run may need {asked.num_tokens} tokens in {asked.num_blocks} blocks, "
        f"and the memory holds {pool.num_slots} tokens in {pool.num_pages} pages",
        hint="Lower the budget or the number of workers, or give the engine more memory_tokens.",
    )


def _deadlock(asked: Reserve, taken: int, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run asks for {asked.num_tokens} tokens in {asked.num_blocks} blocks, {taken} of "
        f"{pool.num_pages} pages are promised already, and every other run waits for memory too",
        hint="Let a strategy reserve once, at its beginning, or give the engine more memory_tokens.",
    )


def _forget_frames(error: BaseException) -> None:
    """Clear the variables of the frames an error came through: they hold the run's blocks.

    The error lives as long as somebody wants the result; keys and values must not wait for that.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__
